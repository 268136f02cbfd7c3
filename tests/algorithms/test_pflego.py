from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.round import Round
from pflego.federation.draws import Equal
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.weights import Weights
from tests.support.reference import (
    World,
    algorithm_1,
    assert_follows,
    cohorts,
    distance,
    gradients,
    loss,
    world,
)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exact_mode_is_centralised_gradient_descent(dtype: torch.dtype, regression: bool) -> None:
    twin = world(dtype=dtype, regression=regression)
    algorithm = pflego.PFLEGO(steps=1, server_lr=0.3, server_optimizer="sgd", head_step="exact")
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=20, participation=pflego.Everyone())

    for _ in range(20):  # gradient descent on sum_i alpha_i l_i, all parameters at once
        parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
        twin.net.V = twin.net.V - 0.3 * sum(a * g[0] for a, g in zip(twin.alphas, parts, strict=True))
        twin.net.v = twin.net.v - 0.3 * sum(a * g[1] for a, g in zip(twin.alphas, parts, strict=True))
        twin.heads = [W - 0.3 * a * g[2] for W, a, g in zip(twin.heads, twin.alphas, parts, strict=True)]
    assert_follows(run, twin, TOLERANCE[dtype])


@pytest.mark.parametrize("server_optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("head_step", ["paper", "exact"])
@pytest.mark.parametrize(
    "participation",
    [pflego.Fixed(2), pflego.Binomial(0.3), pflego.Between(1, 4), pflego.Everyone()],
    ids=str,
)
def test_rounds_follow_algorithm_1(participation: Equal, head_step: str, server_optimizer: str) -> None:
    twin = world()
    algorithm = pflego.PFLEGO(
        steps=5,
        client_lr=0.2,
        server_lr=0.05,
        server_optimizer=server_optimizer,
        head_step=head_step,  # type: ignore[arg-type]
    )
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=15, participation=participation, seed=3)
    trace = algorithm_1(
        twin,
        cohorts(participation, 5, rounds=15, seed=3),
        r=participation.expected(5),
        tau=5,
        beta=0.2,
        rho=0.05,
        adam=server_optimizer == "adam",
        exact=head_step == "exact",
    )
    assert_follows(run, twin, 1e-10)
    assert [row["loss"] for row in run.history] == [
        None if value is None else pytest.approx(value, rel=1e-10) for value in trace.losses
    ]
    for row in run.history:
        assert (row["participants_accuracy"] is None) == (row["participants"] == 0)


def test_float32_follows_algorithm_1_to_rounding() -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=5, client_lr=0.2, server_lr=0.05, server_optimizer="sgd")
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=20, participation=2, seed=1)
    algorithm_1(twin, cohorts(pflego.Fixed(2), 5, rounds=20, seed=1), r=2, tau=5, beta=0.2, rho=0.05)
    assert_follows(run, twin, 1e-5)


def test_with_everyone_the_loss_is_the_whole_federations() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=3), rounds=1)
    heads = [run.states[id]["head"].numpy() for id in twin.federation.ids]
    expected = sum(
        a * loss(twin.net, W, site) for a, W, site in zip(twin.alphas, heads, twin.sites, strict=True)
    )
    assert run.history[0]["loss"] == pytest.approx(expected, rel=1e-12)


def stochastic_gradient(twin: World, chosen: tuple[int, ...], expected: float) -> dict[str, torch.Tensor]:
    """One step of rate 1 in exact mode, without head steps before it: what moves is the gradient."""
    algorithm = pflego.PFLEGO(steps=1, server_lr=1.0, server_optimizer="sgd", head_step="exact")
    shared = twin.model.weights()
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    moved = {str(client): torch.zeros_like(state["head"]) for client, state in states.items()}
    played = Exchange.of(algorithm, twin.federation.sizes, expected=expected).play(
        LocalEngine(Problems(twin.federation, twin.model), algorithm, states),
        1,
        shared,
        {},
        chosen,
        ids=twin.federation.ids,
        keep=lambda changed: None,
    )
    moved |= {str(client): states[client]["head"] - state["head"] for client, state in played.states.items()}
    return {**moved, **{name: shared[name] - played.shared[name] for name in shared}}


@pytest.mark.parametrize("process", ["fixed", "binomial"])
def test_the_stochastic_gradient_is_unbiased(process: str) -> None:
    twin = world(clients=5)
    twin.random_heads()
    if process == "fixed":
        expected = 2.0
        cohorts: dict[tuple[int, ...], float] = {c: 0.1 for c in combinations(range(5), 2)}  # noqa: C420
    else:
        expected = 5 * 0.3
        cohorts = {
            c: 0.3 ** len(c) * 0.7 ** (5 - len(c)) for k in range(6) for c in combinations(range(5), k)
        }
    assert sum(cohorts.values()) == pytest.approx(1)
    mean: dict[str, torch.Tensor] = {}
    for chosen, probability in cohorts.items():
        for name, moved in stochastic_gradient(twin, chosen, expected).items():
            mean[name] = mean.get(name, torch.zeros(())) + probability * moved

    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    full = list(zip(twin.alphas, parts, strict=True))
    assert distance(mean["0.weight"], np.asarray(sum(a * g[0] for a, g in full))) < 1e-12
    assert distance(mean["0.bias"], np.asarray(sum(a * g[1] for a, g in full))) < 1e-12
    for i, (a, g) in enumerate(full):
        assert distance(mean[f"c{i}"], a * g[2]) < 1e-12


def test_passes_do_not_depend_on_tau() -> None:
    twin = world()
    calls = {"forward": 0, "backward": 0}

    def count_backward(_: torch.Tensor) -> None:
        calls["backward"] += 1

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = twin.model.backbone

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls["forward"] += 1
            y: torch.Tensor = self.inner(x)
            if y.requires_grad:
                y.register_hook(count_backward)  # type: ignore[no-untyped-call]
            return y

    seen = []
    for tau in (2, 100):
        model = pflego.Model(Counting(), features=4)
        run = pflego.train(twin.federation, model, pflego.PFLEGO(steps=tau), rounds=3, evaluate_every=0)
        assert [(row["forward_passes"], row["backward_passes"]) for row in run.history] == [(1, 1)] * 3
        seen.append(dict(calls))
        calls.update(forward=0, backward=0)
    assert seen[0] == seen[1]
    assert seen[0]["backward"] == 3 * len(twin.federation)


def test_heads_start_as_asked() -> None:
    twin = world()
    [chosen] = cohorts(pflego.Fixed(1), 5, rounds=1, seed=0)
    unseen = [id for position, id in enumerate(twin.federation.ids) if position not in chosen]
    for how, expected in [("zeros", 0.0), (lambda rows, columns, _: torch.full((rows, columns), 0.5), 0.5)]:
        algorithm = pflego.PFLEGO(head_init=how)  # type: ignore[arg-type]
        run = pflego.train(twin.federation, twin.model, algorithm, rounds=1, participation=1)
        assert all((run.states[id]["head"] == expected).all() for id in unseen)
    run = pflego.train(
        twin.federation, twin.model, pflego.PFLEGO(head_init="uniform"), rounds=1, participation=1
    )
    heads = torch.cat([run.states[id]["head"].flatten() for id in unseen])
    assert 0 <= heads.min() < 0.2
    assert 0.8 < heads.max() < 1
    assert len(torch.unique(heads)) == len(heads)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"client_lr": 0.0},
        {"client_lr": -0.1},
        {"server_lr": 0},
        {"server_lr": float("nan")},
        {"server_optimizer": "adm"},
        {"head_step": "approximate"},
        {"head_init": "ones"},
    ],
    ids=str,
)
def test_wrong_hyperparameters_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(pflego.SettingError, match=next(iter(wrong))):
        pflego.PFLEGO(**wrong)  # type: ignore[arg-type]


def test_only_thetas_gradient_leaves_the_client() -> None:
    twin = world()
    problem = Problems(twin.federation, twin.model)[0]
    algorithm = pflego.PFLEGO()
    state = algorithm.init_state(problem, 0)
    update = algorithm.client_update(Round(1), twin.model.weights(), state, problem)
    assert update.contribution.keys() == {"0.weight", "0.bias"}


def test_a_backbone_without_weights_leaves_only_heads() -> None:
    twin = world()
    model = pflego.Model(nn.Identity(), features=6)
    run = pflego.train(twin.federation, model, pflego.PFLEGO(), rounds=3)
    assert run.shared == {}
    assert run.history[-1]["bytes_up"] == 0
    assert (run.history[-1]["loss"] or 1) < 0.7


def test_adapting_takes_the_head_steps_and_stores_nothing() -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=30, client_lr=0.3)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=2, participation=1)
    before = {id: run.states[id]["head"].clone() for id in run.states}
    adapted = run.evaluate(adapt=True)
    assert all(torch.equal(before[id], run.states[id]["head"]) for id in before)
    net = twin.net
    net.V, net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
    for row, site in zip(adapted, twin.sites, strict=True):
        W = before[row["id"]].numpy()
        for _ in range(29):
            W = W - 0.3 * gradients(net, W, site)[2]
        test = type(site)(site.x[:4], site.t[:4])
        assert row["loss"] == pytest.approx(loss(net, W, test), rel=1e-9)
