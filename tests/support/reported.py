"""Runs to make reports of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import pflego

ODD = ["</script><script>alert(1)</script>", "a & b <i>", "quo\"te's", "ünïcode ✓", "__proto__"]


def model(inputs: int = 3, features: int = 4) -> pflego.Model:
    torch.manual_seed(0)
    return pflego.Model(nn.Sequential(nn.Linear(inputs, features), nn.Tanh()), features=features)


def federation(ids: list[str], *, regression: bool = False, tests: int = 6) -> pflego.Federation:
    """Clients of 8, 9, 10, ... samples; client i holds classes i mod 3 and (i + 1) mod 3."""
    rng = np.random.default_rng(0)
    members = []
    for number, id in enumerate(ids):
        n = 8 + number
        x = rng.normal(size=(n + tests, 3)).astype(np.float32)
        y = (number + np.arange(n + tests) % 2) % 3
        x[:, 0] += 2 * y
        labels = x[:, 0] + 0.1 if regression else y
        members.append(pflego.Client(id, x[:n], labels[:n], x[n:], labels[n:]))
    return pflego.Federation(members)


def run(
    method: pflego.Algorithm | None = None,
    *,
    ids: list[str] | None = None,
    regression: bool = False,
    tests: int = 6,
    participation: int = 2,
    rounds: int = 6,
    evaluate_every: int | None = 2,
    evaluate_adapted: bool = False,
    out: Path | None = None,
) -> pflego.Run:
    return pflego.train(
        federation(ids or ["a", "b", "c", "d"], regression=regression, tests=tests),
        model(),
        method or pflego.PFLEGO(steps=3),
        rounds=rounds,
        participation=participation,
        evaluate_every=evaluate_every,
        evaluate_adapted=evaluate_adapted,
        out=out,
    )
