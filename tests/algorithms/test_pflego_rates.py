"""server_lr="auto": a rate that does not depend on who takes part, and that bounds the joint step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch import nn

import pflego
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange, Played
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.reference import F64, World, distance, gradients, loss, world

both_steps = pytest.mark.parametrize("head_step", ["exact", "paper"])


def automatic(**settings: object) -> pflego.PFLEGO:
    return pflego.PFLEGO(server_lr="auto", server_optimizer="sgd", **settings)  # type: ignore[arg-type]


def play(
    twin: World, algorithm: pflego.PFLEGO, shared: Weights, chosen: Sequence[int], *, number: int = 2
) -> tuple[Played, dict[ClientId, Weights]]:
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    exchange = Exchange.of(algorithm, twin.federation.sizes, expected=2.0)
    engine = LocalEngine(Problems(twin.federation, twin.model), algorithm, dict(states))
    played = exchange.play(
        engine, number, shared, {}, chosen, ids=twin.federation.ids, keep=lambda changed: None
    )
    return played, states


def test_over_all_cohorts_the_step_is_the_full_gradients() -> None:
    """By enumeration: with L heard before, the mean over the cohorts is r/I 1/L times the gradient, heads included."""
    twin = world(clients=5)
    twin.random_heads()
    constant = 7.0
    shared = {**twin.model.weights(), "smoothness": torch.tensor(constant)}
    algorithm = automatic(steps=1, head_step="exact")
    mean: dict[str, torch.Tensor] = {}
    for chosen in combinations(range(5), 2):
        played, states = play(twin, algorithm, shared, chosen)
        moved = {name: shared[name] - played.shared[name] for name in ("0.weight", "0.bias")}
        moved |= {str(id): states[id]["head"] - new["head"] for id, new in played.states.items()}
        for name, tensor in moved.items():
            mean[name] = mean.get(name, torch.zeros(())) + tensor / 10
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    rate = 2 / 5 / constant
    for k, name in enumerate(["0.weight", "0.bias"]):
        full = np.asarray(sum(a * g[k] for a, g in zip(twin.alphas, parts, strict=True)))
        assert distance(mean[name], rate * full) < 1e-12
    for i, (a, g) in enumerate(zip(twin.alphas, parts, strict=True)):
        assert distance(mean[f"c{i}"], rate * a * g[2]) < 1e-12


@both_steps
def test_the_first_round_measures_and_moves_nothing_jointly(head_step: str) -> None:
    """Whoever takes part: a rate that was measured in the cohort it is used for would bias the step."""
    twin = world(clients=5)
    twin.random_heads()
    algorithm = automatic(steps=1, head_step=head_step)
    shared = algorithm.init_shared(twin.model, 6, 0)
    heard = set()
    for chosen in combinations(range(5), 2):
        played, states = play(twin, algorithm, shared, chosen, number=1)
        assert all(torch.equal(played.shared[name], shared[name]) for name in ("0.weight", "0.bias"))
        assert all(torch.equal(new["head"], states[id]["head"]) for id, new in played.states.items())
        heard.add(float(played.shared["smoothness"]))
    assert 1 < len(heard) <= 5  # the largest of two


def hessian(twin: World, i: int, W_0: F64, V: F64, decay: float, *, common: bool) -> F64:
    """Of client i's loss in theta, W_0 and V_i, or theta and W_i, by differences of the reference's gradients."""
    net, site, rows = twin.net, twin.sites[i], twin.rows(i)
    sizes = [net.V.size, net.v.size, *([W_0.size] if common else []), V.size]

    def gradient(flat: F64) -> F64:
        blocks = np.split(flat, np.cumsum(sizes)[:-1])
        net.V, net.v = blocks[0].reshape(net.V.shape), blocks[1]
        own = blocks[-1].reshape(V.shape)
        base = blocks[2].reshape(W_0.shape)[rows] if common else np.zeros_like(V)
        dV, dv, dW = gradients(net, base + own, site)
        at_common = np.zeros_like(W_0)
        at_common[rows] = dW
        middle = [at_common.ravel()] if common else []
        return np.concatenate([dV.ravel(), dv, *middle, (dW + decay * own).ravel()])

    point = np.concatenate([net.V.ravel(), net.v, *([W_0.ravel()] if common else []), V.ravel()])
    h = 1e-5
    found = np.stack(
        [(gradient(point + h * e) - gradient(point - h * e)) / (2 * h) for e in np.eye(len(point))]
    )
    gradient(point)  # the network as it was
    return found


@pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])
def test_the_constant_is_the_joint_hessians_largest_eigenvalue(common: bool) -> None:
    twin = world()
    twin.random_heads()
    rng, decay = np.random.default_rng(5), 0.3
    W_0 = rng.normal(size=(6, 5))
    algorithm = automatic(steps=1, common_head=common, head_decay=decay)
    shared = {
        **algorithm.init_shared(twin.model, 6, 0),
        **({"head": torch.from_numpy(W_0)} if common else {}),
    }
    for i in range(5):
        played, _ = play(twin, algorithm, shared, [i])
        values = np.linalg.eigvalsh(hessian(twin, i, W_0, twin.heads[i], decay, common=common))
        found = float(played.shared["smoothness"])
        assert 0.95 * np.abs(values).max() < found < 1.0001 * np.abs(values).max()


def test_a_later_round_takes_the_largest_constant_heard_so_far() -> None:
    twin = world()
    twin.random_heads()
    algorithm = automatic(steps=1)
    first = algorithm.init_shared(twin.model, 6, 0)
    alone = [float(play(twin, algorithm, first, [i])[0].shared["smoothness"]) for i in range(5)]
    assert float(play(twin, algorithm, first, range(5))[0].shared["smoothness"]) == max(alone)
    known = {**first, "smoothness": torch.tensor(1e6)}
    assert float(play(twin, algorithm, known, range(5))[0].shared["smoothness"]) == 1e6


class FederationLoss(pflego.Callback):
    """Notes the whole federation's loss at the start and after the server's steps, decay included."""

    def __init__(self, twin: World, decay: float = 0.0) -> None:
        self.twin, self.decay, self.values = twin, decay, list[float]()

    def on_start(self, run: Run) -> None:
        self.values.append(self.loss(run))

    def on_round(self, run: Run, row: HistoryRow) -> None:
        self.values.append(self.loss(run))

    def loss(self, run: Run) -> float:
        net = self.twin.net
        net.V, net.v = run.shared["0.weight"].numpy(), run.shared["0.bias"].numpy()
        total = 0.0
        for i, (a, site) in enumerate(zip(self.twin.alphas, self.twin.sites, strict=True)):
            own = run.states[f"c{i}"]["head"].numpy()
            W_0 = (
                run.shared["head"].numpy()[self.twin.rows(i)] if "head" in run.shared else np.zeros_like(own)
            )
            total += a * (loss(net, W_0 + own, site) + self.decay / 2 * float((own**2).sum()))
        return total


@pytest.mark.parametrize("head_step", often(["exact", "paper"]))
@pytest.mark.parametrize("regression", often([False, True]), ids=["classification", "regression"])
@pytest.mark.parametrize("common", [False, True], ids=["own heads", "common head"])
@pytest.mark.parametrize("client_lr", ["auto", "centred"])
def test_the_federations_loss_falls_with_every_step(
    head_step: str, regression: bool, common: bool, client_lr: str
) -> None:
    twin = world(regression=regression)
    watch = FederationLoss(twin, decay=0.1)
    algorithm = automatic(
        steps=5, client_lr=client_lr, head_step=head_step, common_head=common, head_decay=0.1
    )
    pflego.train(twin.federation, twin.model, algorithm, rounds=15, callbacks=[watch])
    assert all(later <= earlier for earlier, later in pairwise(watch.values))
    assert watch.values[-1] < 0.95 * watch.values[0]


def test_a_sum_of_two_blocks_does_not_cycle() -> None:
    """(W_0 + V)^2 / 2 has a curvature of 1 in each block and of 2 in both: steps of 1 would jump to and fro."""
    x = torch.zeros(4, 1, dtype=torch.float64)
    federation = pflego.Federation([pflego.Client(0, x, torch.zeros(4, dtype=torch.float64))])
    algorithm = automatic(
        steps=1,
        common_head=True,
        head_decay=0.0,
        head_step="exact",
        head_init=lambda r, c, g: torch.ones(r, c),
    )
    run = pflego.train(federation, pflego.Model(nn.Identity(), 1), algorithm, rounds=4)
    assert float(run.shared["smoothness"]) == pytest.approx(2, rel=1e-6)
    assert [row["loss"] for row in run.history] == pytest.approx([0.5, 0.125, 0.0, 0.0], abs=1e-6)


def test_a_run_that_is_resumed_remembers_the_constant(tmp_path: object) -> None:
    twin = world()
    algorithm = automatic(steps=3)
    whole = pflego.train(twin.federation, twin.model, algorithm, rounds=6, participation=2)
    pflego.train(twin.federation, twin.model, algorithm, rounds=3, participation=2, out=f"{tmp_path}/run")
    again = pflego.train(
        twin.federation, twin.model, algorithm, rounds=6, participation=2, out=f"{tmp_path}/run", resume=True
    )
    assert all(torch.equal(again.shared[name], whole.shared[name]) for name in whole.shared)
    assert (whole.history[0]["forward_passes"] or 0) > 2
