"""What a shared head can reach at best under local labels: the formula against enumeration."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

import pflego
from pflego.learning.ceiling import ceiling
from pflego.runs.summary import Summary


def every_draw(held: int, classes: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One client for every set of classes there is, with one test sample of each of its classes."""
    return [(torch.tensor(own), torch.tensor(own)) for own in combinations(range(classes), held)]


@pytest.mark.parametrize(("held", "wanted"), [(2, 70 / 90), (5, 0.613), (10, 1.0), (1, 1.0)])
def test_it_is_what_the_draws_of_the_papers_degrees_allow(held: int, wanted: float) -> None:
    assert ceiling(every_draw(held)) == pytest.approx(wanted, abs=5e-4)


@pytest.mark.parametrize("seed", range(6))
def test_no_map_from_classes_to_outputs_gets_more_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    holdings = []
    for _ in range(5):
        own = np.sort(rng.choice(5, size=rng.integers(1, 4), replace=False))
        labels = rng.choice(5, size=8) if seed % 2 else rng.choice(own, size=8)  # some without an output
        holdings.append((torch.tensor(own), torch.tensor(labels)))
    best = 0.0
    for outputs in product(range(3), repeat=5):  # the output that a model gives for each class
        right = sum(
            int(outputs[label] < len(own) and int(own[outputs[label]]) == label)
            for own, labels in holdings
            for label in labels.tolist()
        )
        best = max(best, right / 40)
    assert ceiling(holdings) == pytest.approx(best)


def test_it_stands_beside_the_figure_it_bounds_and_no_other() -> None:
    federation = pflego.load("digits", clients=20, classes_per_client=2)
    model = pflego.models.build("mlp", (64,))

    def summed_up(algorithm: pflego.Algorithm, rounds: int = 1) -> Summary:
        return Summary.of(pflego.train(federation, model, algorithm, rounds=rounds, evaluate_every=0))

    found = summed_up(pflego.FedAvg(labels="local", steps=20, client_lr=0.1), rounds=4)
    assert found.ceiling is not None
    assert found.everyone is not None
    assert 0.5 < found.everyone <= found.ceiling < 0.95
    for unbound in (
        pflego.FedAvg(steps=2, client_lr=0.1),
        pflego.FedAvg(steps=2, client_lr=0.1, labels="local", fine_tune=1),
        pflego.Ditto(steps=2, client_lr=0.1, labels="local"),
        pflego.PFLEGO(steps=2),
    ):
        assert summed_up(unbound).ceiling is None
