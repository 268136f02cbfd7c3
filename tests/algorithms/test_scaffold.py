"""SCAFFOLD against its equations in NumPy float64, and where it must be another method or find the optimum."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.federation.draws import Participation
from tests.support.reference import (
    Params,
    assert_identical,
    assert_same_weights,
    cohorts,
    least_squares,
    world,
)
from tests.support.rivals import (
    Simulation,
    assert_at,
    batches,
    called,
    controlled,
    differences,
    global_sites,
    local_sites,
    part,
    scaffold,
    scaffold_server,
    steps,
)
from tests.support.trained import BETA, PLAIN, ROUNDS, SEED, TAU, train


@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("who", [pflego.Fixed(3), pflego.Binomial(0.5)], ids=str)
def test_scaffold_follows_its_equations(labels: Any, weighting: Any, who: Participation) -> None:
    twin = world()
    simulation = controlled(twin, local_sites(twin) if labels == "local" else global_sites(twin))
    simulation.counts = () if weighting == "samples" else (1.0,) * 5
    chosen = cohorts(who, 5, rounds=ROUNDS, seed=SEED)
    simulation.play(differences(scaffold(TAU, BETA)), chosen, server=scaffold_server(0.8))
    algorithm = pflego.Scaffold(steps=TAU, labels=labels, server_lr=0.8, **PLAIN)
    run = train(twin, algorithm, weighting=weighting, participation=who)
    assert_at(run, simulation)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_the_common_control_variate_is_the_mean_of_everybodys() -> None:
    """Not of the participants': a sum that was divided by r instead of I would be too large."""
    twin = world()
    run = train(twin, pflego.Scaffold(steps=TAU, **PLAIN), weighting="equal")
    for name in ("0.weight", "head"):
        everybodys = np.mean([state[f"control/{name}"].numpy() for state in run.states.values()], axis=0)
        assert np.abs(run.shared[f"control/{name}"].numpy() - everybodys).max() < 1e-12
        assert np.abs(everybodys).max() > 1e-3


def test_batches_momentum_and_decays_follow_the_equations() -> None:
    """c_i is then the mean of the gradients by the weights that momentum has given them."""
    twin, size, epochs, momentum = world(), 4, 2, 0.6
    simulation = controlled(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        site, rate = s.sites[i], BETA * 0.8 ** (s.round - 1)
        count = epochs * ceil(site.n / size)
        x, c, c_i = {n: s.shared[n] for n in "VvW"}, part(s.shared, "control "), part(s.own[i], "control ")
        y = steps(
            x,
            site,
            count,
            rate=rate,
            momentum=momentum,
            decay=0.05,
            slope={n: c[n] - c_i[n] for n in c},
            batches=batches(SEED, s.round, i, site, size, count),
        )
        weights = sum((1 - momentum**k) / (1 - momentum) for k in range(1, count + 1))
        new = {n: c_i[n] - c[n] + (x[n] - y[n]) / (weights * rate) for n in x}
        s.own[i] = called("control ", new)
        return {**y, **called("control ", {n: c[n] + new[n] - c_i[n] for n in c})}

    simulation.play(
        differences(client), cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED), server=scaffold_server()
    )
    rule: dict[str, Any] = {"momentum": momentum, "weight_decay": 0.05, "lr_decay": 0.8}
    assert_at(train(twin, pflego.Scaffold(epochs=epochs, batch_size=size, **rule, **PLAIN)), simulation)


def model_of(run: pflego.Run) -> dict[str, torch.Tensor]:
    return {name: w for name, w in run.shared.items() if not name.startswith("control/")}


def test_the_first_round_one_client_and_one_step_of_everybody_are_fedavg() -> None:
    twin = world()
    ours, theirs = (kind(steps=TAU, **PLAIN) for kind in (pflego.Scaffold, pflego.FedAvg))
    assert_same_weights(model_of(train(twin, ours, rounds=1)), train(twin, theirs, rounds=1).shared)
    alone = pflego.Federation([twin.federation[2]])
    one, other = (pflego.train(alone, twin.model, a, rounds=5) for a in (ours, theirs))
    assert_same_weights(model_of(one), other.shared, within=1e-12)
    everyone: dict[str, Any] = {"participation": pflego.Everyone()}
    ours, theirs = (kind(steps=1, **PLAIN) for kind in (pflego.Scaffold, pflego.FedAvg))
    one, other = train(twin, ours, **everyone), train(twin, theirs, **everyone)
    assert_same_weights(model_of(one), other.shared, within=1e-12)


def test_many_local_steps_end_in_the_optimum_of_all_data_where_fedavgs_do_not() -> None:
    """Least squares with clients that disagree, three of five at a time: the normal equations have the answer."""
    federation, best = least_squares()
    model = pflego.Model(nn.Identity(), features=3)
    distances = []
    for kind in (pflego.Scaffold, pflego.FedAvg):
        algorithm = kind(steps=5, client_lr=0.1)
        run = pflego.train(federation, model, algorithm, rounds=60, participation=3, evaluate_every=0)
        distances.append(float(np.abs(run.shared["head"].numpy().ravel() - best).max()))
    assert distances[0] < 1e-5 < 0.05 < distances[1]


def test_runs_resume_to_the_bit_and_send_twice_as_much(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.Scaffold(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    resumed = train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1)
    assert_identical(resumed, whole)
    plain = train(twin, pflego.FedAvg(epochs=2, batch_size=4, client_lr=BETA))
    for name in ("bytes_up", "bytes_down"):
        assert whole.history[-1][name] == 2 * (plain.history[-1][name] or 0)


def test_a_client_uses_the_shared_model_fine_tuned_if_asked() -> None:
    twin = world()
    run = train(twin, pflego.Scaffold(steps=TAU, fine_tune=3, **PLAIN))
    w = {"V": run.shared["0.weight"].numpy(), "v": run.shared["0.bias"].numpy()}
    tuned = steps({**w, "W": run.shared["head"].numpy()}, global_sites(twin)[1], 3, rate=BETA)
    ours = dict(run.personal_model("c1").named_parameters())["head.weight"].detach().numpy()
    assert np.abs(ours - tuned["W"][:, :-1]).max() < 1e-10
