"""Every rival against its equations in NumPy float64, over several rounds with unequal clients.

The equations are tested twice: with plain steps, and with steps in the span of a client's samples (speedup="gram").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms import methods
from pflego.exchange.round import Round
from pflego.learning.gram import Opening
from pflego.learning.problem import Speedup
from pflego.learning.problems import Problems
from tests.support.cases import often
from tests.support.reference import Site, World, assert_same_weights, cohorts, world
from tests.support.rivals import (
    alone,
    assert_weights,
    ditto,
    fedavg,
    fedbabu,
    fedper,
    fedrecon,
    fedrep,
    global_sites,
    local_sites,
    of_kind,
    own_heads,
    own_models,
    shared_head,
    steps,
)

TAU, BETA, ROUNDS, SEED = 7, 0.15, 6, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


@pytest.fixture(params=["none", "gram"])
def speedup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Speedup:
    monkeypatch.setattr(Opening, "pays", lambda *_: True)  # clients this small would not gain by it
    return request.param  # type: ignore[no-any-return]


def train(
    twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, speedup: Speedup = "none"
) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=3, seed=SEED, speedup=speedup
    )


@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedavg_and_fedprox_follow_their_equations(labels: str, mu: float, speedup: Speedup) -> None:
    twin = world()
    options = {"steps": TAU, "client_lr": BETA, "labels": labels, "head_init": "zeros"}
    algorithm = pflego.FedProx(**options, mu=mu) if mu else pflego.FedAvg(**options)  # type: ignore[arg-type]
    simulation = shared_head(twin, local_sites(twin) if labels == "local" else global_sites(twin))
    simulation.play(fedavg(TAU, BETA, mu=mu), CHOSEN)
    run = train(twin, algorithm, speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    assert all(state == {} for state in run.states.values())
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_fedper_follows_its_equations(speedup: Speedup) -> None:
    twin = world()
    simulation = own_heads(twin)
    simulation.play(fedper(TAU, BETA), CHOSEN)
    run = train(twin, pflego.FedPer(steps=TAU, client_lr=BETA, head_init="zeros"), speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedrep_follows_its_equations(momentum: float, speedup: Speedup) -> None:
    twin = world()
    simulation = own_heads(twin)
    simulation.play(fedrep(TAU, BETA, body=2, momentum=momentum), CHOSEN)
    algorithm = pflego.FedRep(steps=TAU, client_lr=BETA, body_steps=2, momentum=momentum, head_init="zeros")
    run = train(twin, algorithm, speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (3, 2)


@pytest.mark.parametrize("fine_tune", [0, 3])
def test_fedbabu_follows_its_equations(fine_tune: int, speedup: Speedup) -> None:
    twin = world()
    algorithm = pflego.FedBabu(steps=TAU, client_lr=BETA, momentum=0.5, fine_tune=fine_tune, labels="local")
    head = algorithm.init_shared(twin.model, 4, SEED)["head"].numpy()
    simulation = shared_head(twin, local_sites(twin), head)
    simulation.play(fedbabu(TAU, BETA, momentum=0.5), CHOSEN)
    run = train(twin, algorithm, speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    for i, row in enumerate(run.evaluate()):
        w = steps(simulation.shared, simulation.sites[i], fine_tune, rate=BETA, momentum=0.5)
        client = twin.federation[i]
        z = np.tanh(client.x_test.numpy() @ w["V"].T + w["v"]) @ w["W"][:, :-1].T + w["W"][:, -1]
        classes = np.pad(client.classes.numpy(), (0, 4 - len(client.classes)), constant_values=-1)
        assert row["accuracy"] == (classes[z.argmax(axis=1)] == client.y_test.numpy()).mean()


@pytest.mark.parametrize("global_lr", [None, 0.05])
def test_ditto_follows_its_equations(global_lr: float | None, speedup: Speedup) -> None:
    twin = world()
    simulation = own_models(twin, local_sites(twin), shared=True)
    simulation.play(ditto(TAU, BETA, mu=0.4, global_lr=global_lr), CHOSEN)
    options = {"steps": TAU, "client_lr": BETA, "labels": "local", "head_init": "zeros"}
    algorithm = pflego.Ditto(**options, mu=0.4, global_lr=global_lr)  # type: ignore[arg-type]
    run = train(twin, algorithm, speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (2 * TAU, 2 * TAU)


@pytest.mark.parametrize("reset", [False, True])
def test_fedrecon_follows_its_equations(reset: bool, speedup: Speedup) -> None:
    twin = world()
    simulation = own_heads(twin)
    simulation.play(fedrecon(TAU, BETA, reset=reset), CHOSEN, server_lr=0.02)
    algorithm = pflego.FedRecon(steps=TAU, client_lr=BETA, server_lr=0.02, reset=reset)
    run = train(twin, algorithm, speedup=speedup)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], {"W": np.zeros_like(own["W"])} if reset else own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (1, 1)


def test_learning_alone_follows_its_equations(speedup: Speedup) -> None:
    twin = world()
    simulation = own_models(twin, twin.sites, shared=False)
    simulation.play(alone(TAU, BETA), CHOSEN)
    run = train(twin, pflego.Local(steps=TAU, client_lr=BETA, head_init="zeros"), speedup=speedup)
    assert run.shared == {}
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)


def test_without_its_pull_fedprox_is_fedavg() -> None:
    twin = world()
    ours, theirs = train(twin, pflego.FedProx(mu=0.0)), train(twin, pflego.FedAvg())
    assert_same_weights(ours.shared, theirs.shared)


def test_without_its_pull_ditto_is_fedavg_and_learning_alone() -> None:
    rng = np.random.default_rng(0)  # clients with as many classes each, so that heads are of one size
    federation = pflego.Federation(
        [pflego.Client(f"c{i}", rng.normal(size=(9 + i, 6)), np.arange(9 + i) % 3) for i in range(5)]
    )
    twin = world()
    options = {"rounds": 4, "participation": 3, "seed": 2}
    same = {"client_lr": 0.007, "head_init": "zeros", "labels": "local"}
    alone = pflego.Local(client_lr=0.007, head_init="zeros")
    algorithms = [pflego.Ditto(mu=0.0, **same), pflego.FedAvg(**same), alone]  # type: ignore[arg-type]
    theirs, averaged, local = (pflego.train(federation, twin.model, a, **options) for a in algorithms)  # type: ignore[arg-type]
    assert_same_weights(theirs.shared, averaged.shared)
    for client in federation.ids:
        assert_same_weights(theirs.states[client], local.states[client])


def test_fedavg_with_one_step_and_everybody_is_centralised_gradient_descent() -> None:
    twin = world()
    run = pflego.train(
        twin.federation, twin.model, pflego.FedAvg(steps=1, client_lr=0.3, head_init="zeros"), rounds=20
    )
    sites = global_sites(twin)
    pool = Site(np.concatenate([s.x for s in sites]), np.concatenate([s.t for s in sites]))
    w = steps({"V": twin.net.V, "v": twin.net.v, "W": np.zeros((6, 5))}, pool, 20, rate=0.3)
    assert_weights(run.shared, w)


def test_fedper_without_a_personal_head_is_fedavg() -> None:
    """A regression whose head is the identity: FedPer then shares all there is to learn."""
    twin = world(regression=True)

    class Fixed(nn.Module):
        def __init__(self, features: int, outputs: int) -> None:
            super().__init__()

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z

    backbone = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    bare = pflego.Model(backbone, features=1, head=Fixed)
    runs = [
        pflego.train(twin.federation, bare, algorithm, rounds=4, participation=3)
        for algorithm in (pflego.FedPer(client_lr=0.1), pflego.FedAvg(client_lr=0.1))
    ]
    assert all(state == {} for state in runs[0].states.values())
    assert_same_weights(runs[0].shared, runs[1].shared)


def test_fedbabus_head_never_changes_and_has_orthonormal_rows() -> None:
    twin = world()
    algorithm = pflego.FedBabu(labels="local")
    head = train(twin, algorithm).shared["head"]
    assert torch.equal(head, algorithm.init_shared(twin.model, 4, SEED)["head"])
    assert torch.allclose(head @ head.T, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("name", methods())
def test_contributions_and_states_hold_what_they_should(name: str) -> None:
    """Nothing of a personal head is in any contribution, but where the server combines heads."""
    twin = world()
    algorithm = methods()[name]()
    problems = Problems(twin.federation, twin.model, labels=algorithm.labels)
    outputs = 4 if algorithm.labels == "local" else 6
    shared = algorithm.init_shared(twin.model, outputs, 0)
    update = algorithm.client_update(Round(1), shared, algorithm.init_state(problems[1], 0), problems[1])
    theta = {"0.weight", "0.bias"}
    controls = {f"control/{name}" for name in theta | {"head"}}
    sent = {
        "local": set(),
        "fedavg": theta | {"head"},
        "fedbn": theta | {"head"},
        "fedprox": theta | {"head"},
        "feddane": {f"gradient/{name}" for name in (*theta, "head")},
        "fednova": theta | {"head", "length"},
        "fedopt": theta | {"head"},
        "fedsgd": theta | {"head", "inverse rate"},
        "perfedavg": theta | {"head"},
        "pfedme": theta | {"head"},
        "uga": theta | {"head"},
        "ditto": theta | {"head"},
        "scaffold": theta | {"head"} | controls,
        "feddyn": theta | {"head"},
        "apfl": theta | {"head"},
        "lgfedavg": {"head"},
        "fedrod": theta | {"head"},
        "fedala": theta | {"head"},
        "feddbe": theta | {"head", "mean/features", "mean/known"},
        "moon": theta | {"head"},
        "fedproto": {"class/sums", "class/shares"},
        "fedpac": theta | {"class/sums", "class/shares", "own/head", "own/bias", "own/variance"},
    }
    kept = {
        "fedavg": set(),
        "fedbn": set(),
        "fedprox": set(),
        "fedbabu": set(),
        "perfedavg": set(),
        "uga": set(),
        "feddane": set(),
        "fednova": set(),
        "fedopt": set(),
        "fedsgd": set(),
        "local": theta | {"head"},
        "ditto": theta | {"head"},
        "scaffold": controls,
        "feddyn": {f"slope/{name}" for name in theta | {"head"}},
        "apfl": {f"own/{name}" for name in theta | {"head"}} | {"mixing"},
        "lgfedavg": theta,
        "fedrod": {"own/head"},
        "fedala": {"old/head", "mixing/head"},
        "pfedme": theta | {"head"},
        "feddbe": {"shift"},
        "moon": {"previous/0.weight", "previous/0.bias"},
        "fedproto": theta | {"head"},
    }
    assert update.contribution.keys() == sent.get(name, theta)
    assert update.state.keys() == kept.get(name, {"head"})


@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
@pytest.mark.parametrize(
    "regression",
    [False, pytest.param(True, marks=pytest.mark.thorough)],
    ids=["classification", "regression"],
)
def test_every_method_learns(name: str, regression: bool) -> None:
    data = "diabetes" if regression else "digits"
    federation = pflego.load(data, clients=4, classes_per_client=None if regression else 3)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]))
    rate = {} if name == "pflego" else {"client_lr": 0.02 if regression else 0.1}
    algorithm = of_kind(methods()[name], steps=10, **rate)
    rounds = 150 if name == "fedsgd" else 15  # of one step each, and not of ten
    run = pflego.train(federation, model, algorithm, rounds=rounds, participation=3)
    first, last = run.history[0]["loss"] or 0, run.history[-1]["loss"] or 9
    assert last < first
    if regression:
        assert (run.history[-1]["everyone_rmse"] or 9) < 0.95
    else:
        assert (run.history[-1]["everyone_accuracy"] or 0) > 0.8
        client = federation[0]
        assert run.personal_model(client.id).predict(client.x_test).shape == client.y_test.shape


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda: pflego.FedProx(mu=-1), "mu"),
        (lambda: pflego.FedAvg(labels="other"), "labels"),  # type: ignore[arg-type]
        (lambda: pflego.FedRep(steps=3, body_steps=4), "body_steps"),
        (lambda: pflego.FedRep(momentum=-0.1), "momentum"),
        (lambda: pflego.FedBabu(fine_tune=-1), "fine_tune"),
        (lambda: pflego.Ditto(global_lr=0), "global_lr"),
        (lambda: pflego.FedRecon(client_lr=0), "client_lr"),
        (lambda: pflego.FedRecon(server_optimizer="adamm"), "server_optimizer"),
        (lambda: pflego.FedPer(steps=0), "steps"),
    ],
)
def test_wrong_hyperparameters_are_refused_by_name(wrong: Callable[[], object], name: str) -> None:
    with pytest.raises(pflego.SettingError, match=name):
        wrong()
