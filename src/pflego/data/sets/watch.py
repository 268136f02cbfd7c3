"""Ten people with a smart watch at seven shoulder exercises: series of accelerations and turns, cut in windows.

The official file is watch_dataset.npy of the package seglearn. One file holds all of it in a format of our own, too:
watch.npz, `series` (moments, 6) int16 to be multiplied by `scale` (6,), one series after another; `lengths`, `label`,
`subject` and `side`, one per series.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array, Blocks
from pflego.data.dataset import DataSet, Preparation
from pflego.data.sets.pickled import load_arrays
from pflego.data.source import Source, reading
from pflego.errors import DataError

PACKED = ["series", "scale", "lengths", "label", "subject", "side"]

_ARCHIVE, _MEMBER = "seglearn-1.2.5.tar.gz", "watch_dataset.npy"
_LARGEST = 1 << 26  # bytes of the official file, which has 18 million
_CHANNELS = 6
_STEPS = 32_000  # in which 16 bits count to either side of 0
_WINDOW = 100  # moments: 2 s
_TEST_SHARE = 0.2


def find(folder: Path) -> Source | None:
    """Find the official file in a folder, or the package that has it."""
    for name, read in ((_MEMBER, _read_plain), (_ARCHIVE, _read_archive)):
        if (file := folder / name).is_file():
            return Source([file], partial(read, file))
    return None


def unpack(arrays: Mapping[str, Array]) -> Iterator[tuple[str, Blocks]]:
    """Give the arrays of the packed format, checked."""
    series, lengths = arrays["series"], np.asarray(arrays["lengths"])
    if series.dtype != np.int16 or series.shape[1:] != (_CHANNELS,) or lengths.sum() != len(series):
        raise ValueError(
            f"series are {series.dtype} of shape {series.shape} and {lengths.sum()} moments long in all"
        )
    for key in PACKED:
        if key not in ("series", "scale") and arrays[key].shape != lengths.shape:
            raise ValueError(f"{key} has shape {arrays[key].shape}, there are {len(lengths)} series")
        yield key, Blocks.of(np.asarray(arrays[key]))


def divide(arrays: Mapping[str, Array], wanted: Preparation) -> DataSet:
    """Cut every series in windows: its beginning for training, its end for testing, one window between them unused.

    Training windows overlap by half; test windows do not overlap, so that each counts for itself.
    """
    wanted.refuse_others("watch", ["window", "test_share"])
    window = _WINDOW if wanted.window is None else wanted.window
    share = _TEST_SHARE if wanted.test_share is None else wanted.test_share
    series = np.asarray(arrays["series"], np.float32) * np.asarray(arrays["scale"], np.float32)
    lengths = np.asarray(arrays["lengths"], np.int64)
    begins = np.cumsum(lengths) - lengths
    kept: dict[bool, list[tuple[int, npt.NDArray[np.int64]]]] = {False: [], True: []}
    for number, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        tested = int(length * share)
        trained = length - tested - (window if tested else 0)
        train = starts(trained, window, max(1, window // 2))
        test = length - tested + starts(tested, window, window)
        if len(train) == 0 or (tested and len(test) == 0):
            raise DataError(
                f"window={window} is too long for a series of {length} moments, of which {tested} are for testing: "
                f"take a shorter one"
            )
        kept[False].append((number, begin + train))
        kept[True].append((number, begin + test))
    person, side = np.asarray(arrays["subject"], np.int64), np.asarray(arrays["side"], np.int64)
    sides = np.array([f"{who}-{arm}" for who, arm in zip(person, side, strict=True)])
    parts = []
    for test in (False, True):
        first = np.concatenate([begin for _, begin in kept[test]])
        whose = np.concatenate([np.full(len(begin), number) for number, begin in kept[test]])
        x = series[first[:, None] + np.arange(window)]  # (windows, moments, channels)
        parts.append((x, np.asarray(arrays["label"], np.int64)[whose], person[whose], sides[whose]))
    (x_train, y_train, *train_columns), (x_test, y_test, *test_columns) = parts
    return DataSet(
        "watch",
        x_train,
        y_train,
        x_test,
        y_test,
        columns=dict(
            zip(["person", "side"], zip(train_columns, test_columns, strict=True), strict=True),
        ),
        clients="person",
        prepared=wanted.given(window=window),
    )


def starts(length: int, window: int, step: int) -> npt.NDArray[np.int64]:
    """Give where windows start that fit into a length.

    >>> starts(10, 4, 2).tolist()
    [0, 2, 4, 6]
    """
    return np.arange(0, length - window + 1, step, dtype=np.int64)


def _read_plain(file: Path) -> Iterator[tuple[str, Blocks]]:
    with reading(file):
        yield from unpack(_packed(file.read_bytes()))


def _read_archive(archive: Path) -> Iterator[tuple[str, Blocks]]:
    with reading(archive), tarfile.open(archive) as members:
        for member in members:
            if Path(member.name).name == _MEMBER and (content := members.extractfile(member)):
                yield from unpack(_packed(content.read(_LARGEST + 1)))
                return
        raise ValueError(f"it has no {_MEMBER}")


def _packed(content: bytes) -> dict[str, Array]:
    """Read the official file, one pickled dictionary, and round its numbers to 16 bits, as in the packed format."""
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST:,} bytes")
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    found = load_arrays(file) if dtype.hasobject and shape == () else None
    facts = found.item() if isinstance(found, np.ndarray) and found.shape == () else found
    if not isinstance(facts, dict):
        raise ValueError("it holds no dictionary of series")
    values = [np.asarray(one, np.float64) for one in facts["X"]]
    series = np.concatenate(values)
    scale = np.abs(series).max(axis=0) / _STEPS
    return {
        "series": np.round(series / scale).astype(np.int16),
        "scale": scale.astype(np.float32),
        "lengths": np.array([len(one) for one in values]),
        "label": np.asarray(facts["y"], np.int64),
        "subject": np.asarray(facts["subject"], np.int64),
        "side": np.asarray(facts["side"], np.int64),
    }
