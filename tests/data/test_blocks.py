from pathlib import Path

import numpy as np
import pytest

from pflego.data.blocks import BLOCK, Array, Blocks, take


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("order", ["shuffled", "reversed", "some", "repeated", "none"])
def test_rows_of_a_mapped_file_are_picked_in_any_order(tmp_path: Path, dtype: type, order: str) -> None:
    rows = 3 * BLOCK // (7 * 11 * np.dtype(dtype).itemsize) + 5  # three blocks and a few rows
    array: Array = np.random.default_rng(0).integers(256, size=(rows, 7, 11)).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    shuffled = np.random.default_rng(1).permutation(rows)
    wanted = {
        "shuffled": shuffled,
        "reversed": np.arange(rows)[::-1],
        "some": shuffled[:100],
        "repeated": np.concatenate([shuffled[:50], shuffled[:50]]),
        "none": shuffled[:0],
    }[order]
    picked = take(np.load(tmp_path / "a.npy", mmap_mode="r"), wanted)
    assert picked.dtype == dtype
    assert not isinstance(picked, np.memmap)
    assert np.array_equal(picked, array[wanted])


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 9]])
def test_blocks_make_one_array_in_memory_or_on_file(tmp_path: Path, cuts: list[int]) -> None:
    array = np.arange(40).reshape(10, 4)
    blocks = Blocks(array.shape, array.dtype, np.split(array, cuts))
    assert np.array_equal(blocks.array(), array)
    blocks.save(tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.parametrize(
    "array",
    [np.array(["Greek", "Old Church"]), np.zeros((0, 3)), np.array([True]), np.arange(6).reshape(2, 3).T],
)
def test_any_array_can_be_kept(tmp_path: Path, array: Array) -> None:
    Blocks.of(array).save(tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)
