"""Every method on a network with batch norm and dropout, parts of it personal, against NumPy float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms.base import Ability, abilities
from pflego.algorithms.registry import methods
from pflego.exchange.round import Round, Update
from pflego.federation.roster import ClientId
from pflego.learning.modes import Norm, is_statistic
from pflego.learning.problems import Problems
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.normed import BETA, PLAIN, ROUNDS, SEED, assert_at, backbone, first
from tests.support.normed_rivals import CASES, EVERYTHING
from tests.support.reference import (
    StopAfter,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    world,
)
from tests.support.rivals import Simulation, global_sites, of_kind

# norm, what is called personal, and what then stays at home
DIVISIONS: dict[str, tuple[Norm, str | None, str]] = {
    "statistics travel": ("averaged", None, ""),
    "a bias at home": ("averaged", "0.bias", "v"),
    "a norm's weights at home": ("averaged", "1.weight, 1.bias", "gb"),
    "batch norm at home": ("personal", None, "gbms"),
}


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("name", often(CASES, "pflego"))
def test_it_follows_numpy(name: str, division: str) -> None:
    """Unequal clients, three of five in a round, batches of which some are of a single sample, dropout."""
    twin, chosen, case = world(), pflego.Fixed(3), CASES[name]
    norm, personal, kept = DIVISIONS[division]
    module = backbone(twin)
    run = pflego.train(
        twin.federation,
        pflego.Model(module, 4, norm=norm, personal=personal),
        case.algorithm,
        rounds=ROUNDS,
        participation=chosen,
        seed=SEED,
    )
    sites = twin.sites if name == "fedproto" else global_sites(twin)
    everything = [{**first(module), "W": np.zeros((site.t.shape[1], 5))} for site in sites]
    starts = [
        case.start(
            sites,
            {n: w for n, w in one.items() if n in EVERYTHING and n not in kept},
            {n: one[n] for n in kept},
        )
        for one in everything
    ]
    simulation = Simulation(sites, starts[0][0], [own for _, own in starts])
    simulation.rows = [twin.rows(i) if name == "fedproto" else list(range(6)) for i in range(len(twin.sites))]
    drawn = cohorts(chosen, len(sites), rounds=ROUNDS, seed=SEED)
    simulation.play(case.client(kept), drawn, server=case.server, exchanges=case.exchanges)
    assert_at(run, simulation, case.tolerance)


# by the few NumPy cases of test_training_mode.py and test_fedbn.py
ELSEWHERE = {"fedprox", "fedper", "fedrep", "fedbabu", "ditto", "local", "fedbn"}
UNABLE: dict[Ability, list[str]] = {"training mode": ["pflego", "fedrecon"], "personal parts": ["fedrecon"]}
BOTH = [name for name in methods() if not any(name in unable for unable in UNABLE.values())]


def test_every_method_that_says_it_can_is_held_to_numpy() -> None:
    for ability in get_args(Ability):
        unable = [name for name, kind in methods().items() if ability not in abilities(kind)]
        assert unable == UNABLE[ability]
    assert {case.algorithm.name for case in CASES.values()} | ELSEWHERE == set(BOTH)


def test_a_refusal_names_the_methods_that_cannot() -> None:
    twin = world(clients=2)
    models: dict[Ability, pflego.Model] = {
        "training mode": pflego.Model(backbone(twin), 4, norm="averaged"),
        "personal parts": pflego.Model(backbone(twin).eval(), 4, personal="0.bias"),
    }
    for ability, model in models.items():
        with pytest.raises(pflego.ModelError, match=f"but {' and '.join(UNABLE[ability])}$"):
            pflego.FedRecon().check_model(model)


def made(name: str, **more: Any) -> pflego.Algorithm:
    """Make a method with a few full steps; FedALA mixes all three layers."""
    few: dict[str, Any] = {"steps": 3, "client_lr": 0.1, "body_steps": 1, "layers": 3}
    return of_kind(methods()[name], **{**few, **more})


def train(twin: World, algorithm: pflego.Algorithm, division: str, *, p: float = 0.4, **options: Any) -> Run:
    norm, personal, _ = DIVISIONS[division]
    model = pflego.Model(backbone(twin, p=p), 4, norm=norm, personal=personal)
    return pflego.train(
        twin.federation, model, algorithm, **{"rounds": 2, "participation": 3, "seed": SEED, **options}
    )


def first_update(algorithm: pflego.Algorithm, division: str) -> tuple[pflego.Model, Weights, Update]:
    """Give a model, what is shared at first, and what a client does then."""
    norm, personal, _ = DIVISIONS[division]
    twin = world(clients=2)
    model = pflego.Model(backbone(twin), 4, norm=norm, personal=personal)
    problems = Problems(twin.federation, model, labels=algorithm.labels)
    shared, problem = algorithm.init_shared(model, problems.outputs, SEED), problems[0].at(SEED, 1)
    state = algorithm.init_state(problem, SEED)
    return model, shared, algorithm.client_update(Round(1), shared, state, problem)


@pytest.mark.parametrize("division", ["a norm's weights at home", "batch norm at home"])
@pytest.mark.parametrize("name", often(BOTH))
def test_what_is_personal_is_neither_sent_nor_shared(name: str, division: str) -> None:
    """Nor has it a control variate, a slope, a gradient or anything else among what travels."""
    model, shared, update = first_update(made(name), division)
    for travels in (shared, update.contribution):
        assert not {key.rpartition("/")[2] for key in travels} & set(model.personal_names)
    before = model.personal_weights()
    if name != "feddane":  # whose first exchange is a gradient
        for key in model.personal_names:
            kept = [w for at, w in update.state.items() if at.rpartition("/")[2] == key]
            assert any(not torch.equal(w, before[key]) for w in kept), key


@pytest.mark.parametrize(
    "name", [name for name in BOTH if name != "fedpac"]
)  # whose server needs clients' names
def test_no_statistic_has_a_control_variate_or_an_optimisers_memory(name: str) -> None:
    algorithm = made(name)
    _, shared, update = first_update(algorithm, "statistics travel")
    moved, memory = algorithm.server_step(Round(1), shared, {}, update.contribution)
    parts = ("control/", "slope/", "old/", "mixing/", "gradient/")
    for kept in (shared, moved, update.state, update.contribution):
        assert not [key for key in kept if is_statistic(key) and key.startswith(parts)]
    assert not [key for key in memory if any(is_statistic(part) for part in key.split("/"))]
    for key in shared:
        if is_statistic(key) and key in update.contribution:  # one client: its statistics are the mean
            torch.testing.assert_close(moved[key], shared[key] + update.contribution[key])


class Lower:
    """Takes a number off everything that is sent, as noise might."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        return {name: tensor - 2 for name, tensor in contribution.items()}


@pytest.mark.parametrize(
    "name", ["fedavg", "fedopt", "fednova", "fedsgd", "uga", "pfedme", "scaffold", "feddyn"]
)
def test_variances_are_no_less_than_zero_whatever_is_sent(name: str) -> None:
    run = train(world(), made(name, client_lr=0.001), "statistics travel", rounds=1, transforms=[Lower()])
    assert torch.equal(run.shared["1.running_var"], torch.zeros(4, dtype=torch.float64))
    assert (run.shared["1.running_mean"] < 0).all()


@pytest.mark.parametrize("division", often(DIVISIONS))
@pytest.mark.parametrize("name", often(BOTH))
def test_it_resumes_to_the_bit_and_lets_newcomers_in(name: str, division: str, tmp_path: Path) -> None:
    twin, algorithm = world(), made(name, batch_size=3)
    options: dict[str, Any] = {"rounds": 3, "evaluate_every": 0}
    whole = train(twin, algorithm, division, **options)
    with pytest.raises(KeyboardInterrupt):
        train(twin, algorithm, division, **options, out=tmp_path, callbacks=[StopAfter(1)])
    run = train(twin, algorithm, division, **options, out=tmp_path, resume=True)
    assert_identical(run, whole)
    assert all(w.isfinite().all() for state in run.states.values() for w in state.values())
    run.evaluate(adapt=True)
    site = twin.federation[1]
    joined = run.join(pflego.Client("late", site.x_train, site.y_train), alone=0).run
    assert joined.states["late"].keys() == run.states["c0"].keys()
    for client in ("c0", "late"):
        assert joined.personal_model(client)(site.x_train).isfinite().all()


@pytest.mark.parametrize("name", often(BOTH))
def test_training_mode_takes_no_more_passes(name: str) -> None:
    twin, algorithm = world(), made(name)
    frozen = pflego.train(
        twin.federation,
        pflego.Model(backbone(twin).eval(), 4, norm="group"),
        algorithm,
        rounds=2,
        participation=3,
        seed=SEED,
    )
    live = train(twin, algorithm, "statistics travel")
    for way in ("forward_passes", "backward_passes"):
        assert [row[way] for row in live.history] == [row[way] for row in frozen.history]


AUTO: dict[str, Any] = {"steps": 3, "batch_size": 4, "momentum": 0.5, "weight_decay": 0.01}
FULL: dict[str, Any] = {"client_lr": BETA, "weight_decay": 0.01}
# two that are the same in a limit, clients, rounds and the probability of dropout; shared weights are compared
LIMITS: dict[str, tuple[pflego.Algorithm, pflego.Algorithm, int, int, float]] = {
    "fedopt": (
        pflego.FedOpt(**AUTO, server_optimizer="momentum", beta1=0.0, server_lr=1.0),
        pflego.FedAvg(**AUTO),
        5,
        3,
        0.4,
    ),
    "fednova": (
        pflego.FedNova(**AUTO, client_lr=BETA),
        pflego.FedAvg(**AUTO, client_lr=BETA),
        5,
        3,
        0.4,
    ),
    "fedsgd": (pflego.FedSGD(**FULL, batch_size=4), pflego.FedAvg(**FULL, batch_size=4, steps=1), 5, 3, 0.4),
    "feddane": (pflego.FedDane(**AUTO), pflego.FedProx(**AUTO), 1, 3, 0.4),  # one client corrects nothing
    "uga": (
        pflego.UGA(steps=1, client_lr=BETA, server_optimizer="sgd", server_lr=BETA),
        pflego.FedSGD(client_lr=BETA),
        5,
        3,
        0.0,
    ),
    "scaffold": (pflego.Scaffold(**AUTO), pflego.FedAvg(**AUTO), 5, 1, 0.4),  # controls are zero at first
    "apfl": (pflego.APFL(**AUTO, mixing=0.0, learn_mixing=False), pflego.FedAvg(**AUTO), 5, 3, 0.0),
    "fedala": (pflego.FedALA(**AUTO, mixing_lr=1e-300), pflego.FedAvg(**AUTO), 5, 3, 0.4),
    "feddbe": (pflego.FedDBE(**AUTO), pflego.FedAvg(**AUTO), 5, 1, 0.4),  # without a shift at first
    "moon": (pflego.MOON(**AUTO, mu=0.0), pflego.FedAvg(**AUTO), 5, 3, 0.4),
}


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("name", often(LIMITS))
def test_limits_are_the_same_on_these_networks(name: str, division: str) -> None:
    """With rates that are measured in training mode, momentum and weight decay."""
    ours, theirs, clients, rounds, p = LIMITS[name]
    twin = world(clients=clients)
    options: dict[str, Any] = {"rounds": rounds, "participation": min(3, clients), "p": p}
    one, other = (train(twin, algorithm, division, **options) for algorithm in (ours, theirs))
    assert_same_weights({key: one.shared[key] for key in other.shared}, other.shared, within=1e-9)
    for client, state in other.states.items():
        own = {key: w for key, w in one.states[client].items() if key in state}
        own |= {key: one.states[client][f"own/{key}"] for key in state if f"own/{key}" in one.states[client]}
        assert_same_weights(own, state, within=1e-9)


@pytest.mark.parametrize("division", DIVISIONS)
def test_without_a_pull_fedproto_is_learning_alone(division: str) -> None:
    twin = world()
    ours, theirs = (
        train(twin, algorithm, division)
        for algorithm in (pflego.FedProto(**AUTO, mu=0.0), pflego.Local(**AUTO))
    )
    for client, state in theirs.states.items():
        assert_same_weights(ours.states[client], state)


@pytest.mark.parametrize("division", DIVISIONS)
def test_fedsgds_loss_and_gradient_come_from_the_same_pass_under_an_objective(division: str) -> None:
    """Of q = 0 the objective is the mean of losses, and the gradient the one without."""
    twin = world()
    plain, fair = (
        train(twin, pflego.FedSGD(**FULL), division, objective=objective)
        for objective in (None, pflego.QFair(0.0))
    )
    assert_same_weights(fair.shared, plain.shared, within=1e-12)


@pytest.mark.parametrize("kind", [pflego.FedRoD, pflego.FedPAC, pflego.LGFedAvg])
def test_a_personal_head_is_refused_where_the_method_has_a_use_for_a_common_one(kind: Any) -> None:
    twin = world(clients=2)
    with pytest.raises(pflego.ModelError, match="leave head out"):
        pflego.train(
            twin.federation, pflego.Model(twin.model.backbone, 4, personal="head"), kind(**PLAIN), rounds=1
        )


@pytest.mark.parametrize(
    "name",
    often([name for name in BOTH if name not in ("fedbabu", "fedrod", "fedpac", "lgfedavg")], "fedavg"),
)
def test_a_personal_head_stays_at_home(name: str) -> None:
    twin = world(clients=3)
    model = pflego.Model(backbone(twin), 4, norm="averaged", personal="head")
    run = pflego.train(twin.federation, model, made(name), rounds=2, seed=SEED)
    assert not [key for key in run.shared if key.rpartition("/")[2] == "head"]
    heads = [
        [w for key, w in run.states[c].items() if key.rpartition("/")[2] == "head"] for c in ("c0", "c1")
    ]
    assert not torch.equal(heads[0][0], heads[1][0])
    run.evaluate(adapt=True)
