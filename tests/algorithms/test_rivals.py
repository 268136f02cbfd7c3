"""Every rival against its equations in NumPy float64, over several rounds with unequal clients.

The equations are tested twice: with plain steps, and with steps in the span of a client's samples (memory="gram").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms import ALGORITHMS
from pflego.algorithms.base import Round
from pflego.gram import Opening
from pflego.participation import cohort
from pflego.problem import Memory, Problems
from pflego.weights import Weights
from tests.reference import F64, Adam, Net, Site, World, distance, gradients, world

TAU, BETA, ROUNDS, SEED = 7, 0.15, 6, 4
Params = dict[str, F64]  # V, v, W


def grad(w: Params, site: Site) -> Params:
    return dict(zip(("V", "v", "W"), gradients(Net(w["V"], w["v"]), w["W"], site), strict=True))


def steps(
    w: Params,
    site: Site,
    count: int,
    *,
    names: str = "VvW",
    rate: float = BETA,
    momentum: float = 0.0,
    anchor: Params | None = None,
    mu: float = 0.0,
) -> Params:
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for _ in range(count):
        g = grad(w, site)
        for name in names:
            slope = g[name] + (mu * (w[name] - anchor[name]) if anchor else 0)
            velocity[name] = momentum * velocity[name] + slope
        w = {name: w[name] - rate * velocity[name] if name in names else w[name] for name in w}
    return w


@dataclass
class Simulation:
    """Shared parameters and personal ones of every client, advanced round by round by `client` and `server`."""

    twin: World
    shared: Params
    own: list[Params]
    sites: list[Site]
    adams: dict[str, Adam] = field(default_factory=dict)

    def play(
        self, client: Callable[[Simulation, int], Params], *, gradient_rate: float | None = None
    ) -> None:
        for t in range(1, ROUNDS + 1):
            chosen = cohort(pflego.Fixed(3), 5, seed=SEED, round=t)
            replies = [(self.sites[i].n, client(self, i)) for i in chosen]
            total = sum(n for n, _ in replies)
            mean = {k: np.asarray(sum(n / total * w[k] for n, w in replies)) for k in replies[0][1]}
            if gradient_rate is None:
                self.shared = {**self.shared, **mean}
            else:
                for k, g in mean.items():
                    self.shared[k] = self.adams.setdefault(k, Adam(gradient_rate)).step(self.shared[k], g)


def local_sites(twin: World) -> list[Site]:
    """labels="local": everybody has as many outputs as the client with the most classes."""
    widest = max(site.t.shape[1] for site in twin.sites)
    return [Site(s.x, np.pad(s.t, ((0, 0), (0, widest - s.t.shape[1]))), s.softmax) for s in twin.sites]


def global_sites(twin: World) -> list[Site]:
    """labels="global": an output for every class of the federation."""
    classes = np.array(twin.federation.classes)
    return [
        Site(site.x, (client.y_train.numpy()[:, None] == classes).astype(float))
        for site, client in zip(twin.sites, twin.federation, strict=True)
    ]


def start(twin: World, sites: list[Site], *, shared_head: bool, head: F64 | None = None) -> Simulation:
    theta = {"V": twin.net.V, "v": twin.net.v}
    K = sites[0].t.shape[1]
    if shared_head:
        return Simulation(
            twin, {**theta, "W": np.zeros((K, 5)) if head is None else head}, [{} for _ in sites], sites
        )
    return Simulation(twin, theta, [{"W": np.zeros((site.t.shape[1], 5))} for site in sites], sites)


@pytest.fixture(params=["keep", "gram"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(Opening, "pays", lambda *_: True)  # clients this small would not gain by it
    return request.param  # type: ignore[no-any-return]


def train(
    twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, memory: Memory = "keep"
) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=3, seed=SEED, memory=memory
    )


def assert_weights(ours: Weights, theirs: Params, tolerance: float = 1e-10) -> None:
    names = {"0.weight": "V", "0.bias": "v", "head": "W"}
    assert {names[name] for name in ours} == set(theirs)
    for name, tensor in ours.items():
        assert distance(tensor, theirs[names[name]]) < tolerance, name


@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedavg_and_fedprox_follow_their_equations(labels: str, mu: float, memory: Memory) -> None:
    twin = world()
    options = {"steps": TAU, "client_lr": BETA, "labels": labels}
    algorithm = pflego.FedProx(**options, mu=mu) if mu else pflego.FedAvg(**options)  # type: ignore[arg-type]
    simulation = start(twin, local_sites(twin) if labels == "local" else global_sites(twin), shared_head=True)
    simulation.play(lambda s, i: steps(s.shared, s.sites[i], TAU, anchor=s.shared, mu=mu))
    run = train(twin, algorithm, memory=memory)
    assert_weights(run.shared, simulation.shared)
    assert all(state == {} for state in run.states.values())
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_fedper_follows_its_equations(memory: Memory) -> None:
    twin = world()
    simulation = start(twin, twin.sites, shared_head=False)

    def client(s: Simulation, i: int) -> Params:
        w = steps({**s.shared, **s.own[i]}, s.sites[i], TAU)
        s.own[i] = {"W": w["W"]}
        return {"V": w["V"], "v": w["v"]}

    simulation.play(client)
    run = train(twin, pflego.FedPer(steps=TAU, client_lr=BETA), memory=memory)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedrep_follows_its_equations(momentum: float, memory: Memory) -> None:
    twin = world()
    simulation = start(twin, twin.sites, shared_head=False)

    def client(s: Simulation, i: int) -> Params:
        w = steps({**s.shared, **s.own[i]}, s.sites[i], TAU - 2, names="W", momentum=momentum)
        w = steps(w, s.sites[i], 2, names="Vv", momentum=momentum)
        s.own[i] = {"W": w["W"]}
        return {"V": w["V"], "v": w["v"]}

    simulation.play(client)
    run = train(
        twin, pflego.FedRep(steps=TAU, client_lr=BETA, body_steps=2, momentum=momentum), memory=memory
    )
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (3, 2)


@pytest.mark.parametrize("fine_tune", [0, 3])
def test_fedbabu_follows_its_equations(fine_tune: int, memory: Memory) -> None:
    twin = world()
    algorithm = pflego.FedBabu(steps=TAU, client_lr=BETA, momentum=0.5, fine_tune=fine_tune)
    head = algorithm.init_shared(twin.model, 4, SEED)["head"].numpy()
    simulation = start(twin, local_sites(twin), shared_head=True, head=head)
    simulation.play(
        lambda s, i: {
            k: w for k, w in steps(s.shared, s.sites[i], TAU, names="Vv", momentum=0.5).items() if k != "W"
        }
    )
    run = train(twin, algorithm, memory=memory)
    assert_weights(run.shared, simulation.shared)
    for i, row in enumerate(run.evaluate()):
        w = steps(simulation.shared, simulation.sites[i], fine_tune, momentum=0.5)
        client = twin.federation[i]
        z = np.tanh(client.x_test.numpy() @ w["V"].T + w["v"]) @ w["W"][:, :-1].T + w["W"][:, -1]
        classes = np.pad(client.classes.numpy(), (0, 4 - len(client.classes)), constant_values=-1)
        assert row["accuracy"] == (classes[z.argmax(axis=1)] == client.y_test.numpy()).mean()


@pytest.mark.parametrize("global_lr", [None, 0.05])
def test_ditto_follows_its_equations(global_lr: float | None, memory: Memory) -> None:
    twin = world()
    simulation = start(twin, local_sites(twin), shared_head=True)
    simulation.own = [dict(simulation.shared) for _ in simulation.sites]

    def client(s: Simulation, i: int) -> Params:
        sent = steps(s.shared, s.sites[i], TAU, rate=global_lr or BETA)
        s.own[i] = steps(s.own[i], s.sites[i], TAU, anchor=s.shared, mu=0.4)
        return sent

    simulation.play(client)
    run = train(twin, pflego.Ditto(steps=TAU, client_lr=BETA, mu=0.4, global_lr=global_lr), memory=memory)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (2 * TAU, 2 * TAU)


@pytest.mark.parametrize("reset", [False, True])
def test_fedrecon_follows_its_equations(reset: bool, memory: Memory) -> None:
    twin = world()
    simulation = start(twin, twin.sites, shared_head=False)

    def client(s: Simulation, i: int) -> Params:
        first = {"W": np.zeros_like(s.own[i]["W"])} if reset else s.own[i]
        w = steps({**s.shared, **first}, s.sites[i], TAU, names="W")
        s.own[i] = {"W": w["W"]}
        g = grad(w, s.sites[i])
        return {"V": g["V"], "v": g["v"]}

    simulation.play(client, gradient_rate=0.02)
    run = train(twin, pflego.FedRecon(steps=TAU, client_lr=BETA, server_lr=0.02, reset=reset), memory=memory)
    assert_weights(run.shared, simulation.shared)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], {"W": np.zeros_like(own["W"])} if reset else own)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (1, 1)


def assert_identical(ours: Weights, theirs: Weights) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_without_its_pull_fedprox_is_fedavg() -> None:
    twin = world()
    ours, theirs = train(twin, pflego.FedProx(mu=0.0)), train(twin, pflego.FedAvg())
    assert_identical(ours.shared, theirs.shared)


def test_without_its_pull_ditto_is_fedavg_and_learning_alone() -> None:
    rng = np.random.default_rng(0)  # clients with as many classes each, so that heads are of one size
    federation = pflego.Federation(
        [pflego.Client(f"c{i}", rng.normal(size=(9 + i, 6)), np.arange(9 + i) % 3) for i in range(5)]
    )
    twin = world()
    options = {"rounds": 4, "participation": 3, "seed": 2}
    algorithms = [pflego.Ditto(mu=0.0), pflego.FedAvg(), pflego.Local(client_lr=0.007)]
    ditto, fedavg, local = (pflego.train(federation, twin.model, a, **options) for a in algorithms)  # type: ignore[arg-type]
    assert_identical(ditto.shared, fedavg.shared)
    for id in federation.ids:
        assert_identical(ditto.states[id], local.states[id])


def test_fedavg_with_one_step_and_everybody_is_centralised_gradient_descent() -> None:
    twin = world()
    run = pflego.train(
        twin.federation, twin.model, pflego.FedAvg(steps=1, client_lr=0.3, labels="global"), rounds=20
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
    assert_identical(runs[0].shared, runs[1].shared)


def test_fedbabus_head_never_changes_and_has_orthonormal_rows() -> None:
    twin = world()
    head = train(twin, pflego.FedBabu()).shared["head"]
    assert torch.equal(head, pflego.FedBabu().init_shared(twin.model, 4, SEED)["head"])
    assert torch.allclose(head @ head.T, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_messages_and_states_hold_what_they_should(name: str) -> None:
    """Nothing of a personal head is in any message; nothing is sent that is not shared."""
    twin = world()
    algorithm = ALGORITHMS[name]()
    problems = Problems(twin.federation, twin.model, labels=algorithm.label_space)
    outputs = 4 if algorithm.label_space == "local" else 6
    shared = algorithm.init_shared(twin.model, outputs, 0)
    round = Round(1, clients=5, expected=5, samples=twin.federation.samples, selected=5)
    update = algorithm.client_update(round, shared, algorithm.init_state(problems[1], 0), problems[1])
    theta = {"0.weight", "0.bias"}
    sent = {
        "local": set(),
        "fedavg": theta | {"head"},
        "fedprox": theta | {"head"},
        "ditto": theta | {"head"},
    }
    kept = {
        "fedavg": set(),
        "fedprox": set(),
        "fedbabu": set(),
        "local": theta | {"head"},
        "ditto": theta | {"head"},
    }
    assert update.message.keys() == sent.get(name, theta)
    assert update.state.keys() == kept.get(name, {"head"})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("regression", [False, True], ids=["classification", "regression"])
def test_every_method_learns(name: str, regression: bool) -> None:
    data = "diabetes" if regression else "digits"
    federation = pflego.load(data, clients=4, classes_per_client=None if regression else 3)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]))
    rate = {} if name == "pflego" else {"client_lr": 0.02 if regression else 0.1}
    algorithm = ALGORITHMS[name](steps=10, **rate)  # type: ignore[call-arg]
    run = pflego.train(federation, model, algorithm, rounds=15, participation=3)
    first, last = run.history[0]["loss"] or 0, run.history[-1]["loss"] or 9
    assert last < first
    if regression:
        assert (run.history[-1]["everyone_rmse"] or 9) < 0.95
    else:
        assert (run.history[-1]["everyone_accuracy"] or 0) > 0.8
        client = federation[0]
        assert run.personal_model(client.id).predict(client.x_test).shape == client.y_test.shape


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: pflego.FedProx(mu=-1),
        lambda: pflego.FedAvg(labels="other"),  # type: ignore[arg-type]
        lambda: pflego.FedRep(steps=3, body_steps=4),
        lambda: pflego.FedRep(momentum=-0.1),
        lambda: pflego.FedBabu(fine_tune=-1),
        lambda: pflego.Ditto(global_lr=0),
        lambda: pflego.FedRecon(client_lr=0),
        lambda: pflego.FedRecon(server_optimizer="adamm"),
        lambda: pflego.FedPer(steps=0),
    ],
)
def test_wrong_hyperparameters_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(pflego.UserError):
        wrong()
