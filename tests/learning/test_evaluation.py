import pytest

from pflego import Classification, Regression
from pflego.learning.evaluation import Score, pooled, worst_tenth
from pflego.learning.task import Task


@pytest.mark.parametrize(("task", "figure"), [(Classification(), 0.5), (Regression(), 0.5**0.5)])
def test_figures_are_pooled_over_samples_not_over_clients(task: Task, figure: float) -> None:
    scores = [Score(1, 0.0, 1.0), Score(3, 0.0, 1.0), Score(0, None, 0.0)]
    assert pooled(scores, task) == pytest.approx(figure)


def test_no_test_samples_no_figure() -> None:
    assert pooled([Score(0, None, 0.0)], Classification()) is None
    assert Score(0, None, 0.0).value(Regression()) is None


def test_the_worst_tenth_is_the_mean_of_the_worst_clients() -> None:
    figures = [x / 20 for x in range(20)]
    assert worst_tenth(figures, higher_is_better=True) == pytest.approx((0 + 1) / 40)
    assert worst_tenth(figures, higher_is_better=False) == pytest.approx((18 + 19) / 40)
    assert worst_tenth([None, 0.5, 0.25], higher_is_better=True) == 0.25
    assert worst_tenth([None], higher_is_better=True) is None
