from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.runs.cost import Cost, Energy, measure, median_client

N, D, M, K = 60, 30, 20, 3


@pytest.fixture(scope="module")
def federation() -> pflego.Federation:
    rng = np.random.default_rng(0)
    return pflego.Federation(
        [pflego.Client(i, rng.normal(size=(n, D)).astype(np.float32), np.arange(n) % K) for i, n in
         enumerate([N - 20, N, N + 30])]
    )  # fmt: skip


@pytest.fixture(scope="module")
def model() -> pflego.Model:
    return pflego.Model(nn.Sequential(nn.Linear(D, M), nn.ReLU()), features=M)


def test_operations_are_those_counted_by_hand(federation: pflego.Federation, model: pflego.Model) -> None:
    tau = 7
    one_pass = 2 * N * D * M  # a product; the backward pass has one too: inputs need no gradient
    head = 2 * N * M * K
    bias = 2 * N * K  # the head's column of ones, in the loop
    cost = measure(federation, model, pflego.PFLEGO(steps=tau, client_lr=0.1))
    # the loop, two products a step; then outputs, both gradients, and the outputs once more for the loss
    assert cost.flops == 2 * one_pass + (tau - 1) * 2 * (head + bias) + 4 * head
    cost = measure(federation, model, pflego.FedAvg(steps=tau, client_lr=0.01))
    assert cost.flops == tau * (2 * one_pass + 3 * head)


def test_heads_that_are_modules_are_counted_too(federation: pflego.Federation) -> None:
    backbone = nn.Sequential(nn.Linear(D, M), nn.ReLU())
    model = pflego.Model(backbone, features=M, head=lambda features, outputs: nn.Linear(features, outputs))
    cost = measure(federation, model, pflego.FedAvg(steps=3, client_lr=0.01))
    # a step: two products of the backbone, three of the head (outputs, its gradient and that of the features)
    assert cost.flops == 3 * (2 * 2 * N * D * M + 3 * 2 * N * M * K)


def test_memory_is_the_most_that_is_alive(federation: pflego.Federation, model: pflego.Model) -> None:
    few, many = (
        measure(federation, model, pflego.FedAvg(steps=tau, client_lr=0.01)).memory for tau in (3, 30)
    )
    assert few == many  # what is freed is freed
    activations = 4 * 2 * N * M  # before and after ReLU
    assert activations < few < 10 * activations
    deep = pflego.Model(nn.Sequential(nn.Linear(D, 500), nn.ReLU(), nn.Linear(500, M)), features=M)
    keep, recompute = (
        measure(federation, deep, pflego.PFLEGO(steps=3), slice_size=10, memory=memory).memory
        for memory in ("unlimited", 0)
    )
    assert keep - recompute > 4 * 500 * 25  # the activations of most slices


@pytest.mark.parametrize(
    ("algorithm", "forward", "backward"),
    [
        (pflego.PFLEGO(steps=9), 1, 1),
        (pflego.FedAvg(steps=9, client_lr=0.01), 9, 9),
        (pflego.Ditto(steps=9, client_lr=0.01), 18, 18),
    ],
)
def test_passes_and_bytes(
    federation: pflego.Federation,
    model: pflego.Model,
    algorithm: pflego.Algorithm,
    forward: int,
    backward: int,
) -> None:
    cost = measure(federation, model, algorithm)
    assert (cost.forward_passes, cost.backward_passes, cost.samples) == (forward, backward, N)
    shared = (D + 1) * M + (0 if algorithm.name == "pflego" else K * (M + 1))
    assert cost.bytes_up == cost.bytes_down == 4 * shared
    assert cost.seconds > 0
    assert cost.device == "cpu"


def test_measuring_changes_nothing(federation: pflego.Federation, model: pflego.Model) -> None:
    run = pflego.train(federation, model, pflego.PFLEGO(steps=3), rounds=2)
    shared = {name: w.clone() for name, w in run.shared.items()}
    heads = [run.states[id]["head"].clone() for id in federation.ids]
    cost = run.cost()
    assert cost.flops == measure(federation, model, pflego.PFLEGO(steps=3)).flops
    assert run.cost(2).samples == N + 30
    assert all(torch.equal(run.shared[name], shared[name]) for name in shared)
    assert all(torch.equal(run.states[id]["head"], h) for id, h in zip(federation.ids, heads, strict=True))
    assert len(run.history) == 2


def test_the_median_client(federation: pflego.Federation) -> None:
    assert median_client(federation) == 1


def test_energy_is_operations_and_bytes() -> None:
    cost = Cost(1, 10**9, 1, 1, 0, bytes_down=500_000, bytes_up=500_000, seconds=1.0, device="cpu")
    assert cost.joules() == pytest.approx(0.05 + 1.0)
    assert cost.joules(Energy(1e-12, 0)) == pytest.approx(1e-3)
    assert str(Energy()) == "20 GFLOP a joule, 1 joule a megabyte"
