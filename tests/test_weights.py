from math import inf, nan

import numpy as np
import pytest
import torch

from pflego.weights import Weights, is_finite, minus, nbytes, norm, plus, step, to, weighted_sum


def weights(*numbers: float) -> Weights:
    return {"a": torch.tensor(numbers), "b": torch.tensor(numbers[0])}


def test_bytes_are_those_of_all_tensors() -> None:
    assert nbytes({}) == 0
    tensors = {"a": torch.zeros(3, 2), "b": torch.zeros((), dtype=torch.float64), "c": torch.zeros(0)}
    assert nbytes(tensors) == 3 * 2 * 4 + 8


def test_a_weighted_sum_adds_up_and_leaves_its_terms_alone() -> None:
    one, two = weights(1.0, 2.0), weights(10.0, 20.0)
    total = weighted_sum([(0.5, one), (2.0, two)])
    assert {name: tensor.tolist() for name, tensor in total.items()} == {"a": [20.5, 41.0], "b": 20.5}
    assert one["a"].tolist() == [1.0, 2.0]
    assert two["a"].tolist() == [10.0, 20.0]


def test_a_sum_of_nothing_is_nothing() -> None:
    assert weighted_sum([]) == {}


def test_a_step_goes_down_the_gradient_and_leaves_the_rest() -> None:
    before = weights(1.0, 2.0)
    after = step(before, {"a": torch.tensor([4.0, -4.0])}, 0.25)
    assert after["a"].tolist() == [0.0, 3.0]
    assert float(after["b"]) == 1.0
    assert before["a"].tolist() == [1.0, 2.0]


def test_moving_moves_every_tensor() -> None:
    moved = to(weights(1.0), torch.device("meta"))
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}


def test_a_difference_that_is_added_again_gives_what_was_there() -> None:
    new, old = weights(1.5, 2.0), weights(1.0, -2.0)
    moved = minus(new, old)
    assert {name: tensor.tolist() for name, tensor in moved.items()} == {"a": [0.5, 4.0], "b": 0.5}
    assert {n: t.tolist() for n, t in plus(old, moved).items()} == {n: t.tolist() for n, t in new.items()}
    assert old["a"].tolist() == [1.0, -2.0]


def test_a_sum_keeps_the_type_of_what_it_is_added_to() -> None:
    total = plus({"a": torch.ones(2)}, {"a": torch.ones(2, dtype=torch.float64)})
    assert total["a"].dtype == torch.float32


def test_the_norm_is_that_of_all_numbers_together() -> None:
    rng = np.random.default_rng(0)
    parts = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=7), "c": np.array(2.0)}
    wanted = np.linalg.norm(np.concatenate([part.ravel() for part in parts.values()]))
    assert norm({name: torch.from_numpy(part) for name, part in parts.items()}) == pytest.approx(
        wanted, rel=1e-14
    )
    assert norm({}) == 0.0
    assert norm({"a": torch.full((4,), 3e38)}) == pytest.approx(6e38)  # beyond float32


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0], True),
        ([], True),
        ([3e38, 3e38], True),
        ([nan], False),
        ([inf, -inf], False),
        ([1.0, inf], False),
    ],
)
def test_an_infinity_or_a_nan_is_found_anywhere(numbers: list[float], finite: bool) -> None:
    assert is_finite({"a": torch.ones(3), "b": torch.tensor(numbers)}) == finite
