"""Parts of a backbone that are personal: here v of tanh(V x + v), against NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.exchange.round import Round
from pflego.learning.gram import Opening
from pflego.learning.problems import Problems
from tests.support.cases import often
from tests.support.reference import (
    F64,
    Net,
    Params,
    Site,
    StopAfter,
    World,
    assert_identical,
    cohorts,
    distance,
    loss,
    world,
)
from tests.support.rivals import (
    Client,
    Simulation,
    assert_at,
    assert_weights,
    batches,
    grad,
    local_sites,
    own_models,
    steps,
)

TAU, BETA, RHO, SEED, ROUNDS = 4, 0.3, 0.2, 5, 4
PLAIN: dict[str, Any] = {"steps": TAU, "client_lr": BETA, "head_init": "zeros"}
ONE_HEAD: dict[str, Any] = {**PLAIN, "labels": "local"}


METHODS: dict[str, Callable[[int], pflego.Algorithm]] = {
    "pflego": lambda tau: pflego.PFLEGO(steps=tau),
    "fedavg": lambda tau: pflego.FedAvg(steps=tau),
    "fedper": lambda tau: pflego.FedPer(steps=tau),
    "ditto": lambda tau: pflego.Ditto(steps=tau),
}


def with_own_bias(twin: World, *more: str) -> pflego.Model:
    return pflego.Model(twin.model.backbone, twin.model.features, personal=["0.bias", *more])


def divided(twin: World, sites: list[Site], shared: str) -> Simulation:
    """All start alike: V, v and a head of zeros; what is not shared is everybody's own."""
    own: list[Params] = []
    for site in sites:
        whole = {"V": twin.net.V, "v": twin.net.v, "W": np.zeros((site.t.shape[1], 5))}
        own.append({name: w for name, w in whole.items() if name not in shared})
    first = {"V": twin.net.V, "v": twin.net.v, "W": np.zeros((sites[0].t.shape[1], 5))}
    return Simulation(sites, {name: first[name] for name in shared}, own)


def averaging(shared: str, *, mu: float = 0.0, names: str = "VvW", momentum: float = 0.0) -> Client:
    """FedAvg's kin: steps on everything, mu pulls what is shared; that is sent, the rest kept."""

    def client(s: Simulation, i: int) -> Params:
        w = {**s.shared, **s.own[i]}
        velocity = {name: np.zeros_like(w[name]) for name in names}
        for _ in range(TAU):
            g = grad(w, s.sites[i])
            for name in names:
                pull = mu * (w[name] - s.shared[name]) if name in shared else 0.0
                velocity[name] = momentum * velocity[name] + g[name] + pull
            w = {name: w[name] - BETA * velocity[name] if name in names else w[name] for name in w}
        s.own[i] = {name: w[name] for name in s.own[i]}
        return {name: w[name] for name in shared}

    return client


def fedrep(s: Simulation, i: int) -> Params:
    w = steps({**s.shared, **s.own[i]}, s.sites[i], TAU - 2, rate=BETA, names="W")
    w = steps(w, s.sites[i], 2, rate=BETA, names="Vv")
    s.own[i] = {"v": w["v"], "W": w["W"]}
    return {"V": w["V"]}


def ditto(s: Simulation, i: int) -> Params:
    before = s.own[i]
    v = before
    for _ in range(TAU):
        g = grad(v, s.sites[i])
        pull: Params = {name: v[name] - s.shared[name] if name in s.shared else 0 * v[name] for name in v}
        v = {name: v[name] - BETA * (g[name] + 0.4 * pull[name]) for name in v}
    s.own[i] = v
    w = steps({**s.shared, "v": before["v"]}, s.sites[i], TAU, rate=BETA, names="VW")
    return {"V": w["V"], "W": w["W"]}


def ditto_start(twin: World) -> Simulation:
    simulation = own_models(twin, local_sites(twin), shared=True)
    del simulation.shared["v"]
    return simulation


CASES: dict[str, tuple[pflego.Algorithm, Callable[[World], Simulation], Client]] = {
    "fedavg": (
        pflego.FedAvg(**ONE_HEAD),
        lambda twin: divided(twin, local_sites(twin), "VW"),
        averaging("VW"),
    ),
    "fedprox": (
        pflego.FedProx(**ONE_HEAD, mu=0.7),
        lambda twin: divided(twin, local_sites(twin), "VW"),
        averaging("VW", mu=0.7),
    ),
    "fedper": (pflego.FedPer(**PLAIN), lambda twin: divided(twin, twin.sites, "V"), averaging("V")),
    "fedrep": (
        pflego.FedRep(**PLAIN, body_steps=2),
        lambda twin: divided(twin, twin.sites, "V"),
        fedrep,
    ),
    "fedbabu": (
        pflego.FedBabu(**{**ONE_HEAD, "head_init": "centred"}, momentum=0.5),
        lambda twin: divided(twin, local_sites(twin), "VW"),
        averaging("V", names="Vv", momentum=0.5),
    ),
    "ditto": (pflego.Ditto(**ONE_HEAD, mu=0.4), ditto_start, ditto),
    "local": (
        pflego.Local(**PLAIN),
        lambda twin: divided(twin, twin.sites, ""),
        averaging(""),
    ),
}


@pytest.mark.parametrize("speedup", ["none", "gram"])
@pytest.mark.parametrize("name", CASES)
def test_methods_follow_numpy_with_a_personal_part(
    name: str, speedup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opening, "pays", lambda self, samples, steps: True)
    twin = world()
    algorithm, start, client = CASES[name]
    model, chosen = with_own_bias(twin), pflego.Fixed(3)
    run = pflego.train(
        twin.federation, model, algorithm, rounds=ROUNDS, participation=chosen, seed=SEED, speedup=speedup
    )
    simulation = start(twin)
    if name == "fedbabu":
        first = algorithm.init_shared(model, twin.federation.most_classes or 1, SEED)
        simulation.shared["W"] = first["head"].numpy()
    simulation.play(client, cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED))
    assert_at(run, simulation)


@pytest.mark.parametrize("speedup", ["none", "gram"])
def test_nothing_pulls_a_first_layer_that_is_personal(speedup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Opening, "pays", lambda self, samples, steps: True)
    twin, chosen = world(), pflego.Fixed(3)
    run = pflego.train(
        twin.federation,
        pflego.Model(twin.model.backbone, 4, personal=["0.weight"]),
        pflego.FedProx(**ONE_HEAD, mu=0.7),
        rounds=ROUNDS,
        participation=chosen,
        seed=SEED,
        speedup=speedup,
    )
    simulation = divided(twin, local_sites(twin), "vW")
    simulation.play(averaging("vW", mu=0.7), cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED))
    assert_at(run, simulation)


def test_fedavg_with_a_personal_head_is_fedper() -> None:
    twin, chosen = world(), pflego.Fixed(3)
    model = pflego.Model(twin.model.backbone, 4, personal="head")
    run = pflego.train(
        twin.federation, model, pflego.FedAvg(**ONE_HEAD), rounds=ROUNDS, participation=chosen, seed=SEED
    )
    simulation = divided(twin, local_sites(twin), "Vv")
    simulation.play(averaging("Vv"), cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED))
    assert_at(run, simulation)


def pflego_rounds(
    twin: World,
    chosen: list[list[int]],
    *,
    r: float,
    exact: bool,
    decay: float = 0.0,
) -> tuple[F64, list[Params], list[float]]:
    """Algorithm 1 on V, with v_i and W_i at home; and the participants' loss after every round."""
    scale, V = len(twin.sites) / r, twin.net.V
    own = [{"v": twin.net.v, "W": np.zeros((site.t.shape[1], 5))} for site in twin.sites]
    losses = []
    for members in chosen:
        total, value = np.zeros_like(V), 0.0
        for i in members:
            site, alpha = twin.sites[i], twin.alphas[i]
            w = steps({"V": V, **own[i]}, site, TAU - 1, rate=BETA, names="W", decay=decay)
            g = grad(w, site)
            rate = RHO * scale * (alpha if exact else 1)
            own[i] = {
                "v": w["v"] - rate * g["v"],
                "W": w["W"] - rate * (g["W"] + decay * w["W"]),
            }
            total += scale * alpha * g["V"]
            value += alpha * loss(Net(V, own[i]["v"]), own[i]["W"], site)
        losses.append(value / sum(twin.alphas[i] for i in members))
        V = V - RHO * total
    return V, own, losses


@pytest.mark.parametrize("head_step", ["paper", "exact"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_pflego_follows_algorithm_1_with_a_personal_part(head_step: Any, decay: float) -> None:
    twin, chosen = world(), pflego.Fixed(3)
    algorithm = pflego.PFLEGO(
        **PLAIN, server_lr=RHO, server_optimizer="sgd", head_step=head_step, head_decay=decay
    )
    run = pflego.train(
        twin.federation,
        with_own_bias(twin),
        algorithm,
        rounds=ROUNDS,
        participation=chosen,
        seed=SEED,
    )
    drawn = cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED)
    V, own, losses = pflego_rounds(twin, drawn, r=3, exact=head_step == "exact", decay=decay)
    assert set(run.shared) == {"0.weight"}
    assert distance(run.shared["0.weight"], V) < 1e-10
    for i, one in enumerate(own):
        assert_weights(run.states[f"c{i}"], one)
    assert [row["loss"] for row in run.history] == pytest.approx(losses, rel=1e-10)


def whole_loss(twin: World, V: F64, own: list[Params]) -> float:
    return sum(
        a * loss(Net(V, o["v"]), o["W"], site)
        for a, o, site in zip(twin.alphas, own, twin.sites, strict=True)
    )


def test_the_joint_step_is_one_step_of_centralised_gradient_descent() -> None:
    """With everybody there, theta, u_i and W_i go down the gradient of eq. (fullloss), taken by differences."""
    twin, rng, eps = world(clients=3), np.random.default_rng(2), 1e-6
    model = with_own_bias(twin)
    algorithm = pflego.PFLEGO(
        steps=1, client_lr=BETA, server_lr=RHO, server_optimizer="sgd", head_step="exact"
    )
    own = [
        {"v": rng.normal(size=4), "W": rng.normal(size=(site.t.shape[1], 5))} for site in twin.sites
    ]  # tau = 1: the joint step alone
    states = [{"0.bias": torch.from_numpy(o["v"]), "head": torch.from_numpy(o["W"])} for o in own]
    shared = model.shared_weights()
    problems = Problems(twin.federation, model)
    updates = [
        algorithm.client_update(Round(1, alpha=alpha), shared, state, problems[i])
        for i, (alpha, state) in enumerate(zip(twin.alphas, states, strict=True))
    ]

    def slope(point: Callable[[float], tuple[F64, list[Params]]]) -> float:
        return (whole_loss(twin, *point(eps)) - whole_loss(twin, *point(-eps))) / (2 * eps)

    def moved(i: int, name: str, unit: F64, far: float) -> tuple[F64, list[Params]]:
        there = [dict(o) for o in own]
        there[i][name] = there[i][name] + far * unit
        return twin.net.V, there

    for i, update in enumerate(updates):
        for ours, name in [("0.bias", "v"), ("head", "W")]:
            for k in range(own[i][name].size):
                unit = np.zeros_like(own[i][name])
                unit.flat[k] = 1
                step = -RHO * slope(partial(moved, i, name, unit))
                went = float((update.state[ours] - states[i][ours]).flatten()[k])
                assert went == pytest.approx(step, abs=1e-8)
    gradient = sum(a * u.contribution["0.weight"] for a, u in zip(twin.alphas, updates, strict=True))
    assert isinstance(gradient, torch.Tensor)
    for k in range(twin.net.V.size):
        unit = np.zeros_like(twin.net.V)
        unit.flat[k] = 1

        def along(far: float, unit: F64 = unit) -> tuple[F64, list[Params]]:
            return twin.net.V + far * unit, own

        assert float(gradient.flatten()[k]) == pytest.approx(slope(along), abs=1e-7)


def test_small_clients_with_personal_parts_do_not_go_through_the_backbone_together() -> None:
    """60 clients are many enough to be put into groups, where they share a backbone."""
    twin = world(clients=60)
    algorithm = pflego.PFLEGO(**PLAIN, server_lr=RHO, server_optimizer="sgd", head_step="exact")
    run = pflego.train(twin.federation, with_own_bias(twin), algorithm, rounds=2, seed=SEED)
    V, own, _ = pflego_rounds(twin, [list(range(60))] * 2, r=60, exact=True)
    assert distance(run.shared["0.weight"], V) < 1e-10
    for i in (0, 7, 59):
        assert_weights(run.states[f"c{i}"], own[i])


def means_of_moves(
    twin: World, visit: Callable[[int, int, Params], Params], *, rounds: int
) -> tuple[list[F64], list[Params]]:
    """Let all clients move V, v and W at home, by round and client; give V before every round and after, and the rest.

    The server adds the mean of how far V moved.
    """
    Vs, own = [twin.net.V], [{"v": twin.net.v, "W": np.zeros((site.t.shape[1], 5))} for site in twin.sites]
    for t in range(1, rounds + 1):
        ended = [visit(t, i, {"V": Vs[-1], **one}) for i, one in enumerate(own)]
        moves = [a * (Vs[-1] - w["V"]) for a, w in zip(twin.alphas, ended, strict=True)]
        Vs.append(Vs[-1] - np.sum(moves, axis=0))
        own = [{"v": w["v"], "W": w["W"]} for w in ended]
    return Vs, own


def test_several_passes_move_what_is_personal_at_home() -> None:
    twin, k, eta = world(clients=3), 3, 0.1
    algorithm = pflego.PFLEGO(
        **PLAIN, passes=k, local_lr=eta, server_lr=1.0, server_optimizer="sgd", head_step="exact"
    )
    run = pflego.train(twin.federation, with_own_bias(twin), algorithm, rounds=2, seed=SEED)

    def visit(t: int, i: int, w: Params) -> Params:
        for _ in range(k):
            w = steps(w, twin.sites[i], TAU - 1, rate=BETA, names="W")
            w = steps(w, twin.sites[i], 1, rate=eta)
        return w

    Vs, own = means_of_moves(twin, visit, rounds=2)
    assert distance(run.shared["0.weight"], Vs[-1]) < 1e-10
    for i, one in enumerate(own):
        assert_weights(run.states[f"c{i}"], one)


def test_mini_batches_move_what_is_personal_at_home() -> None:
    twin, size, eta = world(clients=3), 5, 0.1
    algorithm = pflego.PFLEGO(
        steps=1, batch_size=size, local_lr=eta, server_lr=1.0, server_optimizer="sgd", head_init="zeros"
    )
    run = pflego.train(twin.federation, with_own_bias(twin), algorithm, rounds=2, seed=SEED)

    def visit(t: int, i: int, w: Params) -> Params:
        site = twin.sites[i]
        drawn = batches(SEED, t, i, site, size, -(-site.n // size))
        return steps(w, site, len(drawn), rate=eta, batches=drawn)

    Vs, own = means_of_moves(twin, visit, rounds=2)
    assert distance(run.shared["0.weight"], Vs[-1]) < 1e-10
    for i, one in enumerate(own):
        assert_weights(run.states[f"c{i}"], one)
    received = Vs[-2]
    judged = [
        loss(Net(received, one["v"]), one["W"], site) for one, site in zip(own, twin.sites, strict=True)
    ]
    assert run.history[-1]["loss"] == pytest.approx(np.dot(twin.alphas, judged), rel=1e-9)


def test_an_automatic_joint_rate_knows_the_curvature_in_what_is_personal() -> None:
    """L is that of the client's loss in V, v and W together: by differences of gradients, in NumPy."""
    twin = world(clients=1)
    algorithm = pflego.PFLEGO(
        steps=3, client_lr=BETA, server_lr="auto", server_optimizer="sgd", head_step="exact"
    )
    run = pflego.train(twin.federation, with_own_bias(twin), algorithm, rounds=1, seed=SEED)
    w = {"V": twin.net.V, "v": twin.net.v, "W": np.zeros((2, 5))}
    w = steps(w, twin.sites[0], 2, rate=BETA, names="W")
    sizes, eps = [w[name].size for name in "VvW"], 1e-5

    def slope(flat: F64) -> F64:
        pieces = np.split(flat, np.cumsum(sizes)[:-1])
        point = {name: piece.reshape(w[name].shape) for name, piece in zip("VvW", pieces, strict=True)}
        return np.concatenate([grad(point, twin.sites[0])[name].ravel() for name in "VvW"])

    here = np.concatenate([w[name].ravel() for name in "VvW"])
    hessian = [(slope(here + eps * u) - slope(here - eps * u)) / (2 * eps) for u in np.eye(len(here))]
    largest = float(np.abs(np.linalg.eigvalsh(np.stack(hessian))).max())
    assert float(run.shared["smoothness"]) == pytest.approx(largest, rel=0.02)


@pytest.mark.parametrize("name", often(METHODS))
def test_a_run_with_personal_parts_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    twin = world()
    model, algorithm = with_own_bias(twin), METHODS[name](3)
    options: dict[str, Any] = {"rounds": 4, "participation": 3, "seed": SEED}
    whole = pflego.train(twin.federation, model, algorithm, **options)
    with pytest.raises(KeyboardInterrupt):
        pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, callbacks=[StopAfter(2)])
    assert_identical(
        pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, resume=True), whole
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_newcomer_gets_personal_parts_of_its_own(name: str) -> None:
    twin = world(clients=4)
    run = pflego.train(
        pflego.Federation(list(twin.federation)[:3]),
        with_own_bias(twin),
        METHODS[name](5),
        rounds=3,
        evaluate_every=None,
    )
    joined = (
        run.join(twin.federation[3], alone=0)
        if name != "fedavg"
        else run.join(
            pflego.Client("late", *(getattr(twin.federation[0], part) for part in ("x_train", "y_train"))),
            alone=0,
        )
    )
    states = joined.run.states
    assert states[joined.client].keys() == states["c0"].keys()
    moved = not torch.equal(states[joined.client]["0.bias"], torch.from_numpy(twin.net.v))
    assert moved == (name != "pflego")  # there it waits for the joint step of its first round


def test_a_personal_model_has_its_clients_parts() -> None:
    twin = world(clients=3)
    run = pflego.train(twin.federation, with_own_bias(twin), pflego.PFLEGO(steps=3), rounds=3)
    for i in range(3):
        one = run.personal_model(f"c{i}")
        assert torch.equal(one.backbone[0].bias, run.states[f"c{i}"]["0.bias"])  # type: ignore[index]
        assert torch.equal(one.backbone[0].weight, run.shared["0.weight"])  # type: ignore[index]
    assert not torch.equal(run.states["c0"]["0.bias"], run.states["c1"]["0.bias"])


def test_methods_that_have_not_said_that_they_can_refuse() -> None:
    class Changed(pflego.FedAvg):
        """Does something else with its clients, and says nothing of personal parts."""

        def adapt(self, shared: Any, state: Any, problem: Any) -> Any:
            return super().adapt(shared, state, problem)

    class AtTheServer(pflego.FedAvg):
        """Does something else with what has arrived."""

        def server_step(self, now: Any, shared: Any, server: Any, aggregate: Any) -> Any:
            return super().server_step(now, shared, server, aggregate)

    class Renamed(pflego.FedAvg):
        """Does what FedAvg does."""

    twin = world(clients=2)
    for algorithm in (pflego.FedRecon(), Changed(), AtTheServer()):
        with pytest.raises(pflego.ModelError, match="personal parts"):
            pflego.train(twin.federation, with_own_bias(twin), algorithm, rounds=1)
    pflego.train(twin.federation, with_own_bias(twin), Renamed(steps=1), rounds=1)


@pytest.mark.parametrize(
    ("algorithm", "personal"),
    [
        (pflego.PFLEGO(), ["0"]),  # nothing is left to share
        (pflego.PFLEGO(common_head=True), ["0.bias", "head"]),
        (pflego.FedBabu(), ["head"]),
    ],
    ids=["everything", "common head", "fedbabu"],
)
def test_divisions_that_make_no_sense_are_refused(algorithm: pflego.Algorithm, personal: list[str]) -> None:
    twin = world(clients=2)
    model = pflego.Model(twin.model.backbone, 4, personal=personal)
    with pytest.raises(pflego.ModelError):
        pflego.train(twin.federation, model, algorithm, rounds=1)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"dense": nn.Linear(6, 6), "norm": nn.LayerNorm(6)})])
        self.norm_1 = nn.LayerNorm(6)


@pytest.mark.parametrize(
    ("personal", "names"),
    [
        (["norm"], ["blocks.0.norm.weight", "blocks.0.norm.bias"]),
        ("blocks.0.dense", ["blocks.0.dense.weight", "blocks.0.dense.bias"]),
        ("norm_1.bias, norm", ["blocks.0.norm.weight", "blocks.0.norm.bias", "norm_1.bias"]),
        (["bias"], ["blocks.0.dense.bias", "blocks.0.norm.bias", "norm_1.bias"]),
        (["head"], []),
    ],
)
def test_parts_are_named_by_parameter_module_or_prefix(personal: Any, names: list[str]) -> None:
    model = pflego.Model(Body(), 6, personal=personal)
    assert list(model.personal_names) == names
    assert set(model.shared_weights()) == set(model.names) - set(names)


@pytest.mark.parametrize("personal", ["nor", ["blocks.1"], ["norm", "heads"], [3], 3, [""]])
def test_a_part_that_is_not_there_is_refused(personal: Any) -> None:
    with pytest.raises(pflego.ModelError, match="personal"):
        pflego.Model(Body(), 6, personal=personal)
