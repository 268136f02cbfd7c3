"""UGA against its loss after steps in NumPy float64, differentiated by complex steps; its limits and its cost."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pflego
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from tests.support.reference import (
    Params,
    World,
    assert_identical,
    assert_same_weights,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import (
    Client,
    Simulation,
    assert_at,
    assert_weights,
    batches,
    complex_gradient,
    complex_loss,
    global_sites,
    grad,
    gradient_step,
    shared_head,
    steps,
    uga,
)

TAU, BETA, RHO, ROUNDS, SEED = 4, 0.3, 0.5, 4, 4
CHOSEN = cohorts(pflego.Fixed(3), 5, rounds=ROUNDS, seed=SEED)


def method(**settings: Any) -> pflego.UGA:
    plain = {
        "steps": TAU,
        "client_lr": BETA,
        "server_lr": RHO,
        "server_optimizer": "sgd",
        "head_init": "zeros",
    }
    return pflego.UGA(**{**plain, **settings})


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> pflego.Run:
    settings = {"rounds": ROUNDS, "participation": 3, "seed": SEED, **options}
    return pflego.train(twin.federation, twin.model, algorithm, **settings)


def played(twin: World, client: Client) -> Simulation:
    simulation = shared_head(twin, global_sites(twin))
    simulation.play(client, CHOSEN, server=gradient_step(RHO))
    return simulation


def first_order(s: Simulation, i: int) -> Params:
    return grad(steps(s.shared, s.sites[i], TAU - 1, rate=BETA), s.sites[i])


def test_through_the_steps_it_is_the_gradient_of_the_loss_after_them() -> None:
    twin = world()
    run = train(twin, method())
    assert_at(run, played(twin, uga(TAU, BETA)))
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (2 * TAU - 1, 2 * TAU - 1)


def test_momentum_and_a_decay_are_gone_through_too() -> None:
    twin = world()
    run = train(twin, method(momentum=0.6, weight_decay=0.1))
    assert_at(run, played(twin, uga(TAU, BETA, momentum=0.6, decay=0.1)))


def test_epochs_of_batches_are_gone_through_and_end_with_the_gradient_of_all_samples() -> None:
    twin, size, epochs = world(), 4, 3

    def client(s: Simulation, i: int) -> Params:
        site = s.sites[i]
        count = (epochs - 1) * ceil(site.n / size)
        drawn = batches(SEED, s.round, i, site, size, count)
        return complex_gradient(
            lambda w: complex_loss(steps(w, site, count, rate=BETA, batches=drawn), site), s.shared
        )

    run = train(twin, method(epochs=epochs, batch_size=size))
    assert_at(run, played(twin, client))
    assert run.history[0]["forward_passes"] == 2 * epochs - 1


def test_the_first_order_is_the_gradient_where_the_steps_end() -> None:
    twin = world()
    run = train(twin, method(order="first"))
    assert_at(run, played(twin, first_order))
    assert (run.history[0]["forward_passes"], run.history[0]["backward_passes"]) == (TAU, TAU)
    assert distance(run.shared["head"], played(twin, uga(TAU, BETA)).shared["W"]) > 1e-3


@pytest.mark.parametrize("order", ["first", "second"])
def test_with_one_gradient_it_is_fedsgd(order: Any) -> None:
    twin = world()
    ours = train(twin, method(steps=1, order=order))
    theirs = train(twin, pflego.FedSGD(client_lr=RHO, head_init="zeros"))
    assert_same_weights(ours.shared, theirs.shared, within=1e-12)


def test_a_client_uses_the_model_after_its_steps_or_the_shared_one() -> None:
    twin = world()
    run = train(twin, method())
    shared: Params = {
        "V": run.shared["0.weight"].numpy(),
        "v": run.shared["0.bias"].numpy(),
        "W": run.shared["head"].numpy(),
    }
    for i, site in enumerate(global_sites(twin)):
        problem, algorithm = run.problems[i], method()
        wanted = steps(shared, site, TAU - 1, rate=BETA)
        assert_weights(algorithm.personal(run.shared, {}, problem), wanted)
        adapted = algorithm.adapt(run.shared, {}, problem)
        assert_weights(algorithm.personal(run.shared, adapted, problem), wanted)
        assert_weights(method(steps_before_use=False).personal(run.shared, {}, problem), shared)
    assert (method().family, method(steps_before_use=False).family) == ("fine-tuned", "one model")


def test_the_servers_memory_is_resumed_to_the_bit(tmp_path: Path) -> None:
    twin, algorithm = world(), method(server_optimizer="adam", server_lr=0.01, batch_size=4)
    whole = train(twin, algorithm, evaluate_every=1)
    options: dict[str, Any] = {"evaluate_every": 1, "out": tmp_path}
    train(twin, algorithm, rounds=2, **options)
    assert_identical(train(twin, algorithm, resume=True, **options), whole)


def test_slices_change_nothing() -> None:
    twin = world()
    whole, sliced = (train(twin, method(), slice_size=size) for size in (None, 3))
    assert_same_weights(whole.shared, sliced.shared, within=1e-12)


def test_the_hessian_times_a_vector_is_the_derivative_of_the_gradient_along_it() -> None:
    twin, site = world(), global_sites(world())[2]
    problem = Problems(twin.federation, twin.model, labels="global")[2]
    rng = np.random.default_rng(3)
    start: Params = {"V": twin.net.V, "v": twin.net.v, "W": rng.normal(size=(6, 5))}
    vector: Params = {name: rng.normal(size=w.shape) for name, w in start.items()}
    some = np.array([3, 0, 8])
    names = {"0.weight": "V", "0.bias": "v", "head": "W"}
    for batch, part in ((None, site), (torch.from_numpy(some), site.part(some))):
        moved = {name: w + 1e-30j * vector[name] for name, w in start.items()}
        wanted = {name: np.imag(g) / 1e-30 for name, g in grad(moved, part).items()}
        ours = problem.curvature(
            {name: torch.from_numpy(start[short]) for name, short in names.items()},
            {name: torch.from_numpy(vector[short]) for name, short in reversed(names.items())},
            batch,
        )
        assert_weights(ours, wanted, 1e-12)


class _Distances(nn.Module):
    """Distances to centres, whose gradient torch cannot differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.centres, p=3.0)


def test_a_backbone_that_cannot_be_differentiated_twice_is_told_of_the_first_order() -> None:
    model = pflego.Model(_Distances(), features=4)
    problem = Problems(world().federation, model, labels="global")[0]
    shared = method().init_shared(model, 6, 0)
    with pytest.raises(pflego.ModelError, match="order='first'"):
        method().client_update(Round(1), shared, {}, problem)
    assert method(order="first").client_update(Round(1), shared, {}, problem).contribution
