"""PFLEGO(common_head=True): outputs (W_0 + V_i) phi, with W_0 shared and V_i personal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms.base import Round
from pflego.participation import Participation, cohort
from pflego.problem import Problems
from tests.reference import Adam, World, distance, gradients, loss, world


def rows_of(twin: World, i: int) -> list[int]:
    """Which of W_0's rows belong to a client."""
    everybodys = twin.federation.classes or [0]
    return [everybodys.index(c) for c in twin.federation[i].classes.tolist()] or [0]


def common_head_sgd(
    twin: World,
    participation: Participation,
    *,
    rounds: int,
    seed: int,
    tau: int,
    beta: float,
    rho: float,
    adam: bool,
    decay: float = 0.0,
) -> tuple[np.ndarray, list[float]]:
    """Head steps on V_i, then one joint step on {theta, W_0, V_i}, in NumPy. V_i are left in twin.heads."""
    clients = len(twin.sites)
    scale = clients / participation.expected(clients)
    W0 = np.zeros((twin.federation.outputs, 5))
    optimizers = {name: Adam(rho) for name in ("V", "v", "W0")}
    losses = []
    for t in range(1, rounds + 1):
        chosen = cohort(participation, clients, seed=seed, round=t)
        dV, dv, dW0 = np.zeros_like(twin.net.V), np.zeros_like(twin.net.v), np.zeros_like(W0)
        total, value = sum(twin.sites[i].n for i in chosen), 0.0
        for i in chosen:
            site, alpha, rows = twin.sites[i], twin.alphas[i], rows_of(twin, i)
            own = twin.heads[i]
            for _ in range(tau - 1):
                own = own - beta * (gradients(twin.net, W0[rows] + own, site)[2] + decay * own)
            gV, gv, gW = gradients(twin.net, W0[rows] + own, site)
            twin.heads[i] = own - rho * scale * alpha * (gW + decay * own)
            value += site.n / total * loss(twin.net, W0[rows] + twin.heads[i], site)
            dV, dv = dV + scale * alpha * gV, dv + scale * alpha * gv
            dW0[rows] += scale * alpha * gW
        losses.append(value)
        steps = {"V": (twin.net.V, dV), "v": (twin.net.v, dv), "W0": (W0, dW0)}
        new = {k: optimizers[k].step(w, g) if adam else w - rho * g for k, (w, g) in steps.items()}
        twin.net.V, twin.net.v, W0 = new["V"], new["v"], new["W0"]
    return W0, losses


def assert_same(run: pflego.Run, twin: World, W0: np.ndarray, tolerance: float) -> None:
    assert distance(run.shared["0.weight"], twin.net.V) < tolerance
    assert distance(run.shared["0.bias"], twin.net.v) < tolerance
    assert distance(run.shared["head"], W0) < tolerance
    for i, own in enumerate(twin.heads):
        assert distance(run.states[f"c{i}"]["head"], own) < tolerance


@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
def test_exact_mode_is_centralised_gradient_descent(
    dtype: torch.dtype, tolerance: float, regression: bool
) -> None:
    twin = world(dtype=dtype, regression=regression)
    algorithm = pflego.PFLEGO(
        steps=1, server_lr=0.3, server_optimizer="sgd", head_step="exact", common_head=True, head_decay=0.0
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=20)
    W0, _ = common_head_sgd(twin, pflego.Everyone(), rounds=20, seed=0, tau=1, beta=0, rho=0.3, adam=False)
    assert_same(run, twin, W0, tolerance)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
def test_rounds_with_some_clients_follow_the_equations(adam: bool, decay: float) -> None:
    twin = world()
    algorithm = pflego.PFLEGO(
        steps=5,
        client_lr=0.2,
        server_lr=0.05,
        server_optimizer="adam" if adam else "sgd",
        head_step="exact",
        common_head=True,
        head_decay=decay,
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=15, participation=2, seed=3)
    W0, losses = common_head_sgd(
        twin, pflego.Fixed(2), rounds=15, seed=3, tau=5, beta=0.2, rho=0.05, adam=adam, decay=decay
    )
    assert_same(run, twin, W0, 1e-9)
    assert [row["loss"] for row in run.history] == pytest.approx(losses, rel=1e-9)


def test_a_client_is_judged_with_the_sum_of_both_parts() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=5, common_head=True), rounds=5)
    V, v, W0 = (run.shared[name].numpy() for name in ("0.weight", "0.bias", "head"))
    for i, row in enumerate(run.evaluate()):
        client, W = twin.federation[i], W0[rows_of(twin, i)] + run.states[f"c{i}"]["head"].numpy()
        z = np.tanh(client.x_test.numpy() @ V.T + v) @ W[:, :-1].T + W[:, -1]
        predicted = client.classes.numpy()[z.argmax(axis=1)]
        assert row["accuracy"] == (predicted == client.y_test.numpy()).mean()
        assert run.personal_model(client.id).predict(client.x_test).tolist() == predicted.tolist()


def test_the_message_shows_only_rows_of_the_clients_own_classes() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=3, common_head=True)
    problem = Problems(twin.federation, twin.model)[1]
    shared = algorithm.init_shared(twin.model, twin.federation.outputs, seed=0)
    round = Round(1, clients=5, expected=5, samples=twin.federation.samples, selected=5)
    update = algorithm.client_update(round, shared, algorithm.init_state(problem, 0), problem)
    assert update.message.keys() == {"0.weight", "0.bias", "head"}
    touched = update.message["head"].abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == rows_of(twin, 1)


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
    assert (plain.server_lr, plain.head_decay) == (0.003, 0.0)
    assert (common.server_lr, common.head_decay) == (0.002, 0.1)
    assert pflego.PFLEGO(common_head=True, server_lr=0.01, head_decay=0.0).settings()["server_lr"] == 0.01
    assert common.settings()["head_decay"] == 0.1
