"""Samples with weights: every method against NumPy float64, and a weight of 2 against the sample twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms import methods
from pflego.learning.gram import Opening
from pflego.learning.heads.linear import plain_loops
from pflego.learning.problem import Speedup
from tests.support.cases import often
from tests.support.reference import (
    algorithm_1,
    assert_follows,
    assert_identical,
    assert_same_weights,
    cohorts,
    world,
)
from tests.support.rivals import assert_at, every_method, of_kind

SEED, R, ROUNDS = 3, 3, 4
CHOSEN = cohorts(pflego.Fixed(R), 5, rounds=ROUNDS, seed=SEED)
TAU, BETA, RHO = 4, 0.15, 0.03
METHODS = every_method(tau=TAU, beta=BETA, rho=RHO, scale=5 / R, seed=SEED)
both_tasks = pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])

# their NumPy twins average by themselves, over samples that all count alike: a weight of 2 is tested below
PLAIN_TWINS = {"feddbe", "moon", "fedproto", "fedpac", "fedrod"}


@both_tasks
@pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])
@pytest.mark.parametrize("exact", [False, True], ids=["paper", "exact"])
def test_pflego_follows_algorithm_1(regression: bool, common: bool, exact: bool) -> None:
    twin = world(regression=regression, weighted=True)
    if common:
        twin.common = np.zeros((twin.federation.outputs, 5))
    run = pflego.train(
        twin.federation,
        twin.model,
        pflego.PFLEGO(
            steps=TAU,
            client_lr=BETA,
            server_lr=RHO,
            server_optimizer="sgd",
            head_init="zeros",
            head_step="exact" if exact else "paper",
            common_head=common,
            head_decay=0.0,
        ),
        rounds=ROUNDS,
        participation=R,
        seed=SEED,
    )
    trace = algorithm_1(twin, CHOSEN, r=R, tau=TAU, beta=BETA, rho=RHO, exact=exact)
    assert_follows(run, twin)
    np.testing.assert_allclose([row["loss"] for row in run.history], trace.losses, rtol=1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - PLAIN_TWINS), "pflego"))
@pytest.mark.parametrize("speedup", ["none", "gram"])
def test_every_method_follows_its_equations(
    name: str, speedup: Speedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opening, "pays", lambda *_: True)
    twin = world(weighted=True)
    run = pflego.train(
        twin.federation,
        twin.model,
        METHODS[name].algorithm,
        rounds=1,
        participation=R,
        seed=SEED,
        speedup=speedup,
    )
    assert_at(run, METHODS[name].play(twin, CHOSEN[:1])[0])


@both_tasks
def test_fedavg_over_several_rounds(regression: bool) -> None:
    twin = world(regression=regression, weighted=True)
    run = pflego.train(
        twin.federation, twin.model, METHODS["fedavg"].algorithm, rounds=ROUNDS, participation=R, seed=SEED
    )
    assert_at(run, METHODS["fedavg"].play(twin, CHOSEN)[0])


def repeated(twin_seed: int = 0) -> tuple[pflego.Federation, pflego.Federation, pflego.Model]:
    """Weights that are whole numbers, and the same samples as often as these say."""
    twin = world(seed=twin_seed)
    rng = np.random.default_rng(5)
    weighted, often = [], []
    for client in twin.federation:
        counts = rng.integers(1, 4, size=len(client.x_train))
        rows = np.repeat(np.arange(len(counts)), counts)
        tests = (client.x_test, client.y_test)
        weighted.append(pflego.Client(client.id, client.x_train, client.y_train, *tests, weights=counts))
        often.append(pflego.Client(client.id, client.x_train[rows], client.y_train[rows], *tests))
    return pflego.Federation(weighted), pflego.Federation(often), twin.model


SETTINGS: dict[str, dict[str, Any]] = {
    "fedala": {"mixing_share": 1.0, "mixing_batch": 1000},
    "fedpac": {"mu": 0.8, "body_steps": 1},
    "fedrep": {"body_steps": 1},
    "feddbe": {"kappa": 2.0},
}


@pytest.mark.parametrize("rate", [BETA, "auto"])
# perfedavg cuts samples in parts; fedpac divides by how many samples tell as much, which copies do not
@pytest.mark.parametrize("name", often(name for name in methods() if name not in ("perfedavg", "fedpac")))
def test_a_weight_of_two_is_the_sample_twice(name: str, rate: float | str) -> None:
    weighted, often, model = repeated()
    np.testing.assert_allclose(weighted.masses, often.sizes)
    algorithm = of_kind(methods()[name], steps=3, client_lr=rate, **SETTINGS.get(name, {}))
    ours, theirs = (
        pflego.train(federation, model, algorithm, rounds=2, participation=4, seed=SEED)
        for federation in (weighted, often)
    )
    assert_same_weights(ours.shared, theirs.shared, within=1e-8)
    for client in weighted.ids:
        assert_same_weights(ours.states[client], theirs.states[client], within=1e-8)
    for mine, other in zip(ours.history, theirs.history, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-8)
        assert mine["participants_accuracy"] == other["participants_accuracy"]


VARIANTS: dict[str, pflego.Algorithm] = {
    "solved": pflego.PFLEGO(head_optimizer="solve", head_decay=0.1),
    "solved and common": pflego.PFLEGO(head_optimizer="solve", head_decay=0.1, common_head=True),
    "several passes": pflego.PFLEGO(steps=3, passes=3),
    "rates from theory": pflego.PFLEGO(steps=3, client_lr="auto", server_lr="auto", server_optimizer="sgd"),
    "momentum": pflego.PFLEGO(steps=3, head_optimizer="momentum", client_lr=0.05),
    "adam": pflego.PFLEGO(steps=3, head_optimizer="adam", client_lr=0.01),
    "fedrod, generic": pflego.FedRoD(steps=3, serve="generic"),
    "fedavg, decaying": pflego.FedAvg(steps=3, weight_decay=0.1, momentum=0.5),
}


@pytest.mark.parametrize("name", often(VARIANTS, "solved and common", "several passes"))
def test_variants_take_a_weight_of_two_as_the_sample_twice(name: str) -> None:
    weighted, often, model = repeated()
    ours, theirs = (
        pflego.train(federation, model, VARIANTS[name], rounds=2, seed=SEED)
        for federation in (weighted, often)
    )
    assert_same_weights(ours.shared, theirs.shared, within=1e-8)
    for client in weighted.ids:
        assert_same_weights(ours.states[client], theirs.states[client], within=1e-8)


@pytest.mark.parametrize("name", often(methods(), "pflego"))
def test_every_method_trains_on_batches_in_single_precision(name: str) -> None:
    twin = world(dtype=torch.float32, weighted=True)
    settings = {"steps": 2, "batch_size": 4, **SETTINGS.get(name, {})}
    algorithm = of_kind(methods()[name], **settings)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=2, seed=SEED, evaluate_every=1)
    assert all(np.isfinite(float(row["loss"] or 0)) for row in run.history)
    assert run.history[-1]["everyone_accuracy"] is not None


def test_weights_of_one_change_nothing_but_the_way() -> None:
    """Only a federation with weights leaves the compiled loops, and to the same place."""
    twin = world(dtype=torch.float32)
    ones = pflego.Federation(
        [
            pflego.Client(c.id, c.x_train, c.y_train, c.x_test, c.y_test, weights=np.full(len(c.x_train), 7))
            for c in twin.federation
        ]
    )
    plain = pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=2, seed=SEED)
    again = pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=2, seed=SEED)
    assert_identical(plain, again)
    with plain_loops():
        weighted = pflego.train(ones, twin.model, pflego.PFLEGO(), rounds=2, seed=SEED)
    assert_same_weights(weighted.shared, plain.shared, within=1e-5)


def test_who_counts_how_much() -> None:
    """By samples, clients count by the sums of their weights; equally, all alike."""
    twin = world(weighted=True)
    by_samples, equal = (
        pflego.train(
            twin.federation,
            twin.model,
            pflego.FedSGD(client_lr=BETA, labels="local", head_init="zeros"),
            rounds=1,
            weighting=weighting,
            seed=SEED,
        )
        for weighting in ("samples", "equal")
    )
    fedsgd = METHODS["fedsgd"]
    assert_at(by_samples, fedsgd.play(twin, [range(5)])[0])
    assert_at(equal, fedsgd.play(twin, [range(5)], counts=[1.0] * 5)[0])
