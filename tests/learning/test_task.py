from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pflego import Classification, Regression
from pflego.learning.task import Task

Matrix = npt.NDArray[np.float64]


def cross_entropy(z: Matrix, t: Matrix) -> float:
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - (z * t).sum(axis=1)))


def half_squares(z: Matrix, t: Matrix) -> float:
    return float(np.mean(((z - t) ** 2).sum(axis=1)) / 2)


def onehot(labels: list[int], classes: int) -> Matrix:
    return np.eye(classes)[labels]


def draw(seed: int, samples: int, outputs: int) -> tuple[Matrix, Matrix, Matrix]:
    """Outputs, and targets of either kind."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(outputs, size=samples).tolist()
    z, numbers = generator.normal(size=(2, samples, outputs))
    return z, onehot(labels, outputs), numbers


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5))
def test_losses_are_the_formulas(seed: int, samples: int, outputs: int) -> None:
    z, classes, numbers = draw(seed, samples, outputs)
    found = Classification().loss(torch.from_numpy(z), torch.from_numpy(classes))
    assert float(found) == pytest.approx(cross_entropy(z, classes), abs=1e-12)
    found = Regression().loss(torch.from_numpy(z), torch.from_numpy(numbers))
    assert float(found) == pytest.approx(half_squares(z, numbers), abs=1e-12)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 4))
def test_residuals_are_n_times_the_slope_of_the_loss(seed: int, samples: int, outputs: int) -> None:
    z, classes, numbers = draw(seed, samples, outputs)
    h = 1e-5
    cases: list[tuple[Task, Callable[[Matrix, Matrix], float], Matrix]] = [
        (Classification(), cross_entropy, classes),
        (Regression(), half_squares, numbers),
    ]
    for task, formula, targets in cases:
        slope = np.zeros_like(z)
        for place in np.ndindex(z.shape):
            nudge = np.zeros_like(z)
            nudge[place] = h
            slope[place] = (formula(z + nudge, targets) - formula(z - nudge, targets)) / (2 * h)
        residual = task.residual(torch.from_numpy(z), torch.from_numpy(targets))
        np.testing.assert_allclose(residual.numpy(), samples * slope, atol=1e-8)


def test_residual_leaves_its_arguments_alone() -> None:
    for task in (Classification(), Regression()):
        z, targets = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])
        task.residual(z, targets)
        assert z.tolist() == [[1.0, 2.0]]
        assert targets.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_logits_stay_finite(dtype: torch.dtype, size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [size, -size, 0.0]], dtype=dtype)
    right, wrong = torch.eye(3, dtype=dtype)[[0, 0]], torch.eye(3, dtype=dtype)[[1, 1]]
    task = Classification()
    assert float(task.loss(z, right)) == 0
    assert float(task.loss(z, wrong)) == pytest.approx(2 * size, rel=1e-6)
    assert task.residual(z, wrong).tolist() == [[1, -1, 0], [1, -1, 0]]


def test_targets_have_a_column_a_class() -> None:
    targets = Classification().targets(torch.tensor([7, 3, 5]), torch.tensor([3, 7]), torch.float64)
    assert targets.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert targets.dtype == torch.float64


@pytest.mark.parametrize("y", [torch.tensor([1.5, 2.5]), torch.tensor([[1.5], [2.5]])])
def test_regression_targets_have_a_column_an_output(y: Tensor) -> None:
    targets = Regression().targets(y, torch.empty(0), torch.float64)
    assert targets.tolist() == [[1.5], [2.5]]
    assert targets.dtype == torch.float64


def test_an_unknown_class_is_an_error_without_a_loss() -> None:
    task = Classification()
    z = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    targets = task.targets(torch.tensor([3, 5]), torch.tensor([3, 7]), torch.float64)
    assert task.known(targets)
    assert task.scores(z, targets).tolist() == [1, 0]
    assert float(task.loss(z, targets)) == pytest.approx(np.log(1 + np.exp(-2)))


def test_where_every_class_is_unknown_there_is_no_loss() -> None:
    task = Classification()
    targets = task.targets(torch.tensor([5, 6]), torch.tensor([3, 7]), torch.float32)
    assert not task.known(targets)
    assert task.scores(torch.zeros(2, 2), targets).tolist() == [0, 0]


def test_a_regression_always_has_a_loss() -> None:
    assert Regression().known(torch.zeros(2, 1))


def test_scores_and_figures_of_a_regression() -> None:
    task = Regression()
    scores = task.scores(torch.tensor([[3.0, 0.0], [0.0, 5.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert scores.tolist() == [4.5, 8.5]
    assert task.metric_value(6.25) == 2.5
    assert not task.higher_is_better


def test_the_figure_of_a_classification_is_its_mean_score() -> None:
    assert Classification().metric_value(0.75) == 0.75
    assert Classification().higher_is_better
