from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import pflego
from pflego.report.words import Metric, comparison_headline, headline, names
from pflego.runs.summary import Summary
from tests.support.reported import run

ACCURACY = Metric.of(pflego.Classification())
RMSE = Metric.of(pflego.Regression())
CAME_TO = Summary(
    "pflego",
    20,
    30,
    "accuracy",
    True,
    0.95821,
    None,
    0.94,
    None,
    0.05,
    0.82,
    0.03,
    0.97,
    0.04,
    1,
    1,
    5e6,
    5e6,
    0.1,
    3.0,
)


def test_a_gain_is_positive_where_it_is_better() -> None:
    assert ACCURACY.gain(97.222, 94.444) == 2.778
    assert RMSE.gain(1.25, 1.5) == 0.25
    assert RMSE.gain(1.5, 1.25) == -0.25
    assert ACCURACY.gain(0.1 + 0.2, 0.3) == 0.0
    assert ACCURACY.gain(None, 1.0) is None


def test_what_is_no_number_is_not_shown() -> None:
    assert ACCURACY.shown(0.97222222) == 97.222
    assert ACCURACY.shown(None) is None
    assert RMSE.shown(float("inf")) is None
    assert ACCURACY.text(None) == "–"


def test_a_headline_says_what_came_out() -> None:
    assert headline("PFLEGO", CAME_TO, ACCURACY, [1.0, 2.0, 0.0, -3.0, None]) == (
        "After 30 rounds PFLEGO gets 95.8\N{NO-BREAK SPACE}% of its clients’ test samples right. "
        "Of 4 clients, 2 do better than they would alone, 1 as well and 1 worse."
    )
    assert headline("PFLEGO", CAME_TO, ACCURACY, []) == (
        "After 30 rounds PFLEGO gets 95.8\N{NO-BREAK SPACE}% of its clients’ test samples right."
    )
    one = replace(CAME_TO, clients=1, rounds=1, everyone=54.321)
    assert headline("Ditto", one, RMSE, [-1.0]) == (
        "After 1 round Ditto predicts its one client’s test targets with an rmse of 54.3. "
        "It does worse than it would alone."
    )


def test_a_headline_does_not_claim_what_is_not_known() -> None:
    unknown = replace(CAME_TO, everyone=None)
    assert headline("PFLEGO", unknown, ACCURACY, []) == (
        "PFLEGO trained 20 clients for 30 rounds, to a training loss of 0.0400. "
        "How good the models are on test data is not known."
    )
    assert "loss" not in headline("PFLEGO", replace(unknown, loss=None), ACCURACY, [])


def test_the_headline_of_several_runs_names_the_best() -> None:
    worse = replace(CAME_TO, everyone=0.94821)
    figures: list[list[float | None]] = [[90.0, 95.0, None], [92.0, 95.0, 1.0]]
    assert comparison_headline(["A", "B"], [worse, CAME_TO], ACCURACY, figures) == (
        "B does best, with 95.8\N{NO-BREAK SPACE}% for everyone, 1.0 points ahead of A. "
        "Of 2 clients, 1 does better than with A and 1 as well."
    )
    assert comparison_headline(
        ["A", "B"], [replace(CAME_TO, everyone=2.5), replace(CAME_TO, everyone=2.0)], RMSE, None
    ) == ("B does best, with 2.00 for everyone, 0.50 ahead of A. The runs do not have the same clients.")
    assert "A and B do equally well" in comparison_headline(["A", "B"], [CAME_TO, CAME_TO], ACCURACY, None)
    assert comparison_headline(["A", "B"], [CAME_TO, replace(CAME_TO, everyone=None)], ACCURACY, None) == (
        "2 runs side by side."
    )


def test_several_runs_are_ranked_adapted_where_all_of_them_have_that_figure() -> None:
    kept = replace(CAME_TO, everyone=0.94, everyone_adapted=0.95)
    shared = replace(CAME_TO, everyone=0.75, everyone_adapted=0.97)
    figures: list[list[float | None]] = [[94.0, 95.0], [75.0, 76.0]]
    assert comparison_headline(["A", "B"], [kept, shared], ACCURACY, figures) == (
        "B does best, with 97.0\N{NO-BREAK SPACE}% for everyone adapted, 2.0 points ahead of A."
    )
    unknown = replace(shared, everyone_adapted=None)
    assert comparison_headline(["A", "B"], [kept, unknown], ACCURACY, None).startswith("A does best")
    assert headline("A", kept, ACCURACY, []).endswith(
        "After each client’s local steps it is 95.0\N{NO-BREAK SPACE}%."
    )


def test_runs_of_one_method_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    few, many = run(pflego.PFLEGO(steps=2), rounds=1), run(pflego.PFLEGO(steps=3), rounds=1)
    average = run(pflego.FedAvg(steps=2), rounds=1)
    assert names([few, average, many]) == ["PFLEGO, steps 2", "FedAvg", "PFLEGO, steps 3"]
    assert names([few, few]) == ["PFLEGO, run 1", "PFLEGO, run 2"]
    kept = run(pflego.PFLEGO(steps=2), rounds=1, out=tmp_path / "x")
    assert names([kept, kept]) == [f"PFLEGO, in {tmp_path / 'x'} ({number})" for number in (1, 2)]


def test_whatever_changes_figures_tells_runs_apart_and_where_they_are_does_not(tmp_path: Path) -> None:
    here, there = (run(rounds=1, out=tmp_path / name) for name in ("here", "there"))
    assert names([here, there]) == [f"PFLEGO, in {tmp_path / name}" for name in ("here", "there")]
    longer = run(rounds=2, participation=3)
    assert names([here, longer]) == [
        "PFLEGO, rounds 1, participation 2",
        "PFLEGO, rounds 2, participation 3",
    ]
    never = run(rounds=1, evaluate_every=None)
    assert names([never, here]) == ["PFLEGO, evaluate_every None", "PFLEGO, evaluate_every 2"]


@pytest.mark.parametrize("figure", [0.0, 1e-7, 123456.0])
def test_any_figure_has_words(figure: float) -> None:
    assert float(RMSE.text(figure).replace(",", "")) == pytest.approx(figure, rel=0.01)
