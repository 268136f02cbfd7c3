"""FedDyn against its equations in NumPy float64, and where it must find the optimum of all data."""

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
    World,
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
    differences,
    feddyn,
    feddyn_server,
    global_sites,
    local_sites,
    part,
    sloped,
    steps,
)

TAU, BETA, MU, ROUNDS, SEED = 7, 0.15, 0.4, 6, 4
PLAIN: dict[str, Any] = {"client_lr": BETA, "head_init": "zeros", "mu": MU}


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    options = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **options)


@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("who", [pflego.Fixed(3), pflego.Binomial(0.5)], ids=str)
def test_feddyn_follows_its_equations(labels: Any, weighting: Any, who: Participation) -> None:
    twin = world()
    simulation = sloped(twin, local_sites(twin) if labels == "local" else global_sites(twin))
    simulation.counts = () if weighting == "samples" else (1.0,) * 5
    chosen = cohorts(who, 5, rounds=ROUNDS, seed=SEED)
    simulation.play(differences(feddyn(TAU, BETA, mu=MU)), chosen, server=feddyn_server(MU))
    algorithm = pflego.FedDyn(steps=TAU, labels=labels, **PLAIN)
    run = train(twin, algorithm, weighting=weighting, participation=who)
    assert_at(run, simulation)
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)


def test_batches_momentum_and_decays_follow_the_equations() -> None:
    twin, size, epochs = world(), 4, 2
    simulation = sloped(twin, global_sites(twin))

    def client(s: Simulation, i: int) -> Params:
        site, g = s.sites[i], part(s.own[i], "slope ")
        count = epochs * ceil(site.n / size)
        w = steps(
            s.shared,
            site,
            count,
            rate=BETA * 0.8 ** (s.round - 1),
            momentum=0.6,
            decay=0.05,
            anchor=s.shared,
            mu=MU,
            slope={name: -g[name] for name in g},
            batches=batches(SEED, s.round, i, site, size, count),
        )
        s.own[i] = called("slope ", {n: g[n] - MU * (w[n] - s.shared[n]) for n in g})
        return w

    chosen = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)
    simulation.play(differences(client), chosen, server=feddyn_server(MU))
    rule: dict[str, Any] = {"momentum": 0.6, "weight_decay": 0.05, "lr_decay": 0.8}
    assert_at(train(twin, pflego.FedDyn(epochs=epochs, batch_size=size, **rule, **PLAIN)), simulation)


def test_a_first_round_is_fedproxs_and_goes_on_by_everybodys_share() -> None:
    """h = 0 and g_i = 0 at first: the pull alone, and the mean difference once more by the participants' share."""
    twin = world()
    ours, theirs = (
        train(twin, kind(steps=TAU, **PLAIN), rounds=1) for kind in (pflego.FedDyn, pflego.FedProx)
    )
    first = pflego.FedProx(steps=TAU, **PLAIN).init_shared(twin.model, 6, SEED)
    [members] = cohorts(pflego.Fixed(3), 5, rounds=1, seed=SEED)
    share = sum(twin.alphas[i] for i in members)
    wanted = {name: w + (1 + share) * (theirs.shared[name] - w) for name, w in first.items()}
    assert_same_weights(ours.shared, wanted, within=1e-12)


def test_many_local_steps_end_in_the_optimum_of_all_data_where_fedproxs_do_not() -> None:
    """Least squares with clients that disagree, three of five at a time: the normal equations have the answer."""
    federation, best = least_squares()
    model = pflego.Model(nn.Identity(), features=3)
    distances = []
    for kind in (pflego.FedDyn, pflego.FedProx):
        algorithm = kind(steps=8, client_lr=0.15, mu=2.0)
        run = pflego.train(federation, model, algorithm, rounds=60, participation=3, evaluate_every=0)
        distances.append(float(np.abs(run.shared["head"].numpy().ravel() - best).max()))
    assert distances[0] < 1e-5 < 0.05 < distances[1]


def test_runs_resume_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.FedDyn(epochs=2, batch_size=4, client_lr=BETA)
    whole = train(twin, algorithm, evaluate_every=1)
    train(twin, algorithm, rounds=2, out=tmp_path, evaluate_every=1)
    assert_identical(train(twin, algorithm, out=tmp_path, resume=True, evaluate_every=1), whole)


def test_a_client_uses_the_shared_model() -> None:
    run = train(world(), pflego.FedDyn(steps=TAU, **PLAIN))
    ours = dict(run.personal_model("c1").named_parameters())["head.weight"]
    assert torch.equal(ours, run.shared["head"][:, :-1])


def test_no_pull_is_refused() -> None:
    with pytest.raises(pflego.SettingError, match="mu"):
        pflego.FedDyn(mu=0)
