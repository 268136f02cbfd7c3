"""Rounds of small methods by hand: several exchanges in a round, and answers for single clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pflego
from pflego.federation.draws import Participation, cohort
from pflego.federation.network import Network
from pflego.runs.run import Run
from pflego.training.loop import NothingLearnedWarning
from tests.support.own_parts import (
    GOALS,
    Answering,
    Scalar,
    Totalling,
    TotallingUnbiased,
    TwoExchanges,
    scalar_federation,
    scalar_model,
)
from tests.support.reference import StopAfter, assert_identical

NAMES, CS, NS = list(GOALS), [c for c, _ in GOALS.values()], [n for _, n in GOALS.values()]
BYTES = 8  # of w, and of anything like it; the head has two numbers


def train(algorithm: Scalar, **options: object) -> Run:
    return pflego.train(scalar_federation(), scalar_model(), algorithm, **options)  # type: ignore[arg-type]


def w_of(run: Run) -> float:
    return float(run.shared["weight"])


def test_two_exchanges_by_hand() -> None:
    """The mean of c_i is (1 + 12 + 28) / 8 = 5.125, and a round takes three quarters of the way to it."""
    run = train(TwoExchanges(), rounds=2)
    assert w_of(run) == pytest.approx(5.125 * 15 / 16, rel=1e-14)
    assert float(run.shared["slope"]) == pytest.approx(5.125 / 4 - 5.125 / 2, rel=1e-14)
    assert [run.states[name]["visits"].item() for name in NAMES] == [4, 4, 4]
    for row in run.history:
        assert row["participants"] == 3
        assert (row["missing"], row["rejected"]) == (0, 0)
        assert row["bytes_up"] == 2 * 3 * BYTES
        assert row["bytes_down"] == 2 * 3 * 4 * BYTES  # w, the slope and two numbers of the head, twice
        assert (row["forward_passes"], row["backward_passes"]) == (1 + 3, 1 + 3)
    # after its local steps everybody is at 3/4 of 5.125: sum_i a_i (w - c_i)^2 / 2
    w = 5.125 * 3 / 4
    expected = sum(n / 8 * (w - c) ** 2 / 2 for c, n in GOALS.values())
    assert run.history[0]["loss"] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("missing", ["zero", "renormalise"])
def test_two_exchanges_with_some_clients_and_lost_replies(missing: str) -> None:
    """Client i is lost in both exchanges of a round or in none: d_i = -3/4 of the slope, whoever it is."""
    run = train(TwoExchanges(), rounds=12, participation=2, dropout=0.4, missing=missing, seed=1)
    network, w, lost = Network(dropout=0.4), 0.0, []
    for t in range(1, 13):
        members = cohort(pflego.Fixed(2), range(3), seed=1, number=t)
        there = [
            i for i in members if network.delivers(samples=NS[i], passes=2, client=NAMES[i], number=t, seed=1)
        ]
        lost.append(2 - len(there))
        total = sum(NS[i] for i in (there if missing == "renormalise" else members))
        weights = {i: NS[i] / total for i in there}
        slope = sum(weight * (w - CS[i]) for i, weight in weights.items())
        w -= 0.75 * slope * sum(weights.values())
    assert set(lost) == {0, 1, 2}
    assert [row["missing"] for row in run.history] == lost
    assert w_of(run) == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("algorithm", [TwoExchanges(), Answering()], ids=lambda a: a.name)
def test_such_runs_resume_exactly_and_open_again(algorithm: Scalar, tmp_path: Path) -> None:
    whole = train(algorithm, rounds=6, participation=2)
    with pytest.raises(KeyboardInterrupt):
        train(algorithm, rounds=6, participation=2, out=tmp_path, callbacks=[StopAfter(3)])
    assert_identical(train(algorithm, rounds=6, participation=2, out=tmp_path, resume=True), whole)
    opened = pflego.open_run(tmp_path, federation=scalar_federation(), model=scalar_model(), trust=True)
    assert opened.algorithm == algorithm  # found again by module:Class
    assert_identical(opened, whole)


def test_answers_by_hand() -> None:
    """Round 1: a is told 10 and b 6, so w = 1/8 5 + 3/8 3 = 1.75. Round 2: 20 and 9.5."""
    first, second = train(Answering(), rounds=1), train(Answering(), rounds=2)
    assert w_of(first) == pytest.approx(1.75, rel=1e-15)
    assert [float(first.states[name]["goal"]) for name in NAMES] == [10, 6, 0]
    expected = 1.75 + 1 / 8 * (20 - 1.75) / 2 + 3 / 8 * (9.5 - 1.75) / 2
    assert w_of(second) == pytest.approx(expected, rel=1e-15)
    assert [float(second.states[name]["goal"]) for name in NAMES] == [20, 9.5, 1.75]
    for row in second.history:
        assert row["bytes_down"] == 3 * 3 * BYTES + 2 * BYTES
        assert row["bytes_up"] == 3 * BYTES
    assert second.shared.keys() == {"weight", "head"}  # an answer is nobody else's


@pytest.mark.parametrize("algorithm", [Totalling(), TotallingUnbiased()], ids=lambda a: a.name)
@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("who", [pflego.Fixed(2), pflego.Binomial(0.6)], ids=str)
def test_the_server_can_add_up_by_importance(algorithm: Scalar, weighting: str, who: Participation) -> None:
    """sum_i a_i c_i over the participants, whether the method's weights sum to one or estimate everybody's sum."""
    run = train(algorithm, rounds=5, participation=who, weighting=weighting, seed=2)
    members = [i for t in range(1, 6) for i in cohort(who, range(3), seed=2, number=t)]
    shares = [n / 8 for n in NS] if weighting == "samples" else [1 / 3] * 3
    assert w_of(run) == pytest.approx(sum(shares[i] * CS[i] for i in members), rel=1e-12)


def test_the_cost_of_a_round_has_all_its_exchanges_and_answers() -> None:
    run = train(TwoExchanges(), rounds=2)
    cost = run.cost("b")
    assert (cost.forward_passes, cost.backward_passes, cost.samples) == (4, 4, 3)
    assert (cost.bytes_down, cost.bytes_up) == (2 * 4 * BYTES, 2 * BYTES)
    assert run.states["b"]["visits"].item() == 4
    answered = train(Answering(), rounds=1)
    assert [answered.cost(name).bytes_down for name in NAMES] == [4 * BYTES, 4 * BYTES, 3 * BYTES]
    assert w_of(answered) == pytest.approx(1.75, rel=1e-15)


def test_a_report_of_such_runs_can_be_written(tmp_path: Path) -> None:
    for algorithm in (TwoExchanges(), Answering()):
        page = train(algorithm, rounds=2).report(tmp_path / f"{algorithm.name}.html", alone=True)
        assert type(algorithm).__name__ in page.read_text()


def test_if_nobody_answers_the_server_does_not_step() -> None:
    with pytest.warns(NothingLearnedWarning):
        run = train(TwoExchanges(), rounds=2, deadline=1e-9)
    assert w_of(run) == 0
    assert torch.equal(run.shared["slope"], torch.zeros(1, 1, dtype=torch.float64))
    assert [row["missing"] for row in run.history] == [3, 3]
    assert [row["bytes_up"] for row in run.history] == [0, 0]
