"""Mini-batches, epochs, momentum, decays of weights and rates against NumPy float64; what they cost and leave exact."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms.local_steps import LocalSteps
from pflego.errors import SettingError
from pflego.exchange.round import Round
from pflego.learning.head_group import HeadGroup
from pflego.learning.problems import Problems
from pflego.learning.theory import expected_smoothness
from tests.support.reference import (
    Params,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    gradients,
    world,
)
from tests.support.rivals import (
    Client,
    Simulation,
    assert_at,
    batches,
    fedper,
    global_sites,
    own_heads,
    own_models,
    shared_head,
    steps,
)

BETA, ROUNDS, SEED, SIZE, EPOCHS = 0.15, 5, 4, 4, 3
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
RULE: dict[str, Any] = {"client_lr": BETA, "momentum": 0.6, "weight_decay": 0.05, "lr_decay": 0.8}


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    return pflego.train(
        twin.federation,
        twin.model,
        algorithm,
        rounds=ROUNDS,
        participation=3,
        seed=SEED,
        **options,
    )


def work(s: Simulation, i: int, w: Params, draw: str = "batches", **terms: Any) -> Params:
    """EPOCHS epochs of batches of SIZE, with RULE's momentum, decay and rate."""
    site = s.sites[i]
    count = EPOCHS * ceil(site.n / SIZE)
    drawn = batches(SEED, s.round, i, site, SIZE, count, draw)
    rate = BETA * 0.8 ** (s.round - 1)
    return steps(w, site, count, rate=rate, momentum=0.6, decay=0.05, batches=drawn, **terms)


def _one_model(s: Simulation, i: int) -> Params:
    return work(s, i, s.shared)


def _near(s: Simulation, i: int) -> Params:
    return work(s, i, s.shared, anchor=s.shared, mu=0.7)


def _own_head(s: Simulation, i: int) -> Params:
    w = work(s, i, {**s.shared, **s.own[i]})
    s.own[i] = {"W": w["W"]}
    return {"V": w["V"], "v": w["v"]}


def _beside(s: Simulation, i: int) -> Params:
    s.own[i] = work(s, i, s.own[i], anchor=s.shared, mu=0.4)
    return work(s, i, s.shared, draw="global batches")


def _alone(s: Simulation, i: int) -> Params:
    s.own[i] = work(s, i, s.own[i])
    return {}


def _in_turn(s: Simulation, i: int) -> Params:
    """FedRep: two epochs on the head, one on the backbone."""
    site, rate, w = s.sites[i], BETA * 0.8 ** (s.round - 1), {**s.shared, **s.own[i]}
    for names, epochs, draw in (("W", EPOCHS - 1, "head batches"), ("Vv", 1, "batches")):
        count = epochs * ceil(site.n / SIZE)
        drawn = batches(SEED, s.round, i, site, SIZE, count, draw)
        w = steps(w, site, count, rate=rate, names=names, momentum=0.6, decay=0.05, batches=drawn)
    s.own[i] = {"W": w["W"]}
    return {"V": w["V"], "v": w["v"]}


@pytest.mark.parametrize(
    ("algorithm", "start", "client"),
    [
        (pflego.FedAvg, lambda twin: shared_head(twin, global_sites(twin)), _one_model),
        (pflego.FedProx, lambda twin: shared_head(twin, global_sites(twin)), _near),
        (pflego.FedPer, own_heads, _own_head),
        (pflego.FedRep, own_heads, _in_turn),
        (pflego.Ditto, lambda twin: own_models(twin, global_sites(twin), shared=True), _beside),
        (pflego.Local, lambda twin: own_models(twin, twin.sites, shared=False), _alone),
    ],
)
def test_epochs_of_batches_follow_the_equations(
    algorithm: type[LocalSteps], start: Callable[[World], Simulation], client: Client
) -> None:
    twin = world()
    own: dict[object, dict[str, Any]] = {
        pflego.FedProx: {"mu": 0.7},
        pflego.Ditto: {"mu": 0.4},
        pflego.FedRep: {"body_steps": 1},
    }
    method = algorithm(epochs=EPOCHS, batch_size=SIZE, head_init="zeros", **RULE, **own.get(algorithm, {}))
    simulation = start(twin)
    simulation.play(client, CHOSEN)
    assert_at(train(twin, method), simulation)


def test_steps_go_on_through_as_many_epochs_as_they_need() -> None:
    twin, count = world(), 7
    simulation = shared_head(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        drawn = batches(SEED, s.round, i, s.sites[i], SIZE, count)
        return steps(s.shared, s.sites[i], count, rate=BETA, batches=drawn)

    simulation.play(client, CHOSEN)
    assert_at(
        train(twin, pflego.FedAvg(steps=count, batch_size=SIZE, client_lr=BETA, head_init="zeros")),
        simulation,
    )


def test_batches_hold_every_sample_once_an_epoch_and_differ_between_rounds_and_clients() -> None:
    twin = world()
    problem = Problems(twin.federation, twin.model)[2]
    number = ceil(problem.samples / SIZE)
    here = [batch for batch in problem.at(SEED, 1).batches(SIZE, 2 * number) if batch is not None]
    for epoch in (here[:number], here[number:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(problem.samples))
        assert {len(batch) for batch in epoch[:-1]} == {SIZE}
    assert not torch.equal(torch.cat(here[:number]), torch.cat(here[number:]))
    later = [batch for batch in problem.at(SEED, 2).batches(SIZE, number) if batch is not None]
    assert not torch.equal(torch.cat(here[:number]), torch.cat(later))


@pytest.mark.parametrize("size", [None, 10**6])
def test_all_samples_at_once_are_what_they_were(size: int | None) -> None:
    twin = world()
    simulation = own_heads(twin)
    simulation.play(fedper(6, BETA), CHOSEN)
    method = pflego.FedPer(epochs=6, batch_size=size, client_lr=BETA, head_init="zeros")
    assert_at(train(twin, method), simulation)


def test_passes_count_what_went_through_the_backbone() -> None:
    twin = world()
    by_epoch = train(twin, pflego.FedAvg(epochs=3, batch_size=SIZE, client_lr=BETA)).history[0]
    assert (by_epoch["forward_passes"], by_epoch["backward_passes"]) == (3, 3)
    problem = Problems(twin.federation, twin.model, labels="global")[1].at(SEED, 1)
    method = pflego.FedAvg(steps=3, batch_size=SIZE, client_lr=BETA)
    shared = method.init_shared(twin.model, problem.outputs, SEED)
    method.client_update(Round(1, seed=SEED), shared, {}, problem)
    seen = sum(len(b) for b in problem.batches(SIZE, 3) if b is not None)
    assert problem.forward_passes == pytest.approx(seen / problem.samples, abs=1e-12)
    cost = pflego.cost.measure(
        twin.federation, twin.model, pflego.FedAvg(epochs=2, batch_size=SIZE, client_lr=BETA)
    )
    once = pflego.cost.measure(
        twin.federation, twin.model, pflego.FedAvg(epochs=1, batch_size=SIZE, client_lr=BETA)
    )
    assert cost.flops == 2 * once.flops
    assert (cost.forward_passes, once.forward_passes) == (2, 1)


def test_runs_of_batches_resume_and_do_not_depend_on_the_order(tmp_path: Path) -> None:
    twin, method = (
        world(),
        pflego.Ditto(epochs=2, batch_size=SIZE, client_lr=BETA, lr_decay=0.9, momentum=0.5),
    )
    whole = train(twin, method, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "participation": 3, "seed": SEED, "out": tmp_path / "run"}
    pflego.train(twin.federation, twin.model, method, rounds=2, **options)
    resumed = pflego.train(twin.federation, twin.model, method, rounds=ROUNDS, resume=True, **options)
    assert_identical(whole, resumed)
    backwards = pflego.Federation(list(twin.federation)[::-1])
    everyone = [
        pflego.train(federation, twin.model, method, rounds=2, seed=SEED)
        for federation in (twin.federation, backwards)
    ]
    assert_same_weights(everyone[0].shared, everyone[1].shared, within=1e-12)


def test_auto_is_the_expected_smoothness_of_a_batch() -> None:
    twin = world()
    problem, site = Problems(twin.federation, twin.model)[2].at(SEED, 1), twin.sites[2]
    whole, part = (
        pflego.FedPer(batch_size=size, weight_decay=0.02, head_init="zeros") for size in (None, SIZE)
    )
    weights = {**twin.model.weights(), **whole.new_head(problem, SEED)}
    phi = np.tanh(site.x @ twin.net.V.T + twin.net.v)
    phi = np.concatenate([phi, np.ones((len(phi), 1))], axis=1)
    mean = 0.5 * float(np.linalg.eigvalsh(phi.T @ phi / len(phi)).max())
    largest = 0.5 * float((phi**2).sum(axis=1).max())
    n = site.n
    ratio = expected_smoothness(mean, largest, n, SIZE) / mean
    assert 1 < ratio < largest / mean + 1e-12
    rng = np.random.default_rng(0)
    for _ in range(100):  # no batch is rougher than the roughest sample
        some = phi[rng.choice(n, SIZE, replace=False)]
        assert 0.5 * np.linalg.eigvalsh(some.T @ some / SIZE).max() <= largest + 1e-12
    slow, fast = part.rate_of(problem, weights, list(weights)), whole.rate_of(problem, weights, list(weights))
    assert (1 / slow - 0.02) / (1 / fast - 0.02) == pytest.approx(ratio, rel=1e-6)


def test_two_parameters_with_one_gradient_are_added_up_apart() -> None:
    """Autograd gives a + b's gradient to both as one tensor; slices must not add to it twice."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.ones(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ (self.a + self.b).T)

    client = pflego.Client(
        "a", torch.randn(9, 3), torch.arange(9) % 2, torch.randn(2, 3), torch.tensor([0, 1])
    )
    model = pflego.Model(Twice(), features=2)
    whole, sliced = (
        pflego.train(
            pflego.Federation([client]), model, pflego.PFLEGO(head_init="centred"), rounds=2, slice_size=size
        )
        for size in (None, 2)
    )
    assert_same_weights(whole.shared, sliced.shared, within=1e-5)


def test_the_joint_gradient_of_a_sample_is_unbiased() -> None:
    """Over all samples that could have been drawn for it, whatever the head's steps have seen, by enumeration."""
    twin, most = world(), 3
    problem, site = Problems(twin.federation, twin.model)[0], twin.sites[0]
    method = pflego.PFLEGO(steps=5, client_lr=BETA, sample=most, head_step="exact", server_optimizer="sgd")
    state = method.init_state(problem, SEED)
    drawn = [
        method.client_update(Round(t, seed=SEED), twin.model.weights(), state, problem.at(SEED, t))
        for t in range(1, 4)
    ]
    assert (
        len({float(update.contribution["0.weight"].sum()) for update in drawn}) == 3
    )  # a fresh draw every round
    seen = problem.at(SEED, 1).some(most, "samples of the head")
    group = HeadGroup([seen], seen.features(twin.model.weights()))
    [work] = method.heads.fit(twin.model.weights(), [state], group)
    head = work.head["head"].numpy()
    mean = np.mean(
        [gradients(twin.net, head, site.part(np.array(c)))[0] for c in combinations(range(site.n), most)],
        axis=0,
    )
    assert np.abs(mean - gradients(twin.net, head, site)[0]).max() < 1e-12
    joint = problem.at(SEED, 1).some(most, "samples of the joint step")
    places = [int(np.flatnonzero((site.x == row).all(axis=1))[0]) for row in joint.x.numpy()]
    ours = drawn[0].contribution["0.weight"].numpy()
    assert np.abs(ours - gradients(twin.net, head, site.part(np.array(places)))[0]).max() < 1e-12
    assert joint.passed is problem.passed


def test_a_sample_as_large_as_a_client_is_all_of_it() -> None:
    twin = world()
    options: dict[str, Any] = {"steps": 5, "client_lr": BETA}
    assert_identical(
        train(twin, pflego.PFLEGO(**options)), train(twin, pflego.PFLEGO(**options, sample=10**6))
    )


def test_a_sample_costs_its_share() -> None:
    twin = world()
    row = train(twin, pflego.PFLEGO(sample=2, steps=5)).history[0]
    smallest = min(twin.sites[i].n for i in CHOSEN[0])
    assert row["forward_passes"] == pytest.approx(4 / smallest)
    assert row["backward_passes"] == pytest.approx(2 / smallest)


@pytest.mark.parametrize("other", [{"passes": 2}, {"head_optimizer": "solve"}])
def test_a_sample_goes_with_one_pass_and_steps(other: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="sample="):
        pflego.PFLEGO(sample=5, **other)


def test_fine_tuning_by_epochs_has_batches_of_its_own() -> None:
    twin = world()
    method = pflego.FedAvg(
        epochs=2, batch_size=SIZE, client_lr=BETA, fine_tune=1, lr_decay=0.5, head_init="zeros"
    )
    run = train(twin, method)
    site, i = global_sites(twin)[1], 1
    count = ceil(site.n / SIZE)
    drawn = batches(0, 0, i, site, SIZE, count)
    w = {
        "V": run.shared["0.weight"].numpy(),
        "v": run.shared["0.bias"].numpy(),
        "W": run.shared["head"].numpy(),
    }
    tuned = steps(w, site, count, rate=BETA, batches=drawn)
    ours = dict(run.personal_model("c1").named_parameters())["head.weight"].detach().numpy()
    assert np.abs(ours - tuned["W"][:, :-1]).max() < 1e-10
