"""Comparisons as tables: ranked, grouped by kind, with what may be chance marked as such."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import pflego
from pflego.algorithms.base import Family
from pflego.comparison.compare import Entry, compare, settings_for
from pflego.comparison.tables import (
    KINDS,
    as_csv,
    as_latex,
    as_markdown,
    behind_the_best,
    by_method,
    sheets,
)
from pflego.comparison.variants import Variant, choose
from pflego.errors import SettingError

SMALL = {"clients": 5, "rounds": 2, "steps": 3, "evaluate_every": 0, "client_lr": 0.1}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    names = ["pflego", "fedavg", "fedavg+fine_tune=2", "pflego+common_head=true"]
    return compare(SMALL, names, [0, 1], tmp_path_factory.mktemp("compare"), rates="given", progress=False)


def made_up(real: list[Entry], figures: dict[str, list[float]], family: Family = "split") -> list[Entry]:
    """Entries with these figures, one per seed."""
    base = real[0]
    return [
        replace(
            base, name=name, family=family, seed=seed, summary=replace(base.summary, everyone_adapted=figure)
        )
        for name, own in figures.items()
        for seed, figure in enumerate(own)
    ]


def test_variants_of_one_method_stand_side_by_side(real: list[Entry]) -> None:
    assert {entry.name for entry in real} == {
        "pflego", "fedavg", "fedavg+fine_tune=2", "pflego+common_head=true",
    }  # fmt: skip
    families = {entry.name: entry.family for entry in real}
    assert (families["fedavg"], families["fedavg+fine_tune=2"]) == ("one model", "fine-tuned")
    tuned, plain = (
        next(e for e in real if e.name == name and e.seed == 0) for name in ("fedavg+fine_tune=2", "fedavg")
    )
    assert tuned.summary.participants != plain.summary.participants


def test_a_variants_settings_are_its_own(tmp_path: Path) -> None:
    given = {"steps": 3, "fedavg": {"fine_tune": 1, "momentum": 0.5}}
    name = "fedavg+fine_tune=4+fine_tune_part=head"
    found = settings_for(name, given, 0, tmp_path)
    assert found.flat | {"fine_tune": 4, "fine_tune_part": "head", "momentum": 0.5, "steps": 3} == found.flat
    assert Path(str(found.flat["out"])).parent.name == name
    with pytest.raises(SettingError, match="did you mean 'fine_tune'"):
        settings_for("fedavg+fine_tun=4", {}, 0, tmp_path)
    for wrong in ("fedavg+", "fedavg+steps", "fedavg+=3", "fedavg+steps="):
        with pytest.raises(SettingError, match="no variant"):
            choose(wrong)
    assert Variant.of("fedprox+mu=0.1").folder == "fedprox+mu=0.1"
    assert "/" not in Variant.of("fedavg+labels=../../x").folder
    exact = settings_for(
        "pflego+batch_size=none", {"batch_size": 32}, 0, tmp_path
    )  # what only others are given
    assert exact.algorithm == pflego.PFLEGO()
    assert settings_for("pflego", {"batch_size": 32}, 0, tmp_path).algorithm == pflego.PFLEGO(batch_size=32)


def test_the_distance_from_the_best_is_a_paired_test_shared_by_all(real: list[Entry]) -> None:
    rng = np.random.default_rng(5)
    luck = rng.normal(0, 0.05, 6)  # of a seed, the same for all methods
    figures = {
        "best": 0.90 + luck + rng.normal(0, 0.002, 6),
        "near": 0.899 + luck + rng.normal(0, 0.01, 6),
        "far": 0.85 + luck + rng.normal(0, 0.002, 6),
    }
    found = behind_the_best(made_up(real, {name: own.tolist() for name, own in figures.items()}))
    chances = {
        name: float(stats.ttest_rel(figures["best"], figures[name]).pvalue) for name in ("near", "far")
    }
    assert chances["far"] < 0.025
    assert chances["near"] > 0.05
    assert (found["far"].level, found["near"].level) == (False, True)
    for name in ("near", "far"):
        gaps = figures["best"] - figures[name]
        interval = stats.ttest_rel(figures["best"], figures[name]).confidence_interval(0.95)
        assert found[name].mean == pytest.approx(gaps.mean())
        assert found[name].mean + found[name].half == pytest.approx(interval.high)


def test_two_tests_share_the_level(real: list[Entry]) -> None:
    """A chance of 3 % is enough for one comparison, and not as the smaller of two."""
    gaps = np.array([0.01, 0.02, 0.03, -0.002, 0.004])
    chance = float(stats.ttest_1samp(gaps, 0).pvalue)
    gaps = gaps + next(
        shift
        for shift in np.linspace(0, 0.01, 200)
        if 0.027 < stats.ttest_1samp(gaps + shift, 0).pvalue < 0.045
    )
    assert chance > 0.027
    best = np.full(5, 0.9)
    one = made_up(real, {"best": best.tolist(), "other": (best - gaps).tolist()})
    wobble = np.array([0.05, -0.049, 0.051, -0.05, 0.0])
    two = made_up(
        real, {"best": best.tolist(), "other": (best - gaps).tolist(), "third": (best - wobble).tolist()}
    )
    assert not behind_the_best(one)["other"].level
    assert behind_the_best(two)["other"].level


def test_errors_rank_the_other_way_round(real: list[Entry]) -> None:
    entries = made_up(real, {"a": [2.0, 2.1], "b": [1.0, 1.1]})
    lower = [replace(e, summary=replace(e.summary, higher_is_better=False)) for e in entries]
    assert list(by_method(entries)) == ["a", "b"]
    assert list(by_method(lower)) == ["b", "a"]
    assert behind_the_best(lower)["a"].mean == pytest.approx(1.0)


def test_many_methods_are_grouped_by_kind_the_best_first(real: list[Entry]) -> None:
    entries = [
        *made_up(real, {f"s{k}": [0.5 + k / 100, 0.5] for k in range(4)}, "split"),
        *made_up(real, {f"o{k}": [0.9 + k / 100, 0.8] for k in range(3)}, "one model"),
    ]
    quality, *_ = sheets(entries)
    assert list(quality.groups) == [KINDS["one model"], KINDS["split"]]
    assert [row[0].split()[0] for row in quality.groups[KINDS["one model"]]] == ["o2", "o1", "o0"]
    few, *_ = sheets(real)
    assert list(few.groups) == [""]


def test_tables_are_written_for_documents_and_programs(real: list[Entry]) -> None:
    made = sheets(real)
    markdown, latex = as_markdown(made), as_latex(made)
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert line.count("|") in {len(sheet.columns) + 2 for sheet in made}
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    assert r"fedavg+fine\_tune=2" in latex
    rows = list(csv.DictReader(io.StringIO(as_csv(real))))
    assert [(row["name"], int(row["seed"])) for row in rows] == [(e.name, e.seed) for e in real]
    assert float(rows[0]["everyone"]) == real[0].summary.everyone
    assert json.loads(json.dumps([entry.row() for entry in real]))[0]["family"] == real[0].family


def test_every_method_says_of_what_kind_it_is() -> None:
    for name, kind in pflego.algorithms.methods().items():
        assert kind().family != "other", name
