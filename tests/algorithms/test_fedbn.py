"""FedBN against NumPy float64: batch norm stays at home, everything else is averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pflego
from pflego.learning.modes import Norm
from tests.support.normed import PLAIN, ROUNDS, SEED, assert_at, averaging, backbone, start
from tests.support.reference import StopAfter, assert_identical, assert_same_weights, cohorts, world


@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("norm", ["personal", "averaged"])
def test_it_follows_numpy_whatever_others_do_with_batch_norm(norm: Norm, weighting: Any) -> None:
    """Unequal clients, three of five in a round, mini-batches, dropout."""
    twin, chosen = world(), pflego.Fixed(3)
    module = backbone(twin)
    run = pflego.train(
        twin.federation,
        pflego.Model(module, 4, norm=norm),
        pflego.FedBN(**PLAIN),
        rounds=ROUNDS,
        participation=chosen,
        weighting=weighting,
        seed=SEED,
    )
    simulation = start(twin, module, "gbms", own_heads=False, shares="VvW")
    simulation.counts = [1.0] * 5 if weighting == "equal" else ()
    simulation.play(averaging("gbms"), cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED))
    assert_at(run, simulation)


def test_without_batch_norm_it_is_fedavg() -> None:
    twin = world()
    runs = [
        pflego.train(twin.federation, twin.model, kind(steps=4), rounds=3, participation=3, seed=SEED)
        for kind in (pflego.FedBN, pflego.FedAvg)
    ]
    assert_identical(*runs)


def test_with_one_client_it_is_fedavg_with_averaged_statistics() -> None:
    twin = world(clients=1)
    model = pflego.Model(backbone(twin), 4, norm="averaged")
    ours, theirs = (
        pflego.train(twin.federation, model, kind(**PLAIN), rounds=3, seed=SEED)
        for kind in (pflego.FedBN, pflego.FedAvg)
    )
    assert_same_weights({**ours.shared, **ours.states["c0"]}, theirs.shared, within=1e-12)


def test_frozen_statistics_are_refused() -> None:
    twin = world(clients=2)
    for model in (
        pflego.Model(backbone(twin), 4, norm="frozen"),
        pflego.Model(backbone(twin).eval(), 4),
    ):
        with pytest.raises(pflego.ModelError, match="norm='personal'"):
            pflego.train(twin.federation, model, pflego.FedBN(), rounds=1)


def test_it_resumes_to_the_same_bits_and_lets_newcomers_in(tmp_path: Path) -> None:
    twin = world()
    model, algorithm = pflego.Model(backbone(twin), 4, norm="averaged"), pflego.FedBN(**PLAIN)
    options: dict[str, Any] = {"rounds": 4, "participation": 3, "seed": SEED}
    whole = pflego.train(twin.federation, model, algorithm, **options)
    with pytest.raises(KeyboardInterrupt):
        pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, callbacks=[StopAfter(2)])
    run = pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, resume=True)
    assert_identical(run, whole)
    first = twin.federation[0]
    joined = run.join(pflego.Client("late", first.x_train, first.y_train), alone=0)
    own = joined.run.states["late"]
    assert own.keys() == run.states["c0"].keys() == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert not torch.equal(own["1.running_mean"], torch.zeros(4))  # of its own samples by now
    layer = run.personal_model("c1").backbone[1]  # type: ignore[index]
    assert isinstance(layer, nn.BatchNorm1d)
    assert torch.equal(layer.running_var, run.states["c1"]["1.running_var"])  # type: ignore[arg-type]
