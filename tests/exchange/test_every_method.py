"""Rules and transforms know no method: each goes with every one, held to a round in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.aggregation import Aggregation
from pflego.exchange.round import Round
from pflego.exchange.transforms import Transform
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.randomness import torch_generator
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.own_parts import Damped, Loudest
from tests.support.reference import Params, World, cohorts, world
from tests.support.rivals import Combine, add_up, assert_at, every_method

SEED, CLIENTS, R = 3, 5, 4
CHOSEN = cohorts(pflego.Fixed(R), CLIENTS, rounds=1, seed=SEED)
METHODS = every_method(tau=4, beta=0.15, rho=0.03, scale=CLIENTS / R, seed=SEED)
LIMIT = 0.05  # below the norm of what most clients send


def median(sent: Sequence[Params], weights: Sequence[float]) -> Params:
    return {name: sum(weights) * np.median([one[name] for one in sent], axis=0) for name in sent[0]}


def loudest(sent: Sequence[Params], weights: Sequence[float]) -> Params:
    combined = {}
    for name in sent[0]:
        stacked = np.array([one[name] for one in sent])
        places = np.abs(stacked).argmax(axis=0)[None]
        combined[name] = sum(weights) * np.take_along_axis(stacked, places, axis=0)[0]
    return combined


def damped(sent: Sequence[Params], weights: Sequence[float]) -> Params:
    return {name: total / 2 for name, total in add_up(sent, weights).items()}


def clipped(sent: Params) -> Params:
    size = np.sqrt(sum((array**2).sum() for array in sent.values()))
    return {name: array * min(1, LIMIT / size) for name, array in sent.items()}


def squared(sent: Params) -> Params:
    return {name: array * np.abs(array) for name, array in sent.items()}


@dataclass(frozen=True)
class Squared:
    """A transform of one's own: squares that keep their signs."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        return {name: tensor * tensor.abs() for name, tensor in contribution.items()}


def train(twin: World, algorithm: pflego.Algorithm, **options: object) -> Run:
    return pflego.train(
        twin.federation,
        twin.model,
        algorithm,
        **{"rounds": 1, "participation": R, "seed": SEED, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("rule", "combine"),
    [(pflego.Median(), median), (Loudest(), loudest), (Damped(), damped)],
    ids=["median", "own rule", "own rule for sums"],
)
@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
def test_a_rule_goes_with_every_method(name: str, rule: Aggregation, combine: Combine) -> None:
    twin = world()
    run = train(twin, METHODS[name].algorithm, aggregation=rule)
    simulation, _ = METHODS[name].play(twin, CHOSEN, combine=combine)
    assert_at(run, simulation)
    plain, _ = METHODS[name].play(twin, CHOSEN)
    # one step of Adam hardly depends on the length of a gradient: of one that is halved, not at all
    # and means of classes, which are a sum divided by another, not either
    same = rule == Damped() and (METHODS[name].server_lr or name == "fedproto")
    if plain.shared and not same:
        changes = [np.abs(w - simulation.shared[key]).max() for key, w in plain.shared.items()]
        assert max(changes) > 1e-6


@pytest.mark.parametrize("missing", ["zero", "renormalise"])
@pytest.mark.parametrize(
    "name", often(sorted(METHODS.keys() - {"feddane"}), "pflego", "fedavg")
)  # whose two exchanges have a deadline each
def test_under_a_rule_a_missing_reply_is_one_less_to_look_at(name: str, missing: str) -> None:
    """The median of those that arrived, times the sum of their weights, or one."""
    twin = world()
    deadlines = {"ditto": 0.2, "apfl": 0.2, "pflego": 0.04, "fedrecon": 0.04, "fedsgd": 0.04, "pfedme": 0.3}
    deadline = deadlines.get(name, 0.1)  # they make more passes, or fewer
    options = {"aggregation": pflego.Median(), "missing": missing, "deadline": deadline}
    speed = pflego.Speed(
        1000, spread=0
    )  # c4, whose 27 samples take the longest, and with many passes others too
    run = train(twin, METHODS[name].algorithm, speed=speed, **options)
    passes = sum(int(run.history[0][f"{way}_passes"] or 0) for way in ("forward", "backward"))
    simulation, arrived = METHODS[name].play(
        twin,
        CHOSEN,
        combine=median,
        arrives=lambda i, _: twin.sites[i].n * passes <= 1000 * deadline,
        renormalise=missing == "renormalise",
    )
    assert 0 < arrived[0] < R
    assert run.history[0]["missing"] == R - arrived[0]
    assert_at(run, simulation)


@pytest.mark.parametrize(
    ("transforms", "transform"),
    [
        ([pflego.Clip(LIMIT)], clipped),
        ([Squared()], squared),
        ([Squared(), pflego.Clip(LIMIT)], lambda sent: clipped(squared(sent))),
        ([pflego.Clip(LIMIT), Squared()], lambda sent: squared(clipped(sent))),
    ],
    ids=["clip", "own", "own, then clip", "clip, then own"],
)
@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
def test_transforms_go_with_every_method(
    name: str, transforms: Sequence[object], transform: Callable[[Params], Params]
) -> None:
    twin = world()
    run = train(twin, METHODS[name].algorithm, transforms=transforms)
    simulation, _ = METHODS[name].play(twin, CHOSEN, transform=transform)
    assert_at(run, simulation)


@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - {"local"}), "pflego", "fedavg"))
def test_a_rule_and_a_transform_go_together(name: str) -> None:
    twin = world()
    run = train(
        twin,
        METHODS[name].algorithm,
        rounds=3,
        aggregation=pflego.Median(),
        transforms=[pflego.Clip(LIMIT)],
    )
    chosen = cohorts(pflego.Fixed(R), CLIENTS, rounds=3, seed=SEED)
    simulation, _ = METHODS[name].play(twin, chosen, combine=median, transform=clipped)
    assert_at(run, simulation, 1e-9)


def test_what_the_server_takes_the_largest_of_is_neither_clipped_nor_put_to_a_rule() -> None:
    """server_lr="auto" needs the largest smoothness constant as it was measured."""
    twin = world()
    algorithm = pflego.PFLEGO(steps=3, server_lr="auto", server_optimizer="sgd")
    problems = Problems(twin.federation, twin.model)
    states = {client: algorithm.init_state(problems[i], 0) for i, client in enumerate(twin.federation.ids)}
    shared = {**twin.model.weights(), "smoothness": torch.tensor(0.5)}  # heard in an earlier round
    measured = []
    cases: list[tuple[list[Transform], Aggregation]] = [
        ([], pflego.Mean()),
        ([pflego.Clip(1e-3)], pflego.Median()),
    ]
    for transforms, rule in cases:
        exchange = Exchange.of(
            algorithm, twin.federation.sizes, aggregation=rule, transforms=transforms, seed=SEED
        )
        engine = LocalEngine(problems, algorithm, states, transforms, together=False)
        work = engine.run(exchange.turns(exchange.round(1), range(CLIENTS)), shared)
        contributions = [outcome.contribution or {} for outcome in work.outcomes]
        measured.append([float(c["smoothness"]) for c in contributions])
        played = exchange.play(
            engine,
            1,
            shared,
            {},
            range(CLIENTS),
            ids=twin.federation.ids,
            keep=lambda changed: None,
        )
        rate = 1 / 0.5  # r = I
        assert float(played.shared["smoothness"]) == max(measured[-1]) > 0.5
        sent = [{name: c[name].numpy() for name in ("0.weight", "0.bias")} for c in contributions]
        weights = [site.n / sum(s.n for s in twin.sites) for site in twin.sites]
        combined = (add_up if rule == pflego.Mean() else median)(sent, weights)
        for name, first in twin.model.weights().items():
            expected = first.numpy() - rate * combined[name]
            np.testing.assert_allclose(played.shared[name].numpy(), expected, rtol=1e-12)
    assert measured[0] == measured[1]
    assert min(measured[0]) > 1e-3


@dataclass(frozen=True)
class Noise:
    """A transform that draws: the same whatever else happens, another one for every round and client."""

    def __call__(self, contribution: Weights, now: Round, client: ClientId) -> Weights:
        generator = torch_generator(now.seed, "noise", round_number=now.number, client=client)
        return {
            name: tensor + torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            for name, tensor in contribution.items()
        }


def test_a_transform_knows_round_client_and_seed() -> None:
    twin = world()
    algorithm = pflego.FedPer(steps=2, client_lr=0.1)
    plain, noisy, again = (
        train(twin, algorithm, participation=pflego.Everyone(), transforms=transforms)
        for transforms in ([], [Noise()], [Noise()])
    )
    assert torch.equal(noisy.shared["0.weight"], again.shared["0.weight"])
    expected = {name: w.numpy().copy() for name, w in plain.shared.items()}
    for i, alpha in enumerate(twin.alphas):
        generator = torch_generator(SEED, "noise", round_number=1, client=f"c{i}")
        for w in expected.values():
            w += alpha * torch.randn(w.shape, generator=generator, dtype=torch.float64).numpy()
    for name, w in expected.items():
        np.testing.assert_allclose(noisy.shared[name].numpy(), w, rtol=1e-9)


@pytest.mark.parametrize(
    "wrong", [None, "medien", "trimmed:x", "krum:1.5", "trimmed:0.7", pflego.Median, 0.5], ids=str
)
def test_what_is_no_rule_is_refused(wrong: object) -> None:
    with pytest.raises(pflego.SettingError, match="aggregation"):
        train(world(), pflego.PFLEGO(), aggregation=wrong)


@pytest.mark.parametrize("wrong", [[pflego.Clip], ["clip"], "clip", None, pflego.Clip(1.0)], ids=str)
def test_what_is_no_transform_is_refused(wrong: object) -> None:
    with pytest.raises(pflego.SettingError, match="transforms"):
        train(world(), pflego.PFLEGO(), transforms=wrong)


def test_runs_with_other_rules_are_not_resumed_by_each_other(tmp_path: Path) -> None:
    twin = world()
    train(twin, pflego.FedAvg(), aggregation=pflego.Median(), out=tmp_path)
    with pytest.raises(pflego.UserError, match="aggregation"):
        train(twin, pflego.FedAvg(), rounds=2, out=tmp_path, resume=True)
    train(twin, pflego.FedAvg(), rounds=2, aggregation=pflego.Median(), out=tmp_path, resume=True)
