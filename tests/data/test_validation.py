from __future__ import annotations

import numpy as np
import pytest
import torch

import pflego
from pflego.data.validation import hold_out


def test_the_test_data_are_not_in_it_and_nothing_is_lost() -> None:
    whole = pflego.load("digits", clients=10)
    part = hold_out(whole, share=0.2, seed=3)
    for client, held in zip(whole, part, strict=True):
        rows = {tuple(row) for row in torch.cat([held.x_train, held.x_test]).tolist()}
        assert rows == {tuple(row) for row in client.x_train.tolist()}
        assert len(held.x_train) + len(held.x_test) == len(client.x_train)
        assert torch.equal(held.classes, client.classes)
        assert 0.1 * len(client.x_train) < len(held.x_test) < 0.21 * len(client.x_train)


def test_it_is_a_function_of_the_seed() -> None:
    whole = pflego.load("diabetes", clients=5)
    one, same, other = (hold_out(whole, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one[0].x_test, same[0].x_test)
    assert not torch.equal(one[0].x_test, other[0].x_test)


def test_a_class_of_one_sample_stays_in_training() -> None:
    fed = pflego.Federation([pflego.Client(0, np.zeros((11, 2), np.float32), np.array([0] * 10 + [1]))])
    assert hold_out(fed, share=0.9)[0].classes.tolist() == [0, 1]
    with pytest.raises(pflego.UserError, match="between 0 and 1"):
        hold_out(fed, share=1.0)


def test_samples_can_be_held_out_alike_whatever_their_class() -> None:
    labels = [np.array([4]), np.array([0, 1]), np.arange(10)]
    fed = pflego.Federation(
        [pflego.Client(k, np.zeros((len(y), 2), np.float32), y) for k, y in enumerate(labels)]
    )
    held = hold_out(fed, share=0.3, by_class=False)
    assert [len(client.x_test) for client in held] == [0, 1, 3]
    for client, y in zip(held, labels, strict=True):
        assert sorted(torch.cat([client.y_train, client.y_test]).tolist()) == y.tolist()
