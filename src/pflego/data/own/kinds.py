"""What is said of columns: codes that are categories, texts that have an order, dates. Their values follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from pflego.data.own.columns import is_text, kind_of, missing, plain, words
from pflego.data.own.tables import Table
from pflego.data.problems import listed
from pflego.data.schema import Schema
from pflego.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = r"^(-?[0-9]+)(\.0*)?$"
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class ColumnKinds:
    """Columns that are not what their values look like.

    `category`: each value is a category, numbers too. `ordered`: a column's values in their order, each of which
    becomes its position. `date`: days since 1970-01-01, with a fraction for the time of the day.
    """

    category: Sequence[str] = ()
    ordered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    date: Sequence[str] = ()

    @classmethod
    def parse(
        cls, category: Sequence[str] | None, ordered: Sequence[str] | None, date: Sequence[str] | None
    ) -> ColumnKinds:
        """Read them as settings spell them.

        >>> ColumnKinds.parse(None, ["size=small<medium<large"], None).ordered
        {'size': ('small', 'medium', 'large')}
        """
        kinds = cls(tuple(category or ()), dict(_order(one) for one in ordered or ()), tuple(date or ()))
        names = [*kinds.category, *kinds.ordered, *kinds.date]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"column {twice[0]!r} is said to be two things at once: say one of them")
        return kinds

    @classmethod
    def of_schema(cls, schema: Schema) -> ColumnKinds:
        """Take them from a schema."""
        return cls(
            [feature.name for feature in schema.features if feature.kind == "category"],
            {feature.name: feature.categories for feature in schema.features if feature.kind == "ordered"},
            [feature.name for feature in schema.features if feature.kind == "date"],
        )

    @property
    def texts(self) -> list[str]:
        """The columns whose values are taken as they are written."""
        return [*self.category, *self.ordered]

    def of(self, name: str) -> Literal["ordered", "date"] | None:
        """Say what a column of numbers stands for, if it is no quantity."""
        return "ordered" if name in self.ordered else "date" if name in self.date else None

    def convert(self, table: Table, features: Sequence[str], place: str) -> Table:
        """Make texts of categories, and numbers of what has an order and of dates. Only inputs can be said to be so."""
        data = table.data
        for name in [*self.texts, *self.date]:
            if name not in features:
                raise DataError(
                    f"{place} has no input {name!r} to say this of; its inputs are {listed(features)}"
                )
            position = table.columns.index(name)
            column = data.column(name)
            if name in self.ordered:
                column = self._positions(table, name)
            elif name in self.date:
                column = _days(table, name)
            elif kind_of(column) in ("number", "category"):
                column = _as_texts(column)
            data = data.set_column(position, name, column)
        return replace(table, data=data)

    def _positions(self, table: Table, name: str) -> pa.Array:
        import pyarrow as pa

        found = words(_as_texts(table.data.column(name)))
        codes = found.among(self.ordered[name])
        if (strange := (codes < 0) & (found.codes >= 0)).any():
            row = int(strange.argmax())
            raise DataError(
                f"{table.row(row)}: {found.names[found.codes[row]]!r} in column {name!r} has no place in its order, "
                f"{'<'.join(self.ordered[name])}"
            )
        return pa.array(np.where(codes < 0, np.nan, codes))


def _order(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, order = text.partition("=")
    values = tuple(value.strip() for value in order.split("<"))
    if not name.strip() or len(values) < 2 or not all(values) or len(set(values)) < len(values):
        raise DataError(
            f"ordered must be column=least<...<most, such as size=small<medium<large, not {text!r}"
        )
    return name.strip(), values


def _as_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write codes as texts; where all are whole numbers, without a fraction: 3 for 3.0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(column)
    if not is_text(column.type):
        column = pc.cast(column, pa.string())
    texts = pc.utf8_trim_whitespace(column)
    whole = np.asarray(pc.fill_null(pc.match_substring_regex(texts, _WHOLE), False))
    if (whole | missing(column)).all():
        return pc.replace_substring_regex(texts, _WHOLE, r"\1")
    return column


def _days(table: Table, name: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(table.data.column(name))
    if kind_of(column) == "number" and not missing(column).all():
        raise DataError(f"column {name!r} holds numbers, no dates: leave it out of date")
    holes = missing(column)
    if is_text(column.type):
        column = pc.if_else(pa.array(holes), None, pc.utf8_trim_whitespace(column))
    try:
        zone = getattr(column.type, "tz", None)
        moments = pc.cast(pc.cast(column, pa.timestamp("us", tz=zone)), pa.int64())
    except pa.ArrowException as error:
        raise DataError(
            f"column {name!r} cannot be read as dates, 2024-05-31 or 2024-05-31 12:30: {error}"
        ) from error
    return pa.array(np.where(holes, np.nan, np.asarray(pc.fill_null(moments, 0)) / _DAY))
