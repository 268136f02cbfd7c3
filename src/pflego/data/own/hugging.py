"""Data sets of Hugging Face's library, by what they offer: the library itself is not needed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from pflego.data.own.layout import for_test, is_split
from pflego.data.own.tables import Piece, Table, check_installed, join, without
from pflego.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class Dataset(Protocol):
    """What is asked of one: its features, and its rows as an arrow table."""

    features: Mapping[str, object]

    def with_format(self, kind: str) -> Any:
        """Give it in a format, such as arrow."""
        ...

    def __len__(self) -> int: ...


Datasets: TypeAlias = Dataset | Mapping[str, Dataset]


def is_dataset(data: object) -> TypeGuard[Datasets]:
    """Tell whether this is a data set, or several of them by name, such as train and test."""
    return isinstance(data, Dataset) or (
        isinstance(data, Mapping)
        and len(data) > 0
        and all(isinstance(part, Dataset) for part in data.values())
    )


def table(data: Datasets, drop: Sequence[str]) -> Table:
    """Turn a data set into a table, or its parts train and test into one. The names of classes are kept."""
    check_installed()
    parts = dict(data) if isinstance(data, Mapping) else {"the data set": data}
    if len(parts) > 1 and not is_split(list(parts), "the data set"):
        raise DataError(
            f"the data set has the parts {', '.join(parts)}: give one, or {{'train': ..., 'test': ...}}"
        )
    features = next(iter(parts.values())).features
    kept = without(drop, list(features), "the data set")
    names = {column: list(own) for column, feature in features.items() if (own := _class_names(feature))}
    rows = {part: _named(own.with_format("arrow")[:].select(kept), names) for part, own in parts.items()}
    said = any(for_test(part) for part in parts)
    pieces = [Piece(part, own.num_rows, test=for_test(part) if said else None) for part, own in rows.items()]
    return Table(join(list(rows.values()), "the data set"), pieces, names)


def _class_names(feature: object) -> Sequence[str]:
    """Name the classes that a feature's numbers stand for; none of other features."""
    return getattr(feature, "names", ()) if hasattr(feature, "int2str") else ()


def _named(rows: pa.Table, names: Mapping[str, Sequence[str]]) -> pa.Table:
    """Put the names of classes in the place of their numbers; a number without a name, such as -1, is a gap."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column, own in names.items():
        if column in rows.column_names:
            numbers = rows.column(column)
            known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(own)))
            texts = pa.array(own).take(pc.if_else(known, numbers, None).combine_chunks())
            rows = rows.set_column(rows.column_names.index(column), column, pa.chunked_array([texts]))
    return rows
