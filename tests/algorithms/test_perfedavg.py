"""Per-FedAvg against NumPy float64: both orders, disjoint batches, the step before use, and what it descends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.exchange.round import Round
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from tests.support.reference import Params, Site, World, assert_identical, cohorts, distance, world
from tests.support.rivals import (
    NAMES,
    assert_at,
    assert_weights,
    complex_gradient,
    complex_loss,
    global_sites,
    grad,
    perfedavg,
    shared_head,
    steps,
)

TAU, BETA, INNER, ROUNDS, SEED = 4, 0.15, 0.3, 5, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def method(**settings: Any) -> pflego.PerFedAvg:
    plain = {"steps": TAU, "client_lr": BETA, "inner_lr": INNER, "head_init": "zeros"}
    return pflego.PerFedAvg(**{**plain, **settings})


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


def params(shared: dict[str, torch.Tensor]) -> Params:
    return {NAMES[name]: w.numpy() for name, w in shared.items()}


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize(
    ("order", "delta"), [("first", None), ("hessian-free", 1e-3), ("hessian-free", 0.05)]
)
def test_perfedavg_follows_its_equations(order: Any, delta: float | None, size: int | None) -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(perfedavg(TAU, BETA, inner=INNER, seed=SEED, delta=delta, size=size), CHOSEN)
    run = train(twin, method(order=order, delta=delta or 1e-3, batch_size=size))
    assert_at(run, simulation)
    assert all(state == {} for state in run.states.values())


def test_the_batches_of_a_step_are_disjoint_and_fresh() -> None:
    twin = world()
    seen: list[torch.Tensor] = []

    class Watched(Problem):
        def gradient(self, weights: Any, batch: Any = None, **terms: Any) -> Any:
            seen.append(batch)
            return super().gradient(weights, batch, **terms)

    problem = Problems(twin.federation, twin.model, labels="global")[2].at(SEED, 1)
    problem.__class__ = Watched
    algorithm = method(steps=2)
    algorithm.adapt(algorithm.init_shared(twin.model, 6, SEED), {}, problem)
    assert len(seen) == 2 * 4
    for first, second, ahead, behind in (seen[:4], seen[4:]):
        assert torch.equal(ahead, behind)
        drawn = torch.cat([first, second, ahead]).tolist()
        assert sorted(drawn) == list(range(problem.samples))
    assert not torch.equal(seen[0], seen[4])


def test_before_use_a_client_takes_one_step_on_all_its_samples() -> None:
    twin = world()
    run = train(twin, method(lr_decay=0.5))
    for i, site in enumerate(global_sites(twin)):
        wanted = steps(params(run.shared), site, 1, rate=INNER)
        assert_weights(run.algorithm.personal(run.shared, {}, run.problems[i]), wanted)
        client = twin.federation[i]
        z = np.tanh(client.x_test.numpy() @ wanted["V"].T + wanted["v"])
        z = z @ wanted["W"][:, :-1].T + wanted["W"][:, -1]
        classes = np.array(twin.federation.classes)
        predicted = run.personal_model(client.id).predict(client.x_test).numpy()
        assert (predicted == classes[z.argmax(axis=1)]).all()


def test_a_rate_that_is_measured_is_that_of_both_kinds_of_steps() -> None:
    twin, algorithm = world(), method(inner_lr="auto", client_lr="auto", lr_decay=0.5)
    shared = algorithm.init_shared(twin.model, 6, SEED)
    problem = Problems(twin.federation, twin.model, labels="global")[1]
    rate = algorithm.rate_of(problem, shared, list(shared))
    later = Problems(twin.federation, twin.model, labels="global")[1].at(SEED, 2)
    moved = algorithm.adapt(shared, {}, later)
    fixed = method(inner_lr=rate, client_lr=rate, lr_decay=0.5).adapt(shared, {}, problem.at(SEED, 2))
    assert distance(moved["head"], fixed["head"].numpy()) < 1e-12
    assert later.backward_passes == pytest.approx(5 + TAU * 4 / 3)


def test_the_direction_is_the_gradient_of_the_loss_after_a_step() -> None:
    """Where all three batches are the same, as of a client with one sample, it is that up to O(delta^2)."""
    x, y = np.random.default_rng(5).normal(size=(1, 6)), np.array([2])
    others = list(world().federation)
    federation = pflego.Federation([pflego.Client("c0", x, y), *others[1:]])
    algorithm = method(steps=1, head_init="orthonormal", delta=1e-4)
    problem = Problems(federation, world().model, labels="global")[0]
    shared = algorithm.init_shared(world().model, problem.outputs, SEED)
    site = Site(x, (np.array(federation.classes) == 2).astype(float)[None])

    def after(w: Params) -> Any:
        g = grad(w, site)
        return complex_loss({name: w[name] - INNER * g[name] for name in w}, site)

    wanted = complex_gradient(after, params(shared))
    update = algorithm.client_update(Round(1), shared, {}, problem)
    sent = {name: -d / BETA for name, d in update.contribution.items()}
    assert_weights(sent, wanted, 1e-7)
    first = method(steps=1, head_init="orthonormal", order="first").client_update(
        Round(1), shared, {}, problem
    )
    assert distance(-first.contribution["head"] / BETA, wanted["W"]) > 1e-2


def test_with_a_step_of_no_length_it_is_fedavg_on_a_part_of_the_samples() -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))

    def client(s: Any, i: int) -> Params:
        site = s.sites[i]
        generator = pflego.randomness.torch_generator(SEED, "batches", round_number=s.round, client=f"c{i}")
        halves = [
            np.array_split(torch.randperm(site.n, generator=generator).numpy(), 2)[1] for _ in range(TAU)
        ]
        return steps(s.shared, site, TAU, rate=BETA, batches=halves)

    simulation.play(client, CHOSEN)
    assert_at(train(twin, method(order="first", inner_lr=1e-14)), simulation)


def test_epochs_draw_all_samples_once() -> None:
    twin, size = world(), 2
    problems = Problems(twin.federation, twin.model, labels="global")
    by_epoch = method(epochs=2, batch_size=size)
    for i, site in enumerate(twin.sites):
        assert by_epoch.steps_of(problems[i], 2) == 2 * -(-site.n // (3 * size))
        assert method(epochs=5).steps_of(problems[i], 5) == 5


def test_runs_are_resumed_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), method(batch_size=2, momentum=0.5, weight_decay=0.01, lr_decay=0.9)
    whole = train(twin, algorithm, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "out": tmp_path}
    train(twin, algorithm, rounds=2, **options)
    assert_identical(train(twin, algorithm, resume=True, **options), whole)
