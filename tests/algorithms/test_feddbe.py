"""FedDBE against its equations in NumPy float64, and what is left of it at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.federation.network import Network
from pflego.learning.problems import Problems
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from tests.support.reference import World, assert_identical, assert_same_weights, cohorts, link, world
from tests.support.rivals import assert_at, batches, fedavg, feddbe, global_sites, shared_head, shifted

TAU, BETA, ROUNDS, SEED, KAPPA = 5, 0.15, 6, 4, 3.0
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
OPTIONS: dict[str, Any] = {"steps": TAU, "client_lr": BETA, "head_init": "zeros"}


def train(twin: World, algorithm: pflego.Algorithm, rounds: int = ROUNDS, **options: Any) -> pflego.Run:
    return pflego.train(
        twin.federation, twin.model, algorithm, rounds=rounds, participation=3, seed=SEED, **options
    )


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_it_follows_its_equations(share: float) -> None:
    twin = world()
    simulation = shifted(twin, global_sites(twin))
    simulation.play(feddbe(TAU, BETA, kappa=KAPPA, share=share), CHOSEN)
    run = train(twin, pflego.FedDBE(**OPTIONS, kappa=KAPPA, mean_share=share))
    assert_at(run, simulation)
    assert simulation.shared["k"] == 1
    assert max(np.abs(own["b"]).max() for own in simulation.own) > 1e-3
    assert (run.history[-1]["forward_passes"], run.history[-1]["backward_passes"]) == (TAU, TAU)


def test_the_mean_of_many_slices_is_one_mean() -> None:
    twin = world()
    method = pflego.FedDBE(**OPTIONS, kappa=KAPPA)
    whole, sliced = (train(twin, method, slice_size=size) for size in (None, 3))
    assert_same_weights(sliced.shared, whole.shared, within=1e-12)
    assert sliced.history[0]["forward_passes"] == 2 * TAU


def test_the_first_round_is_fedavg() -> None:
    twin = world()
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(fedavg(TAU, BETA), CHOSEN[:1])
    run = train(twin, pflego.FedDBE(**OPTIONS), rounds=1)
    for name, ours in (("V", "0.weight"), ("v", "0.bias"), ("W", "head")):
        assert np.abs(run.shared[ours].numpy() - simulation.shared[name]).max() < 1e-12
    assert all(not state["shift"].any() for state in run.states.values())


def test_a_batch_counts_by_its_share_in_the_running_mean() -> None:
    """A round of mini-batches from a known mean, by hand."""
    twin, size, share = world(), 4, 0.4
    method = pflego.FedDBE(
        epochs=2,
        batch_size=size,
        client_lr=BETA,
        kappa=KAPPA,
        mean_share=share,
        momentum=0.5,
        weight_decay=0.1,
    )
    site = global_sites(twin)[1]
    problem = Problems(twin.federation, twin.model, labels="global")[1].at(SEED, 2)
    rng = np.random.default_rng(0)
    W, m, b = rng.normal(size=(6, 5)), rng.normal(size=4), rng.normal(size=4)
    shared = {
        **twin.model.weights(),
        "head": torch.from_numpy(W),
        "mean/features": torch.from_numpy(m),
        "mean/known": torch.ones((), dtype=torch.float64),
    }
    update = method.client_update(pflego.Round(2, seed=SEED), shared, {"shift": torch.from_numpy(b)}, problem)
    w = {"V": twin.net.V, "v": twin.net.v, "W": W, "b": b}
    velocity, mean = {name: np.zeros_like(value) for name, value in w.items()}, np.zeros(4)
    for batch in batches(SEED, 2, 1, site, size, 2 * -(-site.n // size)):
        part = site.part(batch)
        phi = np.tanh(part.x @ w["V"].T + w["v"])
        mean = (1 - share) * mean + share * phi.mean(axis=0)
        residual = (link((phi + w["b"]) @ w["W"][:, :-1].T + w["W"][:, -1], True) - part.t) / part.n
        pre = (residual @ w["W"][:, :-1] + KAPPA * share * (mean - m) / 4 / part.n) * (1 - phi**2)
        ones = np.ones((part.n, 1))
        slopes = {
            "V": pre.T @ part.x,
            "v": pre.sum(axis=0),
            "W": residual.T @ np.concatenate([phi + w["b"], ones], axis=1),
            "b": (residual @ w["W"][:, :-1]).sum(axis=0),
        }
        for name, slope in slopes.items():
            velocity[name] = 0.5 * velocity[name] + slope + 0.1 * w[name]
        w = {name: value - BETA * velocity[name] for name, value in w.items()}
    assert np.abs(update.state["shift"].numpy() - w["b"]).max() < 1e-10
    assert np.abs(update.contribution["0.weight"].numpy() - (w["V"] - twin.net.V)).max() < 1e-10
    assert np.abs(update.contribution["head"].numpy() - (w["W"] - W)).max() < 1e-10


def test_a_personal_model_has_the_shift_in_its_head() -> None:
    twin = world()
    run = train(twin, pflego.FedDBE(**OPTIONS, kappa=KAPPA))
    x = twin.federation[2].x_test
    theta, W, b = run.shared, run.shared["head"].numpy(), run.states["c2"]["shift"].numpy()
    phi = np.tanh(x.numpy() @ theta["0.weight"].numpy().T + theta["0.bias"].numpy())
    ours = run.personal_model("c2")(x).detach().numpy()
    assert np.abs(ours - ((phi + b) @ W[:, :-1].T + W[:, -1])).max() < 1e-12
    assert np.abs(b).max() > 1e-3


class Known(pflego.Callback):
    """Notes after every round whether the mean is known."""

    def __init__(self) -> None:
        self.rounds: list[bool] = []

    def on_round(self, run: Run, row: HistoryRow) -> None:
        self.rounds.append(bool(run.shared["mean/known"]))


def test_a_mean_that_is_lost_is_asked_for_again() -> None:
    """Nothing arrives in the first rounds; the first that does has the mean, of those that arrived."""
    twin, known = world(), Known()
    run = train(twin, pflego.FedDBE(**OPTIONS), rounds=8, dropout=0.8, callbacks=[known])
    arrived = [int(row["participants"] or 0) - int(row["missing"] or 0) for row in run.history]
    first = next(t for t, count in enumerate(arrived) if count)
    assert first > 0
    assert arrived[first] < 3
    assert known.rounds == [t >= first for t in range(8)]
    simulation = shifted(twin, global_sites(twin))
    simulation.play(
        feddbe(TAU, BETA, kappa=50.0),
        cohorts(pflego.Fixed(3), 5, rounds=8, seed=SEED),
        arrives=lambda i, t: Network(dropout=0.8).delivers(
            samples=1, passes=1, client=f"c{i}", number=t, seed=SEED
        ),
    )
    assert_at(run, simulation)


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    twin, method = world(), pflego.FedDBE(**OPTIONS, batch_size=5)
    whole = train(twin, method, evaluate_every=1)
    train(twin, method, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, method, out=tmp_path, evaluate_every=1, resume=True), whole)


def test_heads_that_are_no_linear_layer_are_refused() -> None:
    twin = world()
    model = pflego.Model(twin.model.backbone, features=4, head=nn.Linear)
    with pytest.raises(pflego.ModelError, match="linear heads"):
        pflego.train(twin.federation, model, pflego.FedDBE(), rounds=1)


def test_auto_knows_the_pull() -> None:
    """The stronger the pull, the smaller the steps: no loss of a strong one runs away."""
    twin = world()
    run = train(twin, pflego.FedDBE(kappa=1e4), rounds=8)
    assert all(row["rejected"] == 0 for row in run.history)
    assert (run.history[-1]["loss"] or 9) < 2.5
