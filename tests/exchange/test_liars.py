"""Liars against NumPy: what they send, what they know, whom they are, and what they do to a run."""

from __future__ import annotations

from dataclasses import replace
from math import floor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.base import Outcome, Turn, Work
from pflego.engines.hostile import spoiled
from pflego.errors import SettingError
from pflego.exchange.liars import (
    ALittle,
    FalseCounts,
    FlippedLabels,
    Liars,
    Lie,
    Noise,
    Scaled,
    ShuffledLabels,
    SignFlip,
    liars_of,
    shift_allowed,
)
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.runs.plan import Plan
from pflego.settings.experiment import Experiment
from pflego.weights import Weights
from tests.support.cases import often
from tests.support.reference import (
    Params,
    assert_identical,
    assert_same_weights,
    cohorts,
    distance,
    world,
)
from tests.support.rivals import assert_at, every_method

SEED, CLIENTS = 3, 5
NOW = Round(4, seed=SEED)
METHODS = every_method(tau=4, beta=0.15, rho=0.03, scale=CLIENTS / 4, seed=SEED)
EVERYBODY = 0.95  # of five clients, rounded


def sent(clients: int, seed: int = 0) -> dict[ClientId, Weights]:
    rng = np.random.default_rng(seed)
    return {
        i: {"a": torch.from_numpy(rng.normal(size=(3, 2))), "b": torch.from_numpy(rng.normal(size=4))}
        for i in range(clients)
    }


@pytest.mark.parametrize(("lie", "factor"), [(SignFlip(), -1.0), (SignFlip(3), -3.0), (Scaled(7), 7.0)])
def test_one_sends_a_multiple(lie: Lie, factor: float) -> None:
    honest = sent(3)
    for client, told in lie.told(honest, NOW, 9).items():
        for name, tensor in told.items():
            assert np.array_equal(tensor.numpy(), factor * honest[client][name].numpy())


def test_noise_is_as_long_as_was_said_and_knows_nothing_of_the_work_but_its_length() -> None:
    size = 40_000
    honest: dict[ClientId, Weights] = {
        c: {"w": torch.full((size,), 0.5 * (c + 1), dtype=torch.float64)} for c in (0, 1)
    }
    told = Noise(2.0).told(honest, NOW, 9)
    for client in (0, 1):
        drawn = told[client]["w"].numpy()
        spread = 2.0 * 0.5 * (client + 1)
        # the variance of a mean square of n normal numbers is 2 s^4 / n: five of its deviations
        assert abs((drawn**2).mean() / spread**2 - 1) < 5 * (2 / size) ** 0.5
        assert abs(drawn.mean()) < 5 * spread / size**0.5
        assert stats.kstest(drawn / spread, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(told[0]["w"].numpy(), told[1]["w"].numpy())[0, 1]) < 5 / size**0.5
    again = Noise(2.0).told(honest, NOW, 9)
    assert torch.equal(again[0]["w"], told[0]["w"])
    later = Noise(2.0).told(honest, replace(NOW, number=5), 9)
    assert not torch.equal(later[0]["w"], told[0]["w"])


@pytest.mark.parametrize("z", [None, 1.5])
def test_a_little_is_the_mean_of_liars_less_so_many_of_their_deviations(z: float | None) -> None:
    honest, asked = sent(4), 11
    s = floor(asked / 2 + 1) - 4
    shift = stats.norm.ppf((asked - 4 - s) / (asked - 4)) if z is None else z
    told = ALittle(z).told(honest, NOW, asked)
    for name in ("a", "b"):
        rows = np.stack([own[name].numpy() for own in honest.values()])
        theirs = rows.mean(axis=0) - shift * rows.std(axis=0)
        assert all(np.abs(told[client][name].numpy() - theirs).max() < 1e-14 for client in told)


@pytest.mark.parametrize(("asked", "liars"), [(50, 24), (51, 12), (20, 4), (10, 4), (7, 3)])
def test_as_many_honest_clients_as_are_needed_are_expected_beyond_the_shift(asked: int, liars: int) -> None:
    z, honest = shift_allowed(asked, liars), asked - liars
    beyond = honest * (1 - stats.norm.cdf(z))
    needed = floor(asked / 2 + 1) - liars
    assert beyond == pytest.approx(needed) or (z == 0 and needed >= honest / 2)


def test_one_liar_alone_has_no_spread_to_hide_in() -> None:
    honest = sent(1)
    assert_same_weights(dict(ALittle(3.0).told(honest, NOW, 9)[0]), honest[0])
    assert ALittle().told({}, NOW, 9) == {}


def outcomes(contributions: dict[ClientId, Weights]) -> Work:
    return Work([Outcome(int(p), p, 1, {}, {}, c, 0, finite=True) for p, c in contributions.items()])


@pytest.mark.parametrize("text", ["sign", "scale", "noise", "little:2"])
def test_liars_know_each_others_work_at_most_and_leave_that_of_others_alone(text: str) -> None:
    """Whatever honest clients send, lies are the same."""
    liars = liars_of(f"{text}@0.4")
    assert liars is not None
    ids, turns = range(8), [Turn(p, NOW, 1.0) for p in range(8)]
    who = liars.who(ids, seed=SEED)
    assert len(who) == 3
    ours, others = sent(8), sent(8, seed=1)
    mixed: dict[ClientId, Weights] = {p: ours[p] if p in who else others[p] for p in ids}
    one, two = (
        spoiled(outcomes(all_of), liars, turns, NOW, ids=ids, largest={"b"}) for all_of in (ours, mixed)
    )
    for first, second in zip(one.outcomes, two.outcomes, strict=True):
        assert first.contribution is not None
        assert second.contribution is not None
        position = first.position
        if position in who:
            assert_same_weights(first.contribution, second.contribution)
            assert not torch.equal(first.contribution["a"], ours[position]["a"])
            assert torch.equal(first.contribution["b"], ours[position]["b"])  # is no gradient
        else:
            assert first.contribution is ours[position]
            assert second.contribution is others[position]


def test_a_lie_beyond_all_numbers_is_left_out_like_everything_that_is_not_finite() -> None:
    liars = Liars(Scaled(1e38), 0.4)
    work = outcomes({p: {"w": torch.tensor([100.0])} for p in range(5)})
    turns = [Turn(p, NOW, 1.0) for p in range(5)]
    told = spoiled(work, liars, turns, NOW, ids=range(5), largest=())
    assert {o.position for o in told.outcomes if not o.finite} == liars.who(range(5), seed=SEED)


@pytest.mark.parametrize("name", methods())
def test_every_method_can_be_lied_to(name: str) -> None:
    def doubled(work: Params) -> Params:
        return {key: 2 * array for key, array in work.items()}

    twin = world()
    run = pflego.train(
        twin.federation,
        twin.model,
        METHODS[name].algorithm,
        rounds=1,
        participation=4,
        seed=SEED,
        liars=f"scale:2@{EVERYBODY}",
    )
    chosen = cohorts(pflego.Fixed(4), CLIENTS, rounds=1, seed=SEED)
    simulation, _ = METHODS[name].play(twin, chosen, transform=doubled)
    assert_at(run, simulation)


def test_false_counts_change_how_much_a_client_counts_and_nothing_else() -> None:
    federation = world().federation
    liars = Liars([FalseCounts(3.0), SignFlip()], 0.4)
    [first, second] = sorted(liars.who(federation.ids, seed=SEED))
    sizes = federation.sizes.astype(float)
    sizes[[first, second]] *= 3
    exchange = Plan(rounds=1, liars=liars, seed=SEED).exchange(pflego.PFLEGO(), federation)
    assert np.abs(exchange.standing(1).importance - sizes / sizes.sum()).max() < 1e-15
    assert not exchange.sums  # each liar's contribution must be seen by itself
    assert liars.data(federation, seed=SEED) is federation


def test_flipped_labels_are_turned_round_for_liars_alone() -> None:
    federation = pflego.load("digits", clients=10, classes_per_client=3, seed=1)
    liars = Liars(FlippedLabels(), 0.3)
    who = liars.who(federation.ids, seed=SEED)
    assert len(who) == 3
    told = liars.data(federation, seed=SEED)
    for position, (was, now) in enumerate(zip(federation, told, strict=True)):
        wanted = 9 - was.y_train.numpy() if position in who else was.y_train.numpy()
        assert np.array_equal(now.y_train.numpy(), wanted)
        assert torch.equal(now.y_test, was.y_test)
        assert torch.equal(now.x_train, was.x_train)


def test_numbers_are_mirrored_at_their_mean() -> None:
    client = pflego.Client("a", np.zeros((3, 1)), np.array([1.0, 2.0, 6.0]))
    assert FlippedLabels().data(client, None, 0).y_train.tolist() == [5.0, 4.0, 0.0]


def test_shuffled_labels_are_the_same_ones() -> None:
    federation = pflego.load("digits", clients=5, seed=1)
    client = federation[2]
    told = ShuffledLabels().data(client, federation.classes, 7).y_train
    assert not torch.equal(told, client.y_train)
    assert torch.equal(told.sort().values, client.y_train.sort().values)


def test_a_flipped_label_means_nothing_to_a_client_with_a_head_of_its_own() -> None:
    """PFLEGO's head learns the new names in the place of the old ones, and what is shared stays the same."""
    twin = world()
    for algorithm, same in [
        (pflego.PFLEGO(steps=5, client_lr=0.1), True),
        (pflego.FedAvg(steps=5, client_lr=0.1, labels="global"), False),
    ]:
        shared = [
            pflego.train(twin.federation, twin.model, algorithm, rounds=3, seed=SEED, liars=liars).shared
            for liars in (None, "labels@0.4")
        ]
        gaps = [distance(tensor, shared[1][name].numpy()) for name, tensor in shared[0].items()]
        assert max(gaps) < 1e-12 if same else max(gaps) > 1e-3


def test_who_lies_depends_on_the_seed_and_fewer_are_among_more() -> None:
    few, many = (Liars(SignFlip(), share) for share in (0.1, 0.3))
    assert len(few.who(range(40), seed=1)) == 4
    assert few.who(range(40), seed=1) < many.who(range(40), seed=1)
    assert Liars(Noise(), 0.1).who(range(40), seed=1) == few.who(range(40), seed=1)
    assert few.who(range(40), seed=2) != few.who(range(40), seed=1)
    assert len(Liars(SignFlip(), 0.01).who(range(5), seed=1)) == 1


@pytest.mark.parametrize("text", often(["noise@0.4", "labels@0.4", "samples:5+little:1.5@0.4"]))
def test_a_run_with_liars_is_resumed_to_the_bit_and_opened_again(tmp_path: Path, text: str) -> None:
    settings: dict[str, object] = {
        "clients": 5,
        "steps": 3,
        "participation": "4",
        "liars": text,
        "evaluate_every": 1,
    }
    whole = Experiment.build({**settings, "rounds": 4, "out": str(tmp_path / "whole")}).train()
    for rounds in (2, 4):
        made = Experiment.build({**settings, "rounds": rounds, "out": str(tmp_path / "halves")})
        run = made.train(resume=rounds == 4)
    assert_identical(run, whole)
    opened = pflego.open_run(tmp_path / "whole")
    assert str(opened.plan.liars) == text
    assert [row["accuracy"] for row in opened.evaluate()] == [row["accuracy"] for row in whole.evaluate()]
    for client in whole.federation.ids:
        assert torch.equal(opened.federation.client(client).y_train, whole.federation.client(client).y_train)


@pytest.mark.parametrize(
    "text",
    ["sign@0.2", "sign:2.5@0.2", "samples+sign@0.1", "labels@0.25", "little:1.5@0.3", "scale:3+noise@0.2"],
)
def test_liars_are_spelled_as_they_are_read(text: str) -> None:
    assert str(liars_of(text)) == text


@pytest.mark.parametrize(
    "given",
    [
        "sign",
        "sign@",
        "sign@1",
        "sign@0",
        "@0.2",
        "lie@0.2",
        "labels:2@0.2",
        "sign:x@0.2",
        "sign:-1@0.2",
        "sign+@0.2",
        3,
    ],
)
def test_what_are_no_liars_is_refused(given: object) -> None:
    with pytest.raises(SettingError):
        liars_of(given)


def test_liars_who_conspire_are_refused_where_they_work_in_several_processes() -> None:
    twin = world()
    with pytest.raises(SettingError, match="each other's work"):
        pflego.train(twin.federation, twin.model, pflego.PFLEGO(), liars="little@0.4", engine="distributed")
    with pytest.raises(SettingError, match="need a lie"):
        Liars((), 0.2)
