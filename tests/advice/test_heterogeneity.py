from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import nn

import pflego
from pflego.advice.heterogeneity import (
    Differences,
    agreement,
    cosine,
    input_shift,
    label_distance,
    total_variation,
)
from pflego.learning.evaluation import gini


def of_labels(*labels: list[int]) -> pflego.Federation:
    return pflego.Federation(
        [pflego.Client(k, np.zeros((len(own), 2), np.float32), np.array(own)) for k, own in enumerate(labels)]
    )


def test_the_distance_of_labels_is_the_total_variation_by_hand() -> None:
    fed = of_labels([0, 0, 1, 1], [0, 1, 1, 1], [2, 2])  # 0.25 between the first two, 1 to the third
    found, interval = label_distance(fed, seed=0)
    assert found.value == pytest.approx((0.25 + 1 + 1) / 3)
    assert interval.low <= found.value <= interval.high


def test_total_variation_is_half_the_sum_of_differences() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(6), size=4)
    found = total_variation(shares)
    for i in range(4):
        for j in range(4):
            assert found[i, j] == pytest.approx(
                sum(abs(p - q) for p, q in zip(shares[i], shares[j], strict=True)) / 2
            )


def test_labels_dealt_at_random_are_no_further_apart_than_chance_and_clients_of_two_classes_are() -> None:
    alike, _ = label_distance(pflego.load("digits", clients=20, partition="iid"), seed=0)
    assert not alike.real
    assert alike.value == pytest.approx(alike.by_chance, abs=0.03)
    assert alike.value > 0.1  # 72 samples a client: chance alone puts them apart
    apart, _ = label_distance(pflego.load("digits", clients=20, classes_per_client=2), seed=0)
    assert apart.real
    assert apart.value > 0.7


def test_targets_are_compared_as_kolmogorov_and_smirnov_do() -> None:
    generator = np.random.default_rng(0)
    targets = [np.round(generator.normal(mean, 1, size=40), 1).astype(np.float32) for mean in (0.0, 0.5, 3.0)]
    fed = pflego.Federation([pflego.Client(k, np.zeros((40, 2)), y) for k, y in enumerate(targets)])
    expected = [ks_2samp(targets[i], targets[j]).statistic for i, j in ((0, 1), (0, 2), (1, 2))]
    assert label_distance(fed, seed=0)[0].value == pytest.approx(np.mean(expected), abs=0.03)  # 64 cells


def identity(width: int) -> pflego.Model:
    """A backbone that gives its inputs."""
    layer = nn.Linear(width, width)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(width))
        layer.bias.zero_()
    return pflego.Model(layer, features=width)


def shifted(offset: float, *, clients: int = 5, samples: int = 30) -> pflego.Federation:
    """Clients of two classes, whose inputs lie `offset` apart from client to client."""
    generator = np.random.default_rng(0)
    members = []
    for k in range(clients):
        y = np.arange(samples) % 2
        x = generator.normal(size=(samples, 3)) + 4 * y[:, None] + offset * k
        members.append(pflego.Client(k, x.astype(np.float32), y))
    return pflego.Federation(members)


def test_the_shift_of_inputs_is_the_adjusted_share_of_variance() -> None:
    fed = shifted(0.7)
    found = input_shift(fed, identity(3), seed=0)
    assert found is not None
    between = whole = expected = 0.0
    for kind in (0, 1):
        groups = [client.x_train[client.y_train == kind].double().numpy() for client in fed]
        everybody = np.concatenate(groups)
        centre = everybody.mean(axis=0)
        spread = ((everybody - centre) ** 2).sum()
        between += sum(len(own) * ((own.mean(axis=0) - centre) ** 2).sum() for own in groups)
        whole += spread
        expected += spread * (len(groups) - 1) / (len(everybody) - 1)
    assert found.value == pytest.approx((between - expected) / (whole - expected), rel=1e-6)
    assert found.real


def test_inputs_of_clients_that_are_alike_are_not_shifted() -> None:
    found = input_shift(shifted(0.0), identity(3), seed=0)
    assert found is not None
    assert not found.real
    assert abs(found.value) < 0.1
    assert found.by_chance == pytest.approx(0.0, abs=0.02)
    far = input_shift(shifted(50.0), identity(3), seed=0)
    assert far is not None
    assert far.value > 0.99


def test_inputs_cannot_be_compared_where_no_label_is_found_twice() -> None:
    assert input_shift(of_labels([0, 1], [2, 3]), identity(2), seed=0) is None


def test_cosines_are_those_of_numpy() -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 3, 5))
    expected = [[a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for b in second] for a in first]
    assert np.allclose(cosine(first, second), expected)


def regression(targets: list[float]) -> pflego.Federation:
    """Clients that hold one sample four times each, so that both halves of their data are the same."""
    x = np.random.default_rng(1).normal(size=(len(targets), 3)).astype(np.float32)
    return pflego.Federation(
        [
            pflego.Client(k, np.tile(x[k], (4, 1)), np.full(4, target, np.float32))
            for k, target in enumerate(targets)
        ]
    )


def test_agreement_is_the_mean_cosine_of_gradients_computed_by_hand() -> None:
    fed = regression([1.0, 2.0, -1.0])
    head = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
    model = identity(3)
    shared = {**model.weights(), "head": head}
    found = agreement(fed, model, pflego.FedAvg(labels="global"), shared, seed=0)
    assert found is not None
    gradients = []
    for client in fed:
        x, y = client.x_train[0].double().numpy(), float(client.y_train[0])
        w = head[0].double().numpy()
        residual = w[:3] @ x + w[3] - y
        gradients.append(
            np.concatenate(
                [np.outer(residual * w[:3], x).ravel(), residual * w[:3], residual * np.append(x, 1.0)]
            )
        )
    unit = [g / np.linalg.norm(g) for g in gradients]
    expected = np.mean([unit[i] @ unit[j] for i in range(3) for j in range(3) if i != j])
    assert found.between == pytest.approx(expected, abs=1e-5)
    assert found.within == pytest.approx(1.0, abs=1e-5)
    assert found.share == pytest.approx(expected, abs=1e-5)


def test_clients_of_one_sample_have_no_halves() -> None:
    fed = of_labels([0], [1])
    model = identity(2)
    assert agreement(fed, model, pflego.PFLEGO(), model.weights(), seed=0) is None


def test_halves_of_noise_agree_with_nobody() -> None:
    """Where every label is a coin's toss, what a client's halves ask for has nothing in common: no share is given."""
    generator = np.random.default_rng(0)
    fed = pflego.Federation(
        [
            pflego.Client(
                k,
                generator.normal(size=(8, 20)).astype(np.float32),
                generator.permutation(np.arange(8) % 2),
            )
            for k in range(12)
        ]
    )
    model = identity(20)
    found = agreement(fed, model, pflego.PFLEGO(steps=5), model.weights(), seed=0)
    assert found is not None
    assert abs(found.between) < 0.1
    assert abs(found.within) < 0.3


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"partition": "iid"}, ()),
        pytest.param(
            {"partition": "iid", "shift": "rotation", "groups": 4}, ("inputs",), marks=pytest.mark.thorough
        ),
        ({"partition": "iid", "shift": "permutation"}, ("inputs",)),
        pytest.param(
            {"partition": "iid", "shift": "inversion", "groups": 2}, ("inputs",), marks=pytest.mark.thorough
        ),
        pytest.param(
            {"partition": "iid", "shift": "contrast", "groups": 3}, ("inputs",), marks=pytest.mark.thorough
        ),
        ({"partition": "iid", "shift": "labels", "groups": 3}, ("meaning",)),
        ({"partition": "iid", "label_noise": 0.2}, ()),
        ({"classes_per_client": 3}, ("labels",)),
        pytest.param({"partition": "shards"}, ("labels",), marks=pytest.mark.thorough),
        ({"partition": "dirichlet", "alpha": 0.5, "shift": "inversion"}, ("labels", "inputs or meaning")),
        ({"partition": "quantity", "alpha": 0.5}, ("sizes",)),
    ],
    ids=str,
)
def test_kinds_of_difference_are_told_apart(options: dict[str, Any], kinds: tuple[str, ...]) -> None:
    federation = pflego.load("digits", clients=12, seed=1, **options)
    model = pflego.models.build("mlp", (64,))
    labels, interval = label_distance(federation, seed=0)
    found = Differences(
        12,
        labels,
        interval,
        input_shift(federation, model, seed=0),
        input_shift(federation, model, seed=0, by_label=False),
        gini(federation.sizes.tolist()) or 0.0,
        {},
        {},
    )
    assert tuple(kind for kind in found.kinds if kind != "sizes" or "sizes" in kinds) == kinds
