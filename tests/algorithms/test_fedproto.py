"""FedProto against its equations in NumPy float64; classes that nobody has, and what travels."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms import class_means
from pflego.learning.problems import Problems
from tests.support.reference import (
    F64,
    Params,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    fedproto,
    prototypes,
    steps,
    sums_of_classes,
    towards_means,
)

TAU, BETA, ROUNDS, SEED, MU = 5, 0.15, 6, 4, 1.5
CHOSEN = cohorts(pflego.Fixed(2), 5, rounds=ROUNDS, seed=SEED)
OPTIONS: dict[str, Any] = {"steps": TAU, "client_lr": BETA, "head_init": "zeros"}


def train(twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, **options: Any) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=2, seed=SEED, **options
    )


def test_it_follows_its_equations() -> None:
    twin = world()
    simulation = prototypes(twin)
    simulation.play(fedproto(TAU, BETA, mu=MU), CHOSEN)
    run = train(twin, pflego.FedProto(**OPTIONS, mu=MU))
    assert_at(run, simulation)
    alone = train(twin, pflego.Local(**OPTIONS))
    assert (
        max((run.states[i]["0.weight"] - alone.states[i]["0.weight"]).abs().max() for i in run.states) > 1e-3
    )
    row = run.history[0]
    assert (row["forward_passes"], row["backward_passes"]) == (TAU + 1, TAU)
    classes = len(twin.federation.classes or [])
    assert row["bytes_up"] == row["bytes_down"] == 2 * 8 * classes * (4 + 1)  # no weight of any model


def test_epochs_of_batches_follow_the_equations() -> None:
    twin, size = world(), 4

    def client(s: Simulation, i: int) -> Params:
        site, count = s.sites[i], 2 * ceil(s.sites[i].n / size)
        drawn = batches(SEED, s.round, i, site, size, count)
        s.own[i] = steps(
            s.own[i], site, count, rate=BETA, batches=drawn, decay=0.1, on_features=towards_means(s, i, MU)
        )
        return sums_of_classes(s, i, s.own[i])

    simulation = prototypes(twin)
    simulation.play(client, CHOSEN)
    method = pflego.FedProto(
        epochs=2, batch_size=size, client_lr=BETA, mu=MU, weight_decay=0.1, head_init="zeros"
    )
    assert_at(train(twin, method), simulation)


def test_a_prototype_is_the_mean_over_samples_of_all_who_have_the_class() -> None:
    twin = world()
    run = pflego.train(twin.federation, twin.model, pflego.FedProto(**OPTIONS), rounds=1, seed=SEED)
    found: dict[int, list[F64]] = {}
    for client in twin.federation:
        state = run.states[client.id]
        phi = np.tanh(client.x_train.numpy() @ state["0.weight"].numpy().T + state["0.bias"].numpy())
        for label, own in zip(client.y_train.tolist(), phi, strict=True):
            found.setdefault(label, []).append(own)
    for place, label in enumerate(twin.federation.classes or []):
        mean = np.mean(found[label], axis=0)
        assert np.abs(run.shared["class/means"][place].numpy() - mean).max() < 1e-12
    equal = pflego.train(
        twin.federation, twin.model, pflego.FedProto(**OPTIONS), rounds=1, seed=SEED, weighting="equal"
    )
    assert not torch.allclose(equal.shared["class/means"], run.shared["class/means"])


def test_classes_that_nobody_has_sent_have_no_mean_and_no_pull() -> None:
    twin = world()
    run = train(twin, pflego.FedProto(**OPTIONS, mu=MU), rounds=1)
    seen = {c for i in CHOSEN[0] for c in twin.federation[i].classes.tolist()}
    known = [c in seen for c in twin.federation.classes or []]
    assert not all(known)
    assert run.shared["class/known"].bool().tolist() == known
    assert not run.shared["class/means"][~torch.tensor(known)].any()
    for problem in (run.problems[i] for i in range(5)):
        term = class_means.pull(run.shared, problem, MU)
        if not seen & set(problem.classes.tolist()):
            assert term is None
            continue
        features = torch.randn(problem.samples, 4, dtype=torch.float64, requires_grad=True)
        assert term is not None
        [slopes] = torch.autograd.grad(term(features, torch.arange(problem.samples)), features)
        pulled = [label in seen for label in problem.client.y_train.tolist()]
        assert slopes.abs().sum(dim=1).bool().tolist() == pulled


def test_without_its_pull_everybody_learns_alone() -> None:
    twin = world()
    ours, theirs = train(twin, pflego.FedProto(mu=0.0)), train(twin, pflego.Local())
    for client in ours.states:
        assert_same_weights(ours.states[client], theirs.states[client])


def test_a_regression_is_one_class() -> None:
    twin = world(regression=True)
    run = pflego.train(twin.federation, twin.model, pflego.FedProto(**OPTIONS, mu=MU), rounds=1, seed=SEED)
    total, samples = np.zeros(4), 0
    for client in twin.federation:
        state = run.states[client.id]
        phi = np.tanh(client.x_train.numpy() @ state["0.weight"].numpy().T + state["0.bias"].numpy())
        total, samples = total + phi.sum(axis=0), samples + len(phi)
    assert np.abs(run.shared["class/means"][0].numpy() - total / samples).max() < 1e-12


def test_auto_is_the_smoothness_with_the_pull() -> None:
    """The largest curvature of loss and pull together, by differences of NumPy's gradient."""
    twin, strong, i = world(), 50.0, 2
    simulation = prototypes(twin)
    simulation.play(fedproto(TAU, BETA, mu=MU), CHOSEN)
    simulation.shared["k"][:] = 1
    w, term = simulation.own[i], towards_means(simulation, i, strong)
    flat = np.concatenate([w[name].ravel() for name in "VvW"])

    def gradient(point: F64) -> F64:
        parts = np.split(point, np.cumsum([w[name].size for name in "Vv"]))
        here = {name: part.reshape(w[name].shape) for name, part in zip("VvW", parts, strict=True)}
        stepped = steps(here, simulation.sites[i], 1, rate=1.0, on_features=term)
        return np.concatenate([(here[name] - stepped[name]).ravel() for name in "VvW"])

    step = 1e-5
    hessian = np.array(
        [(gradient(flat + step * e) - gradient(flat - step * e)) / (2 * step) for e in np.eye(len(flat))]
    )
    largest = float(np.abs(np.linalg.eigvalsh((hessian + hessian.T) / 2)).max())
    shared = {
        "class/means": torch.from_numpy(simulation.shared["P"]),
        "class/known": torch.from_numpy(simulation.shared["k"]),
    }
    state = {
        name: torch.from_numpy(w[own]) for name, own in (("0.weight", "V"), ("0.bias", "v"), ("head", "W"))
    }
    method, problem = pflego.FedProto(mu=strong), Problems(twin.federation, twin.model)[i]
    after = method.adapt(shared, state, problem)
    assert after.keys() == state.keys()
    pull = class_means.pull(shared, problem, strong)
    assert 0.9 < 1 / method.rate_of(problem, state, list(state), on_features=pull) / largest < 1 + 1e-6
    assert 1 / method.rate_of(problem, state, list(state)) < largest / 2
    moved = steps(w, simulation.sites[i], method.steps, rate=1 / largest, on_features=term)
    assert distance(after["0.weight"], moved["V"]) < 0.1


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    twin, method = world(), pflego.FedProto(**OPTIONS, batch_size=5)
    whole = train(twin, method, evaluate_every=1)
    train(twin, method, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, method, out=tmp_path, evaluate_every=1, resume=True), whole)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(pflego.SettingError, match="mu"):
        pflego.FedProto(mu=-1.0)
