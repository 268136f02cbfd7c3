"""What local steps have in common: their rate, how heads start, fine-tuning, what is done before a client is judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.algorithms import methods
from pflego.engines.local import LocalEngine
from pflego.exchange.round import Round
from pflego.learning.evaluation import pooled
from pflego.learning.problems import Problems
from pflego.randomness import torch_generator
from tests.support.cases import often
from tests.support.reference import F64, World, world
from tests.support.rivals import (
    NAMES,
    assert_weights,
    global_sites,
    grad,
    of_kind,
    own_heads,
    shared_head,
    steps,
)
from tests.support.sites import federation

EPS = 1e-5


def hessian(w: dict[str, F64], site: object, names: str) -> F64:
    """Of the loss in some of the parameters, by differences of gradients."""

    def slope(flat: F64) -> F64:
        point, done = dict(w), 0
        for name in names:
            size = w[name].size
            point[name] = flat[done : done + size].reshape(w[name].shape)
            done += size
        g = grad(point, site)  # type: ignore[arg-type]
        return np.concatenate([g[name].ravel() for name in names])

    start = np.concatenate([w[name].ravel() for name in names])
    rows = [
        (slope(start + EPS * unit) - slope(start - EPS * unit)) / (2 * EPS) for unit in np.eye(len(start))
    ]
    return np.stack(rows)


def head_constant(twin: World, i: int) -> float:
    """L_i = 1/2 lambda_max(Phi^T Phi / N_i), the bias's column of ones included."""
    phi = np.tanh(twin.sites[i].x @ twin.net.V.T + twin.net.v)
    phi = np.concatenate([phi, np.ones((len(phi), 1))], axis=1)
    return 0.5 * float(np.linalg.eigvalsh(phi.T @ phi / len(phi)).max())


def small(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return 0.05 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def large(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return 6 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("i", [0, 2])
@pytest.mark.parametrize("head_init", [small, large])
def test_auto_is_one_over_the_larger_of_head_and_whole_curvature(i: int, head_init: object) -> None:
    twin, mu = world(), 0.3
    algorithm = pflego.FedProx(steps=1, mu=mu, head_init=head_init)  # type: ignore[arg-type]
    problem = Problems(twin.federation, twin.model, labels="global")[i]
    shared = algorithm.init_shared(twin.model, 6, 3)
    update = algorithm.client_update(Round(1), shared, {}, problem)
    w = {NAMES[name]: tensor.numpy() for name, tensor in shared.items()}
    site = global_sites(twin)[i]
    slope = grad(w, site)
    moved = {NAMES[name]: tensor.numpy() for name, tensor in update.contribution.items()}
    rates = np.concatenate([(-moved[name] / slope[name]).ravel() for name in "VvW"])
    assert np.ptp(rates) < 1e-6 * rates[0]  # one rate for everything that moves
    whole = float(np.abs(np.linalg.eigvalsh(hessian(w, site, "VvW"))).max())
    head = head_constant(twin, i)
    assert (whole > head) == (head_init is large)  # so that both cases are met
    constant = 1 / rates[0] - mu
    if whole > head:  # the power method's estimate is never above the true constant
        assert max(head, 0.7 * whole) <= constant <= whole * (1 + 1e-9)
    else:
        assert constant == pytest.approx(head, rel=0.02)


def test_a_head_alone_is_fitted_at_one_over_its_own_constant() -> None:
    twin = world()
    site = twin.sites[1]
    problem = Problems(twin.federation, twin.model)[1]
    algorithm = pflego.FedRecon(steps=4, client_lr="auto")
    shared = twin.model.weights()
    state = algorithm.adapt(shared, algorithm.init_state(problem, 0), problem)
    start = {"V": twin.net.V, "v": twin.net.v, "W": np.zeros((site.t.shape[1], 5))}
    wanted = steps(start, site, 4, rate=1 / head_constant(twin, 1), names="W")
    assert np.abs(state["head"].numpy() - wanted["W"]).max() < 0.02 * np.abs(wanted["W"]).max()


@pytest.mark.parametrize("part", ["model", "head"])
@pytest.mark.parametrize("kind", [pflego.FedAvg, pflego.FedProx])
def test_fine_tuned_models_are_the_shared_one_some_steps_on(kind: type[pflego.FedAvg], part: str) -> None:
    twin = world()
    rates = {"steps": 3, "client_lr": 0.15, "head_init": "zeros"}
    plain = pflego.train(twin.federation, twin.model, kind(**rates), rounds=3)  # type: ignore[arg-type]
    tuned_by = kind(**rates, fine_tune=4, fine_tune_part=part)  # type: ignore[arg-type]
    run = pflego.train(twin.federation, twin.model, tuned_by, rounds=3)
    assert_weights(run.shared, {NAMES[name]: w.numpy() for name, w in plain.shared.items()}, 0.0 + 1e-15)
    assert all(state == {} for state in run.states.values())
    start = {NAMES[name]: w.numpy() for name, w in run.shared.items()}
    simulation = shared_head(twin, global_sites(twin))
    for i, client in enumerate(twin.federation):
        wanted = steps(start, simulation.sites[i], 4, rate=0.15, names="VvW" if part == "model" else "W")
        problem = run.problems[i]
        assert_weights(tuned_by.personal(run.shared, {}, problem), wanted)
        assert run.personal_model(client.id) is not None


@pytest.mark.parametrize("name", often(sorted(methods().keys() - {"pflego", "feddane", "uga", "perfedavg"})))
def test_adapting_is_what_a_participant_does_before_it_is_judged(name: str) -> None:
    """In the first round everybody takes part from the first weights: both figures are of the same models.

    PFLEGO's participants take their last step jointly, FedDANE's know the others' gradient; UGA's clients take their
    steps whenever they use their model, and Per-FedAvg draws the batches of every round anew.
    """
    federation = pflego.load("digits", clients=6, classes_per_client=4)
    model = pflego.models.build("mlp", (64,))
    algorithm = of_kind(methods()[name], steps=6)
    run = pflego.train(federation, model, algorithm, rounds=1, evaluate_every=0)
    problems = Problems(federation, model, labels=algorithm.labels)
    first = algorithm.init_shared(model, problems.outputs, 0)
    states = {client: algorithm.init_state(problems[i], 0) for i, client in enumerate(federation.ids)}
    engine = LocalEngine(problems, algorithm, states)
    adapted = pooled(engine.scores(first, adapt=True), federation.task)
    assert adapted == run.history[0]["participants_accuracy"]
    assert adapted != pooled(engine.scores(first), federation.task)


@pytest.mark.parametrize("name", often(methods(), "pflego"))
def test_the_history_has_everyones_adapted_figure_where_it_is_asked_for(name: str) -> None:
    federation = pflego.load("diabetes", clients=4)
    model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]))
    algorithm = of_kind(methods()[name], steps=5)
    run = pflego.train(federation, model, algorithm, rounds=2, evaluate_every=1, evaluate_adapted=True)
    scores = run.scores(adapt=True)
    wanted = (sum(s.score for s in scores) / sum(s.samples for s in scores)) ** 0.5 * run.federation.task.unit  # type: ignore[attr-defined]
    assert run.history[-1]["everyone_adapted_rmse"] == pytest.approx(wanted)
    without = pflego.train(federation, model, algorithm, rounds=2, evaluate_every=1)
    assert "everyone_adapted_rmse" not in without.history[-1]
    assert without.history[-1]["everyone_rmse"] == run.history[-1]["everyone_rmse"]


def test_who_joins_fedavg_keeps_nothing() -> None:
    twin = world(dtype=torch.float32)
    run = pflego.train(twin.federation, twin.model, pflego.FedAvg(steps=2), rounds=1)
    late = pflego.Client("late", torch.randn(9, 6), torch.arange(9) % 2)
    assert run.join(late, alone=0).run.states["late"] == {}


def test_fedrecon_fits_its_head_to_the_support_and_takes_the_gradient_of_the_query_samples() -> None:
    twin, tau, beta = world(), 5, 0.15
    algorithm = pflego.FedRecon(steps=tau, client_lr=beta, reset=True, query_share=0.4)
    simulation = own_heads(twin)
    for i, client in enumerate(twin.federation):
        problem = Problems(twin.federation, twin.model)[i]
        state = algorithm.init_state(problem, 0)
        update = algorithm.client_update(Round(1, seed=7), twin.model.weights(), state, problem)
        site, n = simulation.sites[i], simulation.sites[i].n
        order = torch.randperm(n, generator=torch_generator(7, "query", client=client.id)).numpy()
        queries = round(0.4 * n)
        support = type(site)(site.x[order[queries:]], site.t[order[queries:]])
        query = type(site)(site.x[order[:queries]], site.t[order[:queries]])
        w = steps({**simulation.shared, **simulation.own[i]}, support, tau, rate=beta, names="W")
        slope = grad(w, query)
        assert_weights(update.contribution, {"V": slope["V"], "v": slope["v"]})
        assert (problem.forward_passes, problem.backward_passes) == (1, 1)


def test_the_one_sample_of_a_client_is_support_and_query() -> None:
    client = pflego.Client("one", torch.randn(1, 3), torch.tensor([0.5]))
    federation = pflego.Federation([client])
    model = pflego.Model(nn.Linear(3, 2), features=2)
    run = pflego.train(federation, model, pflego.FedRecon(query_share=0.5), rounds=3)
    assert [row["rejected"] for row in run.history] == [0, 0, 0]


def test_heads_that_are_no_linear_layer_start_as_their_layers_do() -> None:
    federation = pflego.load("digits", clients=4, classes_per_client=3)
    torch.manual_seed(0)
    model = pflego.Model(nn.Sequential(nn.Linear(64, 8), nn.ReLU()), features=8, head=nn.Linear)
    run = pflego.train(federation, model, pflego.FedPer(steps=5), rounds=2)
    assert (run.history[-1]["loss"] or 9) < (run.history[0]["loss"] or 0)


def test_fedrep_on_a_frozen_backbone_is_its_steps_on_the_head() -> None:
    torch.manual_seed(0)
    model = pflego.Model(nn.Linear(8, 4), 4, frozen="all")
    heads = []
    for method in (
        pflego.FedRep(steps=8, body_steps=3, client_lr=0.1, momentum=0.5, weight_decay=0.01),
        pflego.FedPer(steps=5, client_lr=0.1, momentum=0.5, weight_decay=0.01),
    ):
        run = pflego.train(federation(), model, method, rounds=1, evaluate_every=None, device="cpu")
        heads.append(run.states["mill"]["head"])
    torch.testing.assert_close(*heads)
