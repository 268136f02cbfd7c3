"""Runs to ask something of: small ones, and words for what a command must say."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pflego.cli import app, main

WARDS = ["north", "south", "west"]


def pflego(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr or result.exception
    return result


def assert_refused(
    words: Sequence[object], reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line that says it."""
    monkeypatch.setattr(sys, "argv", ["pflego", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capfd.readouterr()
    assert stopped.value.code == 2
    assert said.err.startswith("pflego: ")
    assert said.err.count("\n") == 1
    assert reason in said.err


def patients(
    path: Path,
    wards: Sequence[str],
    *,
    seed: int,
    each: int = 30,
    columns: Sequence[str] = ("ward", "diagnosis"),
) -> Path:
    """A table of patients: two numbers and a category, from which the diagnosis follows by and large."""
    rng = np.random.default_rng(seed)
    lines = [["age", "pressure", "smoker", *columns]]
    for ward in wards:
        for _ in range(each):
            age, pressure, smoker = rng.uniform(20, 90), rng.normal(130, 20), rng.integers(2)
            ill = (age - 55) / 10 + (pressure - 130) / 10 + smoker + rng.normal() / 4 > 0.5
            known = {"ward": ward, "diagnosis": "ill" if ill else "well"}
            lines.append(
                [f"{age:.1f}", f"{pressure:.1f}", ["no", "yes"][smoker], *(known[c] for c in columns)]
            )
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return path


def numbers(
    folder: Path, name: str, *, classes: int = 3, samples: int = 36, regression: bool = False
) -> Path:
    """A .npz file: classes that differ in their mean, or a sum to predict."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % classes
    x = (rng.normal(size=(samples, 4)) / 2 + y[:, None]).astype(np.float32)
    labels = x.sum(axis=1) if regression else y
    half = samples * 2 // 3
    path = folder / f"{name}.npz"
    np.savez(path, x_train=x[:half], y_train=labels[:half], x_test=x[half:], y_test=labels[half:])
    return path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
