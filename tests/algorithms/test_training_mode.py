"""Batch norm and dropout in local steps, against NumPy float64: dropout(tanh(norm(V x + v))) and a head W."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import pflego
from pflego.learning.modes import Norm
from pflego.learning.problems import Problems
from tests.support.normed import (
    BETA,
    NAMES,
    PLAIN,
    ROUNDS,
    SEED,
    SIZE,
    TAU,
    assert_at,
    averaging,
    backbone,
    both_ways,
    local_steps,
    start,
)
from tests.support.reference import F64, Params, StopAfter, assert_identical, cohorts, distance, world
from tests.support.rivals import Simulation, batches, global_sites


def fedrep(s: Simulation, i: int) -> Params:
    """The head on the features of evaluation mode, then the backbone in training mode."""
    w = {**s.shared, **s.own[i]}
    for batch in batches(SEED, s.round, i, s.sites[i], SIZE, TAU - 2, "head batches"):
        slope = both_ways(w, s.sites[i].part(batch), None, training=False).loss_slope["W"]
        w = {**w, "W": w["W"] - BETA * slope}
    w = local_steps(w, s, i, count=2, names="Vvgb")
    s.own[i] = {"W": w["W"]}
    return {name: w[name] for name in s.shared}


def ditto(s: Simulation, i: int) -> Params:
    s.own[i] = local_steps(s.own[i], s, i, anchor=s.shared, mu=0.4)
    return local_steps(s.shared, s, i, draw="global batches")


def babu(s: Simulation, i: int) -> Params:
    w = local_steps(s.shared, s, i, names="Vvgb")
    return {name: w[name] for name in s.shared if name != "W"}


EVERYTHING = "VvgbmsW"
CASES: dict[str, tuple[pflego.Algorithm, Norm, str, Callable[[Simulation, int], Params]]] = {
    "fedavg, averaged": (pflego.FedAvg(**PLAIN), "averaged", "", averaging("")),
    "fedavg, personal": (pflego.FedAvg(**PLAIN), "personal", "gbms", averaging("gbms")),
    "fedprox, averaged": (pflego.FedProx(**PLAIN, mu=0.7), "averaged", "", averaging("", mu=0.7)),
    "fedper, averaged": (pflego.FedPer(**PLAIN), "averaged", "W", averaging("W")),
    "fedper, personal": (pflego.FedPer(**PLAIN), "personal", "gbmsW", averaging("gbmsW")),
    "fedrep, averaged": (pflego.FedRep(**PLAIN, body_steps=2), "averaged", "W", fedrep),
    "fedbabu, averaged": (
        pflego.FedBabu(**{**PLAIN, "head_init": "centred"}, momentum=0.0),
        "averaged",
        "",
        babu,
    ),
    "ditto, averaged": (pflego.Ditto(**PLAIN, mu=0.4), "averaged", EVERYTHING, ditto),
    "local, personal": (pflego.Local(**PLAIN), "personal", EVERYTHING, averaging(EVERYTHING)),
}


@pytest.mark.parametrize("name", CASES)
def test_methods_follow_numpy_in_training_mode(name: str) -> None:
    """Clients of 7, 12, ... samples in batches of 3: some batches are of a single sample."""
    twin, chosen = world(), pflego.Fixed(3)
    algorithm, norm, kept, client = CASES[name]
    module = backbone(twin)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    model = pflego.Model(module, 4, norm=norm)
    run = pflego.train(twin.federation, model, algorithm, rounds=ROUNDS, participation=chosen, seed=SEED)
    shares = "".join(NAMES[key] for key in algorithm.init_shared(model, 6, SEED))
    simulation = start(twin, module, kept, own_heads="W" in kept and "W" not in shares, shares=shares)
    if name.startswith("fedbabu"):
        simulation.shared["W"] = algorithm.init_shared(model, 6, SEED)["head"].numpy()
    simulation.play(client, cohorts(chosen, len(twin.sites), rounds=ROUNDS, seed=SEED))
    assert_at(run, simulation)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key]), key  # training leaves the module alone
    assert module.training


def test_the_loss_and_the_tests_are_those_of_evaluation_mode() -> None:
    twin = world(clients=3)
    model = pflego.Model(backbone(twin), 4, norm="averaged")
    run = pflego.train(twin.federation, model, pflego.FedPer(**PLAIN), rounds=2, seed=SEED)
    for i, site in enumerate(twin.sites):
        w = {NAMES[name]: tensor.numpy() for name, tensor in {**run.shared, **run.states[f"c{i}"]}.items()}
        phi = both_ways(w, site, None, training=False).phi
        z = phi @ w["W"][:, :-1].T + w["W"][:, -1]
        one = run.personal_model(f"c{i}")
        assert distance(one(twin.federation[i].x_train).detach(), z) < 1e-10
        assert not one.training


def test_a_batch_goes_through_in_one_piece_whatever_the_slices() -> None:
    twin = world(clients=12)
    model = pflego.Model(backbone(twin), 4, norm="averaged")
    runs = [
        pflego.train(twin.federation, model, pflego.FedAvg(steps=3), rounds=2, seed=SEED, slice_size=size)
        for size in (None, 2)
    ]
    for name, tensor in runs[0].shared.items():
        torch.testing.assert_close(tensor, runs[1].shared[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ["personal", "averaged"])
def test_a_run_in_training_mode_resumes_to_the_same_bits(norm: Norm, tmp_path: Path) -> None:
    twin = world()
    model, algorithm = pflego.Model(backbone(twin), 4, norm=norm), pflego.FedAvg(**PLAIN)
    options: dict[str, Any] = {"rounds": 4, "participation": 3, "seed": SEED}
    torch.manual_seed(1)
    whole = pflego.train(twin.federation, model, algorithm, **options)
    torch.manual_seed(2)  # nothing is drawn from torch's own generator
    with pytest.raises(KeyboardInterrupt):
        pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, callbacks=[StopAfter(2)])
    assert_identical(
        pflego.train(twin.federation, model, algorithm, **options, out=tmp_path, resume=True), whole
    )


def test_torchs_own_generator_is_left_alone() -> None:
    twin = world(clients=3)
    model = pflego.Model(backbone(twin), 4, norm="averaged")
    before = torch.get_rng_state()
    pflego.train(twin.federation, model, pflego.FedAvg(**PLAIN), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_of_channels_draws_one_number_for_each() -> None:
    """Dropout2d on images: of (samples, channels) numbers, in the order of the samples."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Dropout2d(0.5), nn.Flatten()).double()
    model = pflego.Model(module, 12)
    x = torch.rand(5, 1, 2, 2, dtype=torch.float64)
    got = model.phi_in_training(model.weights(), x, torch.Generator().manual_seed(7))
    kept = (torch.rand(5, 3, 1, 1, generator=torch.Generator().manual_seed(7)) >= 0.5).double()
    torch.testing.assert_close(got, (module[0](x) * kept * 2).flatten(1))
    torch.testing.assert_close(model.phi(model.weights(), x), module[0](x).flatten(1))


def test_an_automatic_rate_knows_the_curvature_with_batch_statistics() -> None:
    """1/beta of one step is at most the largest curvature, and near it, with batch statistics in both."""
    twin, site = world(clients=1), global_sites(world(clients=1))[0]
    module = backbone(twin, p=0.0)
    model = pflego.Model(module, 4, norm="averaged")
    algorithm = pflego.FedAvg(steps=1, head_init=lambda r, c, g: 3 * torch.randn(r, c, generator=g).double())
    shared = algorithm.init_shared(model, site.t.shape[1], 3)
    [problem] = [Problems(twin.federation, model, labels="global")[0]]
    rate = algorithm.rate_of(problem, shared, [name for name in shared if name not in model.statistics])
    w = {NAMES[name]: tensor.numpy() for name, tensor in shared.items()}
    names, eps = "VvgbW", 1e-5
    sizes = [w[name].size for name in names]

    def slope(flat: F64) -> F64:
        pieces = np.split(flat, np.cumsum(sizes)[:-1])
        point = {name: piece.reshape(w[name].shape) for name, piece in zip(names, pieces, strict=True)}
        found = both_ways({**w, **point}, site, None).loss_slope
        return np.concatenate([found[name].ravel() for name in names])

    here = np.concatenate([w[name].ravel() for name in names])
    hessian = [(slope(here + eps * u) - slope(here - eps * u)) / (2 * eps) for u in np.eye(len(here))]
    largest = float(np.abs(np.linalg.eigvalsh(np.stack(hessian))).max())
    phi: npt.NDArray[np.float64] = np.pad(both_ways(w, site, None).phi, ((0, 0), (0, 1)), constant_values=1.0)
    head = 0.5 * float(np.linalg.eigvalsh(phi.T @ phi / len(phi)).max())
    assert max(head, 0.7 * largest) * (1 - 1e-6) <= 1 / rate <= max(head, largest) * (1 + 1e-6)


@pytest.mark.parametrize("norm", [None, "averaged", "personal"])
def test_methods_with_cached_features_refuse_and_say_the_way_out(norm: Norm | None) -> None:
    twin = world(clients=2)
    module = backbone(twin)
    if norm is None:
        module[1].eval()  # dropout alone is left
    for algorithm in (pflego.PFLEGO(), pflego.FedRecon()):
        with pytest.raises(
            pflego.ModelError, match=r"backbone.eval\(\)" if norm is None else "norm='frozen'"
        ):
            pflego.train(twin.federation, pflego.Model(module, 4, norm=norm), algorithm, rounds=1)


@pytest.mark.parametrize("norm", ["frozen", "group"])
def test_what_they_ask_for_works(norm: Norm) -> None:
    twin = world(clients=3)
    module = backbone(twin, p=0.0)
    model = pflego.Model(module, 4, norm=norm, personal=["1"])
    run = pflego.train(twin.federation, model, pflego.PFLEGO(steps=3), rounds=2)
    assert set(run.states["c0"]) == {"1.weight", "1.bias", "head"}
    assert set(run.shared) == {"0.weight", "0.bias"}
    if norm == "frozen":
        assert torch.equal(run.personal_model("c0").backbone[1].running_mean, torch.zeros(4))  # type: ignore[index]
