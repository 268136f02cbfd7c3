from __future__ import annotations

from itertools import combinations
from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.federation.network import Network, Speed
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.runs.summary import Summary
from pflego.training.loop import NothingLearnedWarning
from pflego.weights import Weights
from tests.support.reference import (
    F64,
    Site,
    StopAfter,
    World,
    algorithm_1,
    assert_follows,
    assert_identical,
    cohorts,
    gradients,
    world,
)

BYTES = 8 * (4 * 6 + 4)  # of theta's gradient in float64: V, (4, 6), and v


def arrives(network: Network, *, client: ClientId, number: int, seed: int) -> bool:
    return network.delivers(samples=100, passes=2, client=client, number=number, seed=seed)


def test_delivery_is_a_function_of_seed_round_and_client() -> None:
    keys = [(seed, number, client) for seed in range(6) for number in range(1, 7) for client in range(6)]

    def draw(order: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], bool]:
        network = Network(dropout=0.5)
        return {(s, t, c): arrives(network, client=c, number=t, seed=s) for s, t, c in order}

    drawn = draw(keys)
    assert drawn == draw(keys[::-1])
    table = np.array([drawn[key] for key in keys]).reshape(6, 6, 6)
    for axis in range(3):
        assert (table != table.take([0], axis=axis)).any(), "each of the three must matter"


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_replies_are_lost_as_often_as_asked_and_on_their_own(p: float) -> None:
    network = Network(dropout=p)
    lost = np.array(
        [[not arrives(network, client=c, number=t, seed=1) for t in range(40)] for c in range(100)],
        dtype=float,
    )
    sigma = sqrt(p * (1 - p) / lost.size)
    assert abs(lost.mean() - p) < 5 * sigma
    for one, other in [(lost[1:], lost[:-1]), (lost[:, 1:], lost[:, :-1])]:  # of neighbours, and in a row
        covariance = ((one - p) * (other - p)).mean()
        assert abs(covariance) < 5 * p * (1 - p) / sqrt(one.size)


def test_without_dropout_or_deadline_every_reply_arrives() -> None:
    assert all(arrives(Network(), client=c, number=t, seed=0) for c in range(20) for t in range(20))


def test_slow_clients_are_always_late_and_fast_ones_never() -> None:
    speed = Speed(samples_per_second=50, spread=0.7)
    seconds = [speed.seconds(samples=100, passes=2, client=c, seed=2) for c in range(60)]
    deadline = sorted(seconds)[30]
    network = Network(deadline=deadline, speed=speed)
    for client, needed in enumerate(seconds):
        for number in range(1, 6):
            assert arrives(network, client=client, number=number, seed=2) == (needed <= deadline)


def test_speeds_are_log_normal_around_the_median() -> None:
    speed = Speed(samples_per_second=200, spread=0.5)
    logs = [log(300 * 4 / speed.seconds(samples=300, passes=4, client=c, seed=0)) for c in range(2000)]
    assert abs(np.mean(logs) - log(200)) < 5 * 0.5 / sqrt(2000)
    assert abs(np.std(logs) - 0.5) < 5 * 0.5 / sqrt(2 * 2000)


@given(samples=st.integers(1, 10**6), passes=st.integers(1, 100), client=st.integers(), seed=st.integers())
def test_without_a_spread_all_are_alike(samples: int, passes: int, client: int, seed: int) -> None:
    seconds = Speed(250.0, 0).seconds(samples=samples, passes=passes, client=client, seed=seed)
    assert seconds == pytest.approx(samples * passes / 250, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *[(Network, "dropout", value) for value in (-0.1, 1.0, 1.5, float("nan"), "0.5", None)],
        *[(Network, "deadline", value) for value in (0, -1.0, float("inf"), "soon")],
        *[(Speed, "samples_per_second", value) for value in (0, -1.0, float("nan"), "fast")],
        *[(Speed, "spread", value) for value in (-0.5, float("nan"), "wide")],
    ],
)
def test_wrong_settings_are_refused_by_name(kind: type[object], name: str, value: object) -> None:
    with pytest.raises(pflego.UserError, match=name):
        kind(**{name: value})


def test_training_refuses_them_too() -> None:
    twin = world()
    for wrong in ({"dropout": 1.0}, {"deadline": 0}, {"missing": "ignore"}):
        with pytest.raises(pflego.UserError, match=next(iter(wrong))):
            pflego.train(twin.federation, twin.model, pflego.PFLEGO(), rounds=1, **wrong)


@pytest.mark.parametrize("missing", ["zero", "renormalise"])
@pytest.mark.parametrize("server_optimizer", ["sgd", "adam"])
def test_a_lost_reply_leaves_the_clients_own_head_moved(server_optimizer: str, missing: str) -> None:
    twin = world()
    algorithm = pflego.PFLEGO(steps=4, client_lr=0.2, server_lr=0.05, server_optimizer=server_optimizer)
    run = pflego.train(
        twin.federation,
        twin.model,
        algorithm,
        rounds=15,
        participation=3,
        seed=3,
        dropout=0.5,
        missing=missing,  # type: ignore[arg-type]
    )
    network = Network(dropout=0.5)
    arrived = algorithm_1(
        twin,
        cohorts(pflego.Fixed(3), 5, rounds=15, seed=3),
        r=3,
        tau=4,
        beta=0.2,
        rho=0.05,
        adam=server_optimizer == "adam",
        arrives=lambda i, t: arrives(network, client=f"c{i}", number=t, seed=3),
        renormalise=missing == "renormalise",
    ).arrived
    assert set(arrived) == {0, 1, 2, 3}
    assert_follows(run, twin)
    assert [row["missing"] for row in run.history] == [3 - n for n in arrived]
    assert [row["bytes_up"] for row in run.history] == [n * BYTES for n in arrived]
    assert {row["bytes_down"] for row in run.history} == {3 * BYTES}
    assert {row["participants"] for row in run.history} == {3}


def test_late_replies_count_as_lost_ones() -> None:
    """7, 12, 17, 22 and 27 samples, two passes, 1,000 samples a second: 14 to 54 ms."""
    twin = world()
    algorithm = pflego.PFLEGO(steps=4, client_lr=0.2, server_lr=0.05, server_optimizer="sgd")
    run = pflego.train(
        twin.federation, twin.model, algorithm, rounds=6, deadline=0.04, speed=Speed(1000, spread=0)
    )
    trace = algorithm_1(twin, [range(5)] * 6, r=5, tau=4, beta=0.2, rho=0.05, arrives=lambda i, _: i < 3)
    assert trace.arrived == [3] * 6
    assert_follows(run, twin)
    assert [row["missing"] for row in run.history] == [2] * 6


def test_a_second_forward_pass_takes_its_time() -> None:
    twin = world()
    cases: list[tuple[str | float, int]] = [("unlimited", 2), (0, 4)]
    for memory, missing in cases:  # two passes: 14, 24, 34, ... ms; three: 21, 36, ...
        run = pflego.train(
            twin.federation,
            twin.model,
            pflego.PFLEGO(steps=2),
            rounds=1,
            deadline=0.035,
            speed=Speed(1000, spread=0),
            memory=memory,
        )
        assert run.history[0]["missing"] == missing


def test_bursts_last_as_long_as_asked_and_lose_as_much() -> None:
    """The chain of Gilbert and Elliott: its two probabilities, its share of losses, in every round alike."""
    network = Network(dropout=0.3, burst=4.0)
    lost = np.array([[network.loses(client=c, number=t, seed=1) for t in range(1, 101)] for c in range(600)])
    before, after = lost[:, :-1], lost[:, 1:]
    for found, wanted, count in [
        (after[~before].mean(), 0.3 / 0.7 / 4, (~before).sum()),
        ((~after)[before].mean(), 1 / 4, before.sum()),
    ]:
        assert abs(found - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / count)
    by_round = lost.mean(axis=0)  # also in the first: inverse weights hold in any round
    assert np.abs(by_round - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 600)
    alone = Network(dropout=0.3)
    single = np.array([[alone.loses(client=c, number=t, seed=1) for t in range(1, 101)] for c in range(100)])
    assert single[:, 1:][single[:, :-1]].mean() < 0.4 < lost[:, 1:][before].mean()


def test_a_line_is_the_same_whatever_round_is_asked_for_first() -> None:
    network = Network(dropout=0.4, burst=3.0)
    late = [network.loses(client="a", number=t, seed=7) for t in range(70, 0, -1)]
    assert late[::-1] == [network.loses(client="a", number=t, seed=7) for t in range(1, 71)]
    assert late[::-1] != [network.loses(client="b", number=t, seed=7) for t in range(1, 71)]


@pytest.mark.parametrize(("dropout", "burst"), [(0.9, 5.0), (0.1, 0.5)])
def test_bursts_that_cannot_be_are_refused(dropout: float, burst: float) -> None:
    with pytest.raises(pflego.SettingError, match="burst"):
        Network(dropout=dropout, burst=burst)


def test_a_reply_takes_work_bytes_and_twice_the_latency() -> None:
    plain = Speed(100.0, spread=0, bandwidth=1000.0, latency=0.25)
    assert plain.seconds(samples=50, passes=2, sent=3000, client="a", seed=0) == pytest.approx(1 + 3 + 0.5)
    spread = Speed(100.0, spread=0.5, bandwidth=1000.0, latency=0.25)
    parts = [
        spread.seconds(samples=50, passes=2, client="a", seed=0)
        - spread.seconds(samples=0, passes=0, client="a", seed=0),
        spread.seconds(samples=0, passes=0, sent=3000, client="a", seed=0)
        - spread.seconds(samples=0, passes=0, client="a", seed=0),
        spread.seconds(samples=0, passes=0, client="a", seed=0),
    ]
    assert sum(parts) == pytest.approx(spread.seconds(samples=50, passes=2, sent=3000, client="a", seed=0))
    logs = [log(part / whole) for part, whole in zip(parts, (1, 3, 0.5), strict=True)]
    assert len({round(one, 6) for one in logs}) == 3  # a slow computer may have a fast line


def test_what_the_server_would_have_waited_and_who_was_never_heard(tmp_path: Path) -> None:
    """14, 24, 34, 44 and 54 ms of work, 2 * 10 ms of latency, 2 * BYTES at a megabyte per second."""
    twin = world()
    speed = Speed(1000, spread=0, bandwidth=1e6, latency=0.01)
    work = [0.014, 0.024, 0.034, 0.044, 0.054]
    times = [seconds + 0.02 + 2 * BYTES / 1e6 for seconds in work]
    algorithm = pflego.PFLEGO(steps=2)

    def train(**options: object) -> Run:
        return pflego.train(
            twin.federation,
            twin.model,
            algorithm,
            rounds=4,
            speed=speed,
            **options,  # type: ignore[arg-type]
        )

    patient = train()
    assert [row["waited"] for row in patient.history] == pytest.approx([times[4]] * 4)
    assert Summary.of(patient).never_heard == ()
    few = train(participation=2, seed=3)
    drawn = cohorts(pflego.Fixed(2), 5, rounds=4, seed=3)
    assert [row["waited"] for row in few.history] == pytest.approx([times[max(c)] for c in drawn])
    between = (times[2] + times[3]) / 2
    with pytest.raises(KeyboardInterrupt):
        train(deadline=between, out=tmp_path, callbacks=[StopAfter(2)])
    hasty = train(deadline=between, out=tmp_path, resume=True)
    assert [(row["missing"], row["waited"]) for row in hasty.history] == [(2, between)] * 4
    assert hasty.silent == {"c3": 4, "c4": 4}
    came_to = Summary.of(hasty)
    assert came_to.never_heard == ("c3", "c4")
    assert came_to.unheard == pytest.approx(sum(twin.alphas[3:]))
    assert came_to.waited == pytest.approx(4 * between)
    opened = pflego.open_run(tmp_path, federation=twin.federation, model=twin.model)
    assert opened.silent == hasty.silent
    assert opened.plan.network == hasty.plan.network
    assert "asked and never heard: 2 clients" in opened.report(tmp_path / "report.html").read_text()
    assert "waited" not in pflego.train(twin.federation, twin.model, algorithm, rounds=1).history[0]


class Watch(pflego.Callback):
    """Keeps the shared weights after every round."""

    def __init__(self) -> None:
        self.seen: list[Weights] = []

    def on_round(self, run: Run, row: HistoryRow) -> None:
        self.seen.append({name: tensor.clone() for name, tensor in run.shared.items()})


@pytest.mark.parametrize("server_optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_without_a_reply_the_server_stands_still(server_optimizer: str) -> None:
    twin = world(clients=2)
    algorithm = pflego.PFLEGO(steps=3, server_lr=0.05, server_optimizer=server_optimizer)
    watch = Watch()
    run = pflego.train(
        twin.federation, twin.model, algorithm, rounds=20, dropout=0.6, seed=1, callbacks=[watch]
    )
    before = twin.model.weights()
    for row, after in zip(run.history, watch.seen, strict=True):
        still = all(torch.equal(before[name], after[name]) for name in before)
        assert still == (row["missing"] == row["participants"])
        before = after
    assert {row["missing"] for row in run.history[1:]} == {0, 1, 2}
    assert run.history[0]["missing"] != 2, "momentum must be there before it can be tempted"


def test_if_no_reply_ever_arrives_only_heads_learn() -> None:
    twin = world()
    with pytest.warns(NothingLearnedWarning, match="the shared weights are those it began with"):
        run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=5), rounds=4, deadline=1e-9)
    assert all(torch.equal(run.shared[name], w) for name, w in twin.model.weights().items())
    assert [(row["missing"], row["bytes_up"]) for row in run.history] == [(5, 0)] * 4
    losses = [row["loss"] or 0.0 for row in run.history]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def equal_sizes(twin: World) -> World:
    """The same clients with seven samples each, all of their classes among them."""
    members = [pflego.Client(c.id, c.x_train[:7], c.y_train[:7]) for c in twin.federation]
    sites = [Site(site.x[:7], site.t[:7]) for site in twin.sites]
    return World(pflego.Federation(members), twin.model, twin.net, sites, twin.heads)


def moves(twin: World, missing: str) -> dict[tuple[int, ...], F64]:
    """What the server's step of rate 1 adds up to, for every set of replies that may arrive; heads stay random."""
    algorithm = pflego.PFLEGO(steps=1, server_lr=1.0, server_optimizer="sgd", head_step="exact")
    clients = len(twin.sites)
    exchange = Exchange.of(algorithm, twin.federation.sizes, missing=missing)  # type: ignore[arg-type]
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    engine = LocalEngine(Problems(twin.federation, twin.model), algorithm, states, together=False)
    shared = twin.model.weights()
    found: dict[tuple[int, ...], F64] = {}
    for count in range(clients + 1):
        for there in combinations(range(clients), count):
            played = exchange.play(
                engine,
                1,
                shared,
                {},
                range(clients),
                ids=twin.federation.ids,
                keep=lambda changed: None,
                arrives=lambda outcome, there=there: outcome.position in there,  # type: ignore[misc]
            )
            assert (played.arrived, played.missing) == (count, clients - count)
            new = played.shared
            found[there] = flat(shared["0.weight"] - new["0.weight"], shared["0.bias"] - new["0.bias"])
    return found


def flat(V: torch.Tensor, v: torch.Tensor) -> F64:
    return np.concatenate([V.numpy().ravel(), v.numpy()])


def mean(moves: dict[tuple[int, ...], F64], clients: int, p: float, *, given_one: bool) -> F64:
    """Expectation over which replies are lost, each on its own with probability p."""
    chances = {arrived: (1 - p) ** len(arrived) * p ** (clients - len(arrived)) for arrived in moves}
    assert sum(chances.values()) == pytest.approx(1)
    total = np.asarray(sum(chances[arrived] * move for arrived, move in moves.items()))
    return total / (1 - chances[()]) if given_one else total


def full_gradient(twin: World) -> F64:
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    dV = np.asarray(sum(a * g[0] for a, g in zip(twin.alphas, parts, strict=True)))
    dv = np.asarray(sum(a * g[1] for a, g in zip(twin.alphas, parts, strict=True)))
    return np.concatenate([dV.ravel(), dv])


def apart(ours: F64, theirs: F64) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.fixture
def unequal() -> World:
    twin = world(clients=4)
    twin.random_heads()
    return twin


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_counting_missing_replies_as_zero_shortens_the_expected_step_and_does_not_turn_it(
    unequal: World, p: float
) -> None:
    found = mean(moves(unequal, "zero"), 4, p, given_one=False)
    assert apart(found, (1 - p) * full_gradient(unequal)) < 1e-12


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_renormalising_is_unbiased_where_clients_are_of_equal_size(unequal: World, p: float) -> None:
    twin = equal_sizes(unequal)
    found = mean(moves(twin, "renormalise"), 4, p, given_one=True)
    assert apart(found, full_gradient(twin)) < 1e-12


def test_renormalising_turns_the_expected_step_where_sizes_differ(unequal: World) -> None:
    """By hand, two clients with shares a and b = 1 - a, p = 1/2, given a reply: (a g + b h + g + h) / 3.

    That is (1 + a)/3 g + (1 + b)/3 h: the small client counts for more than its share.
    """
    full = full_gradient(unequal)
    found = mean(moves(unequal, "renormalise"), 4, 0.5, given_one=True)
    assert apart(found, full) > 0.05
    cosine = found @ full / np.linalg.norm(found) / np.linalg.norm(full)
    assert cosine < 0.999
    zero = mean(moves(unequal, "zero"), 4, 0.5, given_one=False)
    assert zero @ full / np.linalg.norm(zero) / np.linalg.norm(full) == pytest.approx(1, abs=1e-14)


def test_the_hand_computed_bias_of_two_clients() -> None:
    twin = world(clients=2)
    twin.random_heads()
    found = mean(moves(twin, "renormalise"), 2, 0.5, given_one=True)
    (a, b), parts = (
        twin.alphas,
        [gradients(twin.net, W, s) for W, s in zip(twin.heads, twin.sites, strict=True)],
    )
    g, h = (np.concatenate([dV.ravel(), dv]) for dV, dv, _ in parts)
    assert apart(found, (1 + a) / 3 * g + (1 + b) / 3 * h) < 1e-12


def test_an_interrupted_run_with_losses_resumes_exactly(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)

    def train(out: Path, *, resume: bool = False, callbacks: list[pflego.Callback] | None = None) -> Run:
        return pflego.train(
            twin.federation,
            twin.model,
            pflego.PFLEGO(steps=4, head_init="uniform"),
            rounds=12,
            participation=3,
            dropout=0.4,
            deadline=0.06,
            missing="renormalise",
            seed=5,
            out=out,
            resume=resume,
            callbacks=callbacks or [],
        )

    whole = train(tmp_path / "whole")
    for stop in (2, 7):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "cut", resume=stop > 2, callbacks=[StopAfter(stop)])
    assert_identical(train(tmp_path / "cut", resume=True), whole)
    assert len({row["missing"] for row in whole.history}) > 1
    with pytest.raises(pflego.UserError, match=r"dropout was 0\.4, is now 0\.0"):
        pflego.train(
            twin.federation, twin.model, pflego.PFLEGO(steps=4, head_init="uniform"), rounds=12,
            participation=3, deadline=0.06, missing="renormalise", seed=5, out=tmp_path / "cut", resume=True,
        )  # fmt: skip
