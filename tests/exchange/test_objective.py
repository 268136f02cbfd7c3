"""What is minimised instead of the mean loss, against centralised gradient descent on it in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.local import LocalEngine
from pflego.exchange.objective import Emphasis, Objective, nearest_on_simplex, objective_of
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.runs.plan import Plan
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.reference import (
    F64,
    Net,
    Params,
    Site,
    StopAfter,
    World,
    assert_follows,
    assert_identical,
    distance,
    gradients,
    loss,
    world,
)
from tests.support.rivals import assert_weights, global_sites, grad

RHO, ROUNDS = 0.2, 15
OBJECTIVES: list[Objective] = [pflego.QFair(2.0), pflego.CVaR(0.3, rate=0.3), pflego.Agnostic(0.2)]


def gradient_descent(**options: object) -> pflego.PFLEGO:
    return pflego.PFLEGO(steps=1, server_lr=RHO, server_optimizer="sgd", head_step="exact", **options)  # type: ignore[arg-type]


def losses(twin: World) -> F64:
    return np.array([loss(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)])


def descend(twin: World, factors: F64) -> None:
    """One step of rate RHO along sum_i a_i factor_i grad l_i, in theta and all heads."""
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    counts = np.array(twin.alphas) * factors
    dV = sum(c * part[0] for c, part in zip(counts, parts, strict=True))
    dv = sum(c * part[1] for c, part in zip(counts, parts, strict=True))
    twin.heads = [W - RHO * c * part[2] for W, c, part in zip(twin.heads, counts, parts, strict=True)]
    twin.net = Net(twin.net.V - RHO * dV, twin.net.v - RHO * dv)


def simplex(point: F64) -> F64:
    """The nearest point of the simplex, by bisection on the shift."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.asarray(np.maximum(point - low, 0))


def centralised(twin: World, objective: Objective, rounds: int) -> float | F64 | None:
    """Gradient descent on F with all data in one place; give eta or lambda, where F has one."""
    alphas, eta, worst = np.array(twin.alphas), 0.0, np.array(twin.alphas)
    for _ in range(rounds):
        own = losses(twin)
        match objective:
            case pflego.QFair(q):
                descend(twin, own**q)
            case pflego.CVaR(tail, rate):
                above = own > eta
                descend(twin, above / tail)
                eta -= rate * (1 - (alphas * above).sum() / tail)
            case pflego.Agnostic(rate):
                descend(twin, worst / alphas)
                worst = simplex(worst + rate * own)
    return {pflego.CVaR: eta, pflego.Agnostic: worst}.get(type(objective))  # type: ignore[return-value]


def train(twin: World, algorithm: pflego.Algorithm, objective: object, **options: object) -> Run:
    return pflego.train(
        twin.federation,
        twin.model,
        algorithm,
        objective=objective,  # type: ignore[arg-type]
        **{"rounds": ROUNDS, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_with_everyone_training_is_gradient_descent_on_the_objective(objective: Objective) -> None:
    twin = world()
    run = train(twin, gradient_descent(), objective)
    centralised(twin, objective, ROUNDS)
    assert_follows(run, twin)
    plain = train(world(), gradient_descent(), None)
    moved = (plain.shared["0.weight"] - run.shared["0.weight"]).norm() / run.shared["0.weight"].norm()
    assert moved > 1e-4
    assert [row["joint_loss"] is not None for row in run.history] == [True] * ROUNDS
    assert "joint_loss" not in plain.history[0]


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        (pflego.QFair(2.0), lambda own, alphas, eta: (alphas * own**3).sum() / 3),
        (
            pflego.CVaR(0.3),
            lambda own, alphas, eta: eta + (alphas * np.maximum(own - eta, 0)).sum() / 0.3,
        ),
    ],
    ids=["qfair", "cvar"],
)
def test_the_factors_are_the_derivatives_of_the_objective(
    objective: Objective, value: Callable[[F64, F64, float], float]
) -> None:
    """By central differences of F in one number of theta and one of a head."""
    twin = world()
    twin.random_heads()
    alphas, own = np.array(twin.alphas), losses(twin)
    eta = float(np.median(own)) + 1e-3
    state = {"eta": torch.tensor(eta, dtype=torch.float64)}
    emphases = objective.emphases(state, range(5), alphas)
    factors = [emphasis.factor(at) for emphasis, at in zip(emphases, own, strict=True)]
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    chosen = int(np.argmax(own))
    for array, slope in [
        (twin.net.V, sum(a * f * part[0][1, 2] for a, f, part in zip(alphas, factors, parts, strict=True))),
        (twin.heads[chosen], alphas[chosen] * factors[chosen] * parts[chosen][2][1, 2]),
    ]:
        ends = []
        for h in (1e-5, -1e-5):
            array[1, 2] += h
            ends.append(value(losses(twin), alphas, eta))
            array[1, 2] -= h
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def played(twin: World, plan: Plan, chosen: list[int], server: Weights) -> tuple[dict[str, F64], Weights]:
    """How far one round of a cohort moves everything, and what the server keeps after it."""
    algorithm = gradient_descent()
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    engine = LocalEngine(Problems(twin.federation, twin.model), algorithm, states)
    shared = twin.model.weights()
    came = plan.exchange(algorithm, twin.federation).play(
        engine, 1, shared, server, chosen, ids=twin.federation.ids, keep=lambda changed: None
    )
    moved = {name: (shared[name] - came.shared[name]).numpy() for name in shared}
    moved |= {str(id): (states[id]["head"] - new["head"]).numpy() for id, new in came.states.items()}
    return moved, came.server


@pytest.mark.parametrize(
    ("objective", "server"),
    [
        (pflego.QFair(2.0), {}),
        (pflego.CVaR(0.3, rate=0.3), {"objective/eta": torch.tensor(1.4, dtype=torch.float64)}),
        (
            pflego.Agnostic(0.01),
            {"objective/lambda": torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64)},
        ),
    ],
    ids=["qfair", "cvar", "agnostic"],
)
def test_over_all_cohorts_the_step_is_the_objectives_gradient(objective: Objective, server: Weights) -> None:
    """Enumerated, with chances that differ: theta, heads, eta and, as long as all are above 0, lambda."""
    twin = world(clients=4)
    twin.random_heads()
    chances = {f"c{i}": p for i, p in enumerate([0.9, 0.35, 0.5, 1.0])}
    plan = Plan(rounds=1, participation=pflego.Independent(chances), objective=objective)
    mean: dict[str, F64] = {}
    for there in product([False, True], repeat=4):
        probability = prod(p if comes else 1 - p for p, comes in zip(chances.values(), there, strict=True))
        if not probability:
            continue
        moved, kept = played(twin, plan, [i for i in range(4) if there[i]], dict(server))
        for name, step in {**moved, **{n: t.numpy() for n, t in kept.items()}}.items():
            mean[name] = mean.get(name, np.zeros(())) + probability * step

    own, alphas = losses(twin), np.array(twin.alphas)
    before = World(twin.federation, twin.model, twin.net, twin.sites, list(twin.heads))
    match objective:
        case pflego.QFair(q):
            descend(twin, own**q)
        case pflego.CVaR(tail, rate):
            assert 0 < (own > 1.4).sum() < 4
            descend(twin, (own > 1.4) / tail)
            eta = 1.4 - rate * (1 - (alphas * (own > 1.4)).sum() / tail)
            assert mean["objective/eta"] == pytest.approx(eta, rel=1e-12)
        case pflego.Agnostic(rate):
            worst = server["objective/lambda"].numpy()
            descend(twin, worst / alphas)
            np.testing.assert_allclose(mean["objective/lambda"], simplex(worst + rate * own), rtol=1e-12)
    np.testing.assert_allclose(mean["0.weight"], before.net.V - twin.net.V, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(mean["0.bias"], before.net.v - twin.net.v, rtol=1e-9, atol=1e-14)
    for i in range(4):
        np.testing.assert_allclose(mean[f"c{i}"], before.heads[i] - twin.heads[i], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("common", [False, True])
def test_a_decay_is_part_of_the_loss_whose_power_counts(common: bool) -> None:
    """F = sum_i a_i (l_i(W_0 + V_i) + lambda/2 |V_i|^2)^3 / 3, with and without W_0."""
    twin, decay = world(), 0.3
    twin.random_heads(0.5)
    algorithm = gradient_descent(head_decay=decay, common_head=common, head_init="zeros")
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    problems = Problems(twin.federation, twin.model)
    shared = algorithm.init_shared(twin.model, problems.outputs, 0)
    plan = Plan(rounds=1, objective=pflego.QFair(2.0))
    came = plan.exchange(algorithm, twin.federation).play(
        LocalEngine(problems, algorithm, states), 1, shared, {}, range(5), ids=twin.federation.ids,
        keep=lambda changed: None,
    )  # fmt: skip
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    whole = losses(twin) + decay / 2 * np.array([(W**2).sum() for W in twin.heads])
    counts = np.array(twin.alphas) * whole**2
    dV = sum(c * part[0] for c, part in zip(counts, parts, strict=True))
    np.testing.assert_allclose(came.shared["0.weight"].numpy(), twin.net.V - RHO * dV, rtol=1e-11)
    for i, (W, part) in enumerate(zip(twin.heads, parts, strict=True)):
        head = W - RHO * counts[i] * (part[2] + decay * W)
        np.testing.assert_allclose(came.states[f"c{i}"]["head"].numpy(), head, rtol=1e-11)
    if common:
        dW = np.zeros(shared["head"].shape)
        for i, part in enumerate(parts):
            dW[twin.rows(i)] += counts[i] * part[2]
        np.testing.assert_allclose(came.shared["head"].numpy(), -RHO * dW, rtol=1e-10)


def test_of_heads_that_are_solved_for_the_objective_is_one_of_theta_alone() -> None:
    """d/dtheta of sum_i a_i m_i^2 / 2, m_i the minimum over heads, by central differences."""
    twin, decay = world(), 0.2
    algorithm = pflego.PFLEGO(head_optimizer="solve", head_decay=decay, server_lr=1.0, server_optimizer="sgd")
    run = train(twin, algorithm, pflego.QFair(1.0), rounds=1)
    moved = twin.net.V - run.shared["0.weight"].numpy()
    problems = Problems(twin.federation, twin.model)

    def value() -> float:
        shared = {"0.weight": torch.from_numpy(twin.net.V), "0.bias": torch.from_numpy(twin.net.v)}
        heads = [algorithm.heads.whole(shared, {}, problems[i])["head"].numpy() for i in range(5)]
        minima = [
            loss(twin.net, W, site) + decay / 2 * (W**2).sum()
            for W, site in zip(heads, twin.sites, strict=True)
        ]
        return float((np.array(twin.alphas) * np.square(minima)).sum() / 2)

    for place in [(0, 0), (2, 3)]:
        ends = []
        for h in (1e-5, -1e-5):
            twin.net.V[place] += h
            ends.append(value())
            twin.net.V[place] -= h
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(moved[place], rel=1e-5)


def test_a_personal_part_of_the_backbone_takes_the_objectives_step_too() -> None:
    """A bias v_i for each: twelve rounds of gradient descent on F in V, v_i and W_i."""
    twin = world()
    model = pflego.Model(twin.model.backbone, features=4, personal="0.bias")
    run = pflego.train(twin.federation, model, gradient_descent(), rounds=12, objective=pflego.QFair(2.0))
    V, biases = twin.net.V, [twin.net.v] * 5
    for _ in range(12):
        slope = np.zeros_like(V)
        for i, (alpha, site) in enumerate(zip(twin.alphas, twin.sites, strict=True)):
            net, W = Net(V, biases[i]), twin.heads[i]
            counts, (dV, dv, dW) = alpha * loss(net, W, site) ** 2, gradients(net, W, site)
            slope = slope + counts * dV
            biases[i] = biases[i] - RHO * counts * dv
            twin.heads[i] = W - RHO * counts * dW
        V = V - RHO * slope
    assert distance(run.shared["0.weight"], V) < 1e-12
    for i, (bias, W) in enumerate(zip(biases, twin.heads, strict=True)):
        assert distance(run.states[f"c{i}"]["0.bias"], bias) < 1e-12
        assert distance(run.states[f"c{i}"]["head"], W) < 1e-12
        assert np.abs(bias - twin.net.v).max() > 1e-5


def test_q_of_0_and_a_tail_of_1_are_the_mean_loss() -> None:
    plain = train(world(), gradient_descent(), None)
    for objective in (pflego.QFair(0.0), pflego.CVaR(1.0, rate=1e-9), pflego.Agnostic(0.0)):
        run = train(world(), gradient_descent(), objective)
        for name, tensor in plain.shared.items():
            torch.testing.assert_close(run.shared[name], tensor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("objective", often(OBJECTIVES), ids=str)
def test_rates_from_the_theory_go_downhill_on_the_objective(objective: Objective) -> None:
    """With everyone and 1/L of F, F falls in every round that has a rate; Agnostic's lambda stays where it is."""
    if isinstance(objective, pflego.Agnostic):
        objective = pflego.Agnostic(0.0)
    if isinstance(objective, pflego.CVaR):
        objective = pflego.CVaR(0.3, rate=1e-12)  # eta stays at 0, where F is smooth
    twin = world()
    twin.random_heads(3.0)
    algorithm = pflego.PFLEGO(
        steps=1, server_lr="auto", server_optimizer="sgd", head_step="exact", head_init="uniform"
    )
    values: list[float] = []

    class Watch(pflego.Callback):
        def on_round(self, run: Run, row: object) -> None:
            net = Net(run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy())
            own = np.array(
                [loss(net, run.states[f"c{i}"]["head"].numpy(), s) for i, s in enumerate(twin.sites)]
            )
            power = 3.0 if isinstance(objective, pflego.QFair) else 1.0
            values.append(float((np.array(twin.alphas) * own**power).sum()))

    train(twin, algorithm, objective, rounds=25, callbacks=[Watch()])
    assert all(after < before for before, after in pairwise(values[1:]))


def test_the_smoothness_of_a_power_bounds_its_hessian() -> None:
    """phi(l) of one client in theta and head: the largest eigenvalue of its Hessian by differences of gradients."""
    twin = world()
    twin.random_heads()
    site, W, net, q = twin.sites[2], twin.heads[2], twin.net, 2.0
    sizes = [net.V.size, net.v.size, W.size]
    start = np.concatenate([net.V.ravel(), net.v, W.ravel()])

    def slope(point: F64, power: float) -> F64:
        V, v, head = np.split(point, np.cumsum(sizes)[:2])
        here, head = Net(V.reshape(net.V.shape), v), head.reshape(W.shape)
        own = np.concatenate([part.ravel() for part in gradients(here, head, site)])
        return np.asarray(loss(here, head, site) ** power * own)

    def top(power: float) -> float:
        steps = 1e-5 * np.eye(len(start))
        hessian = np.array([(slope(start + h, power) - slope(start - h, power)) / 2e-5 for h in steps])
        return float(np.abs(np.linalg.eigvalsh((hessian + hessian.T) / 2)).max())

    at = loss(net, W, site)
    squared = float((slope(start, 0.0) ** 2).sum())
    bound = Emphasis(power=q).smoothness(top(0.0), at, squared)
    assert top(q) <= bound * (1 + 1e-6)
    assert bound <= 2 * top(q)  # and is no idle promise

    algorithm = pflego.PFLEGO(steps=1, server_lr="auto", server_optimizer="sgd")
    problems = Problems(twin.federation, twin.model)
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(head)} for i, head in enumerate(twin.heads)
    }
    plan = Plan(rounds=1, objective=pflego.QFair(q))
    came = plan.exchange(algorithm, twin.federation).play(
        LocalEngine(problems, algorithm, states), 1, algorithm.init_shared(twin.model, 6, 0), {}, [2],
        ids=twin.federation.ids, keep=lambda changed: None,
    )  # fmt: skip
    assert float(came.shared["smoothness"]) == pytest.approx(bound, rel=0.02)


def one_model_slope(w: Params, sites: list[Site], counts: F64) -> Params:
    """sum_i counts_i grad l_i of one model for everybody."""
    parts = [grad(w, site) for site in sites]
    return {
        name: np.asarray(sum(c * part[name] for c, part in zip(counts, parts, strict=True))) for name in w
    }


def one_model_losses(w: Params, sites: list[Site], decay: float = 0.0) -> F64:
    own = np.array([loss(Net(w["V"], w["v"]), w["W"], site) for site in sites])
    return np.asarray(own + decay / 2 * sum(float((part**2).sum()) for part in w.values()))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_fedsgd_with_everyone_is_gradient_descent_of_one_model_on_the_objective(objective: Objective) -> None:
    """A decay of the weights is part of every client's loss."""
    twin, decay = world(), 0.05
    sites, alphas = global_sites(twin), np.array(twin.alphas)
    w: Params = {"V": twin.net.V, "v": twin.net.v, "W": np.zeros((6, 5))}
    eta, worst = 0.0, alphas
    for _ in range(ROUNDS):
        own = one_model_losses(w, sites, decay)
        match objective:
            case pflego.QFair(q):
                counts = alphas * own**q
            case pflego.CVaR(tail, rate):
                counts = alphas * (own > eta) / tail
                eta -= rate * (1 - counts.sum())
            case pflego.Agnostic(rate):
                counts = worst
                worst = simplex(worst + rate * own)
        slope = one_model_slope(w, sites, counts)
        w = {name: part - RHO * (slope[name] + counts.sum() * decay * part) for name, part in w.items()}
    algorithm = pflego.FedSGD(client_lr=RHO, head_init="zeros", weight_decay=decay)
    run, plain = (train(world(), algorithm, one) for one in (objective, None))
    assert_weights(run.shared, w)
    assert distance(plain.shared["0.weight"], w["V"]) > 1e-4
    first = (
        alphas * one_model_losses({"V": twin.net.V, "v": twin.net.v, "W": np.zeros((6, 5))}, sites, decay)
    ).sum()
    assert run.history[0]["joint_loss"] == pytest.approx(first, rel=1e-12)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (1, 1)


def test_over_all_cohorts_fedsgds_step_is_the_objectives_gradient_where_weights_are_inverse_chances() -> None:
    twin = world(clients=4)
    sites, head = global_sites(twin), np.random.default_rng(2).normal(size=(5, 5))
    w: Params = {"V": twin.net.V, "v": twin.net.v, "W": head}
    slope = one_model_slope(w, sites, np.array(twin.alphas) * one_model_losses(w, sites) ** 2)
    chances = {f"c{i}": p for i, p in enumerate([0.9, 0.35, 0.5, 1.0])}
    plan = Plan(
        rounds=1, participation=pflego.Independent(chances), objective=pflego.QFair(2.0), missing="inverse"
    )
    algorithm = pflego.FedSGD(client_lr=RHO)
    shared = {**twin.model.weights(), "head": torch.from_numpy(head)}
    states: dict[ClientId, Weights] = {client: {} for client in twin.federation.ids}
    engine = LocalEngine(Problems(twin.federation, twin.model, labels="global"), algorithm, states)
    mean = {name: np.zeros(tensor.shape) for name, tensor in shared.items()}
    for there in product([False, True], repeat=4):
        probability = prod(p if comes else 1 - p for p, comes in zip(chances.values(), there, strict=True))
        if not probability:
            continue
        came = plan.exchange(algorithm, twin.federation).play(
            engine, 1, shared, {}, [i for i in range(4) if there[i]], ids=twin.federation.ids,
            keep=lambda changed: None,
        )  # fmt: skip
        for name, tensor in shared.items():
            mean[name] += probability * (tensor - came.shared[name]).numpy()
    for name, ours in [("V", "0.weight"), ("v", "0.bias"), ("W", "head")]:
        np.testing.assert_allclose(mean[ours], RHO * slope[name], rtol=1e-9, atol=1e-14)


def test_fedsgds_rate_from_the_theory_goes_downhill_on_a_power_of_large_losses() -> None:
    """Where losses are far above 1, the rate for the mean loss is too large for their cubes."""
    twin = world()
    sites, values = global_sites(twin), list[float]()

    def start(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
        return 30 * torch.randn(rows, columns, generator=generator)

    class Watch(pflego.Callback):
        def on_round(self, run: Run, row: object) -> None:
            names = {"V": "0.weight", "v": "0.bias", "W": "head"}
            w = {name: run.shared[ours].double().numpy() for name, ours in names.items()}
            values.append(float((np.array(twin.alphas) * one_model_losses(w, sites) ** 3).sum()))

    algorithm = pflego.FedSGD(head_init=start, lr_decay=0.9)
    train(twin, algorithm, pflego.QFair(2.0), rounds=25, callbacks=[Watch()])
    assert all(after < before for before, after in pairwise(values))
    shared = {**twin.model.weights(), "head": 30 * torch.randn(6, 5, dtype=torch.float64)}
    problem = Problems(twin.federation, twin.model, labels="global")[2].at(round_number=3)
    plain, powered = (
        algorithm.client_update(Round(3, emphasis=emphasis), shared, {}, problem).contribution["inverse rate"]
        for emphasis in (None, Emphasis(power=2.0))
    )
    w = {"V": twin.net.V, "v": twin.net.v, "W": shared["head"].numpy()}
    at, squared = one_model_losses(w, sites)[2], sum((g**2).sum() for g in grad(w, sites[2]).values())
    expected = at**2 * float(plain) * 0.81 + 2 * at * squared
    assert float(powered) == pytest.approx(expected / 0.81, rel=1e-6)


@pytest.mark.parametrize("objective", often(OBJECTIVES), ids=str)
def test_an_interrupted_run_resumes_exactly_and_opens_again(tmp_path: Path, objective: Objective) -> None:
    options = {"participation": pflego.Binomial(0.6), "dropout": 0.2, "missing": "inverse", "seed": 3}
    algorithm = pflego.PFLEGO(steps=3)
    whole = train(world(), algorithm, objective, **options)
    with pytest.raises(KeyboardInterrupt):
        train(world(), algorithm, objective, out=tmp_path, callbacks=[StopAfter(6)], **options)
    resumed = train(world(), algorithm, str(objective), out=tmp_path, resume=True, **options)
    assert_identical(resumed, whole)
    twin = world()
    opened = pflego.open_run(tmp_path, federation=twin.federation, model=twin.model, algorithm=algorithm)
    assert opened.plan.objective == objective
    assert f'objective = "{objective}"' in (tmp_path / "settings.toml").read_text()


@pytest.mark.parametrize("name", sorted(methods().keys() - {"pflego"}))
def test_methods_that_send_no_gradient_refuse_objectives(name: str) -> None:
    algorithm = methods()[name]()
    if not algorithm.follows_objectives:
        with pytest.raises(pflego.SettingError, match="sends no such gradient"):
            train(world(), algorithm, pflego.QFair(1.0))


@pytest.mark.parametrize("options", [{"passes": 2}, {"sample": 4}], ids=str)
def test_pflego_refuses_them_where_its_message_is_not_the_gradient_of_its_full_loss(
    options: dict[str, int],
) -> None:
    with pytest.raises(pflego.SettingError, match="sends no such gradient"):
        train(world(), pflego.PFLEGO(**options), pflego.QFair(1.0))  # type: ignore[arg-type]


def test_fedsgd_refuses_them_where_its_gradient_is_of_a_batch() -> None:
    with pytest.raises(pflego.SettingError, match="sends no such gradient"):
        train(world(), pflego.FedSGD(batch_size=4), pflego.QFair(1.0))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_the_nearest_point_of_the_simplex(point: list[float]) -> None:
    found = nearest_on_simplex(np.array(point))
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, simplex(np.array(point)), atol=1e-12)


@pytest.mark.parametrize("objective", [*OBJECTIVES, pflego.CVaR(0.25), pflego.QFair(0.5)], ids=str)
def test_an_objective_is_read_as_it_is_spelled(objective: Objective) -> None:
    assert objective_of(str(objective)) == objective
    assert objective_of("mean") is None


@pytest.mark.parametrize(
    "wrong", ["qfair", "qfair:x", "qfair:-1", "cvar:0", "cvar:2", "worst:1", 3, pflego.QFair]
)
def test_what_is_no_objective_is_refused(wrong: object) -> None:
    with pytest.raises(pflego.SettingError, match=r"objective|must be"):
        train(world(), gradient_descent(), wrong)
