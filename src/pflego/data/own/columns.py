"""Columns of an arrow table as arrays: numbers, words, and where values are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pflego.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

DATES = "holds dates or times"
TRUTH = ("false", "true")  # how a column of yes and no is written


@dataclass(frozen=True)
class Words:
    """Texts as numbers: positions in `names`, which are sorted; -1 where a value is missing."""

    codes: Indices
    names: tuple[str, ...]

    def among(self, names: tuple[str, ...]) -> Indices:
        """Map values to positions in other names; -1 where a value is missing or not one of them.

        True, TRUE and true are one, and so are 3 and 3.0 where only one of them is there.
        """
        fold = str.lower if set(names) <= set(TRUTH) else _without_fraction
        place = {fold(name): position for position, name in enumerate(names)}
        place |= {name: position for position, name in enumerate(names)}
        found = (place.get(name, place.get(fold(name), -1)) for name in self.names)
        return np.array([*found, -1])[self.codes]


def _without_fraction(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return whole if whole.lstrip("-").isdecimal() and not fraction.strip("0") else text


def kind_of(column: pa.ChunkedArray) -> Literal["number", "category", "image"] | str:
    """Say what a column can be for a model, or in words, with a blank, why it can be nothing."""
    from pyarrow import types

    kind = _plain_type(column.type)
    if types.is_null(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_boolean(kind) or is_text(kind):
        return "category"
    if types.is_struct(kind) and {"bytes", "path"} <= {kind.field(i).name for i in range(kind.num_fields)}:
        return "image"
    if is_list(kind):
        leaf = kind
        while is_list(leaf):
            leaf = leaf.value_type
        return "number" if types.is_integer(leaf) or types.is_floating(leaf) else f"holds lists of {leaf}"
    if types.is_temporal(kind):
        return DATES
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "is not UTF-8; save the file in this encoding"
    return f"holds values of type {kind}"


def coarse_type(column: pa.ChunkedArray) -> str | None:
    """Tell numbers, texts, truth values and others apart; None for a column without any value."""
    from pyarrow import types

    kind = _plain_type(column.type)
    if types.is_null(kind):
        return None
    if is_text(kind) or types.is_boolean(kind):
        return "text" if is_text(kind) else "truth"
    return "number" if kind_of(column) == "number" else str(kind)


def missing(column: pa.ChunkedArray) -> Mask:
    """Mask the rows that have no value: nothing, NaN, a blank text."""
    import pyarrow.compute as pc
    from pyarrow import types

    column = plain(column)
    mask = pc.is_null(column, nan_is_null=True) if types.is_floating(column.type) else pc.is_null(column)
    if is_text(column.type):
        mask = pc.or_(mask, pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), False))
    absent = np.array(mask, dtype=bool)
    if is_list(column.type):
        inside = missing(pc.list_flatten(column))
        absent[np.asarray(pc.list_parent_indices(column))[inside]] = True
    return absent


def numbers(column: pa.ChunkedArray) -> Floats:
    """Turn a column into numbers, (rows, width), NaN where one is missing; lists must be of one length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(column)
    if not is_list(column.type):
        values = np.asarray(pc.cast(column, pa.float64(), safe=False), dtype=np.float64)
        return values.reshape(-1, 1)
    if len(pc.unique(pc.drop_null(pc.list_value_length(column)))) > 1:
        raise DataError("holds lists of different lengths")
    there = ~np.asarray(pc.is_null(column), dtype=bool)
    inside = numbers(pc.list_flatten(column))
    rows = np.full((len(column), inside.size // max(1, int(there.sum()))), np.nan)
    rows[there] = inside.reshape(-1, rows.shape[1])
    return rows


def is_fractional(column: pa.ChunkedArray) -> bool:
    """Tell whether numbers are of a type that has fractions."""
    from pyarrow import types

    kind = _plain_type(column.type)
    return bool(types.is_floating(kind) or types.is_decimal(kind))


def integers(column: pa.ChunkedArray) -> Indices | None:
    """Read a column of whole numbers exactly, none missing; None if it holds fractions or no numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(column)
    if pa.types.is_integer(column.type):
        return np.asarray(column).astype(np.int64)
    if not is_fractional(column):
        return None
    values = np.asarray(pc.cast(column, pa.float64(), safe=False))
    return values.astype(np.int64) if (values == np.round(values)).all() else None


def words(column: pa.ChunkedArray) -> Words:
    """Map a column of texts or truth values to positions in its sorted values; outer blanks do not count."""
    import pyarrow.compute as pc

    coded = _coded(column)
    found = [text.strip() for text in coded.dictionary.to_pylist()]
    names = sorted({text for text in found if text})
    place = {name: position for position, name in enumerate(names)}
    lookup = np.array([*(place.get(text, -1) for text in found), -1])
    return Words(lookup[np.asarray(pc.fill_null(coded.indices, -1))], tuple(names))


def alike(column: pa.ChunkedArray) -> tuple[str, str] | None:
    """Find two texts of a column that differ in outer blanks alone."""
    found: dict[str, str] = {}
    for text in _coded(column).dictionary.to_pylist():
        if text != found.setdefault(text.strip(), text) and text.strip():
            return found[text.strip()], text
    return None


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Number the texts of a column, as they are written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(column)
    if not is_text(column.type):
        column = pc.cast(column, pa.string())
    return column.dictionary_encode().unify_dictionaries().combine_chunks()


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unwrap a column from dictionaries and from types that others have defined."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column.type, pa.ExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return column


def _plain_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are texts."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values of a type are lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
