"""Pictures become what a network was trained on, or are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pflego.errors import ModelError
from pflego.models.networks.pictures import Pictures, check_pictures

MEAN, DEVIATION = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def test_grey_is_the_same_in_all_colours_and_normalised() -> None:
    x = np.random.default_rng(0).random((2, 5, 4))
    found = Pictures(5, 4, MEAN, DEVIATION).double()(torch.from_numpy(x))
    mean, deviation = (np.array(v, np.float32).reshape(3, 1, 1) for v in (MEAN, DEVIATION))
    wanted = (np.stack([x] * 3, axis=1) - mean) / deviation
    assert np.allclose(found.numpy(), wanted, rtol=0, atol=1e-12)


def test_colours_come_first() -> None:
    x = torch.rand(2, 5, 4, 3)
    found = Pictures(5, 4, (0, 0, 0), (1, 1, 1))(x)
    assert torch.equal(found, x.permute(0, 3, 1, 2))


def test_pictures_are_resized_and_a_smaller_one_is_the_mean_of_what_it_was() -> None:
    x = torch.rand(2, 8, 8, 3, dtype=torch.float64)
    found = Pictures(16, 12, (0, 0, 0), (1, 1, 1)).double()(x)
    assert found.shape == (2, 3, 16, 12)
    even = Pictures(4, 4, (0, 0, 0), (1, 1, 1)).double()(torch.full((1, 8, 8), 0.5, dtype=torch.float64))
    assert torch.allclose(even, torch.full_like(even, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(64,), (8, 8, 2), (8, 8, 4), (2, 8, 8, 3)])
def test_other_samples_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=str(shape[0])) as refused:
        check_pictures("some", shape)
    assert "\n" not in str(refused.value)
