"""PFLEGO(common_head=True): outputs (W_0 + V_i) phi, with W_0 shared and V_i personal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from tests.support.reference import World, algorithm_1, assert_follows, cohorts, distance, world


def beside_a_common_head(twin: World) -> World:
    twin.common = np.zeros((twin.federation.outputs, 5))
    return twin


@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_exact_mode_is_centralised_gradient_descent(
    dtype: torch.dtype, tolerance: float, regression: bool
) -> None:
    twin = beside_a_common_head(world(dtype=dtype, regression=regression))
    algorithm = pflego.PFLEGO(
        steps=1,
        server_lr=0.3,
        server_optimizer="sgd",
        head_step="exact",
        common_head=True,
        head_decay=0.0,
        head_init="zeros",
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=20)
    algorithm_1(twin, [range(5)] * 20, r=5, tau=1, beta=0, rho=0.3, exact=True)
    assert_follows(run, twin, tolerance)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
def test_rounds_with_some_clients_follow_the_equations(adam: bool, decay: float) -> None:
    twin = beside_a_common_head(world())
    algorithm = pflego.PFLEGO(
        steps=5,
        client_lr=0.2,
        server_lr=0.05,
        server_optimizer="adam" if adam else "sgd",
        head_step="exact",
        common_head=True,
        head_decay=decay,
        head_init="zeros",
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=15, participation=2, seed=3)
    chosen = cohorts(pflego.Fixed(2), 5, rounds=15, seed=3)
    trace = algorithm_1(twin, chosen, r=2, tau=5, beta=0.2, rho=0.05, adam=adam, exact=True, decay=decay)
    assert_follows(run, twin, 1e-9)
    assert [row["loss"] for row in run.history] == pytest.approx(trace.losses, rel=1e-9)


def test_a_client_is_judged_with_the_sum_of_both_parts() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=5, common_head=True), rounds=5)
    V, v, W0 = (run.shared[name].numpy() for name in ("0.weight", "0.bias", "head"))
    for i, row in enumerate(run.evaluate()):
        client, W = twin.federation[i], W0[twin.rows(i)] + run.states[f"c{i}"]["head"].numpy()
        z = np.tanh(client.x_test.numpy() @ V.T + v) @ W[:, :-1].T + W[:, -1]
        predicted = client.classes.numpy()[z.argmax(axis=1)]
        assert row["accuracy"] == (predicted == client.y_test.numpy()).mean()
        assert run.personal_model(client.id).predict(client.x_test).tolist() == predicted.tolist()


def test_a_contribution_shows_only_rows_of_the_clients_own_classes() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=3, common_head=True)
    problem = Problems(twin.federation, twin.model)[1]
    shared = algorithm.init_shared(twin.model, twin.federation.outputs, seed=0)
    now = Round(1, alpha=twin.alphas[1])
    update = algorithm.client_update(now, shared, algorithm.init_state(problem, 0), problem)
    assert update.contribution.keys() == {"0.weight", "0.bias", "head"}
    touched = update.contribution["head"].abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == twin.rows(1)


def test_a_common_head_starts_as_asked_and_personal_parts_at_zero() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(common_head=True, head_init="uniform")
    shared = algorithm.init_shared(twin.model, 6, seed=1)
    assert shared["head"].shape == (6, 5)
    assert 0 <= shared["head"].min() < shared["head"].max() < 1
    assert (algorithm.init_state(Problems(twin.federation, twin.model)[0], 1)["head"] == 0).all()


def test_centred_is_the_papers_start_to_a_softmax_and_nothing_where_there_is_one_output() -> None:
    twin = world()
    runs = [
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(common_head=True, head_init=how), rounds=5)
        for how in ("uniform", "centred")
    ]
    theirs, ours = (run.shared for run in runs)
    for name in ("0.weight", "0.bias"):
        assert distance(ours[name], theirs[name].numpy()) < 1e-9
    apart = theirs["head"] - ours["head"]
    assert torch.allclose(apart, apart[:1], atol=1e-9)
    assert apart.abs().min() > 0.1
    algorithm = pflego.PFLEGO(common_head=True, head_init="centred")
    assert (algorithm.init_shared(twin.model, 1, seed=1)["head"] == 0).all()


def test_a_common_head_has_defaults_of_its_own() -> None:
    plain, common = pflego.PFLEGO(), pflego.PFLEGO(common_head=True)
    assert (plain.client_lr, plain.server_lr, plain.head_decay, plain.head_init) == (
        "centred",
        0.003,
        0.0,
        "zeros",
    )
    assert (common.client_lr, common.server_lr, common.head_decay, common.head_init) == (
        *("auto", 0.002),
        *(0.1, "centred"),
    )
    assert pflego.PFLEGO(common_head=True, head_init="zeros").head_init == "zeros"
    assert pflego.PFLEGO(common_head=True, server_lr=0.01, head_decay=0.0).settings()["server_lr"] == 0.01
    assert common.settings()["head_decay"] == 0.1
