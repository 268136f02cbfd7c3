import torch

from pflego.weights import Weights, nbytes, step, to, weighted_sum


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
