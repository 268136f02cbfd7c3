"""What each column of a table is for, and what is wrong with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pflego.data.own.columns import (
    DATES,
    Floats,
    Mask,
    is_fractional,
    is_list,
    kind_of,
    missing,
    numbers,
    words,
)
from pflego.data.own.layout import is_split
from pflego.data.own.tables import Table
from pflego.data.problems import listed, warn
from pflego.data.schema import Feature, Schema
from pflego.errors import DataError, UserError

LABELS = ["label", "target", "y", "class"]  # what a column of labels is called, if nothing is said
SPLIT = "split"  # what a column of train and test is called

_MOST_CATEGORIES = 1000
_FEW = 20  # values or rows at which nothing is suspected
_SHOWN = 12  # columns in a message


@dataclass(frozen=True)
class Roles:
    """What each column is for."""

    client: str | None
    label: str
    split: str | None
    features: Sequence[str]
    weight: str | None = None

    @property
    def others(self) -> list[str]:
        """The columns in use that are no inputs: a value that is missing there cannot be filled."""
        return [name for name in (self.label, self.client, self.split, self.weight) if name is not None]


def roles_of(
    table: Table,
    place: str,
    *,
    label: str | None,
    client: str | None,
    weight: str | None = None,
    known: Schema | None,
) -> Roles:
    """Find out what each column is for, from what was said, a schema, or its name."""
    columns = table.columns
    if known is not None and not known.features:
        raise DataError(f"{place} is a table, but the schema is one of {known.kind}")
    label = label or (known.label if known else None) or _usual_label(columns, place)
    if client is None and known is not None and known.client in columns:
        client = known.client
    if known is not None and known.weight is not None:
        weight = known.weight
        if weight not in columns:
            raise DataError(
                f"{place} has no column {weight!r}, the weights that the schema asks for: add it, with 1 in every row "
                f"if all count alike"
            )
    for name in (label, client, weight):
        if name is not None and name not in columns:
            raise DataError(f"{place} has no column {name!r}; it has {listed(columns)}")
    _refuse_two_roles(place, {"labels": label, "clients": client, "weights": weight})
    features = [name for name in columns if name not in (label, client, weight)]
    split = None
    if SPLIT in features and (known is None or SPLIT not in {feature.name for feature in known.features}):
        column = table.data.column(SPLIT)
        if kind_of(column) == "category" and is_split(words(column).names, f"{place}, column {SPLIT!r}"):
            split = SPLIT
            features.remove(SPLIT)
    if known is not None:
        features = _of_schema(features, place, known)
    if not features:
        raise DataError(f"{place} has no column left to learn from; it has {listed(columns)}")
    return Roles(client, label, split, features, weight)


def _refuse_two_roles(place: str, roles: Mapping[str, str | None]) -> None:
    """Refuse a column that is said to be two things."""
    of: dict[str, str] = {}
    for role, name in roles.items():
        if name is not None and (other := of.setdefault(name, role)) != role:
            raise DataError(f"{place}: {name!r} cannot be the column of {other} and of {role} at once")


def unfit(table: Table, features: Sequence[str]) -> list[str]:
    """Say which columns cannot be inputs, and what to do about it; warn of those that look like something else."""
    problems = []
    kinds = {name: kind_of(table.data.column(name)) for name in features}
    pictures = [name for name, kind in kinds.items() if kind == "image"]
    if pictures and len(features) > 1:
        others = [name for name in features if name != pictures[0]]
        problems.append(f"beside the picture {pictures[0]!r} there can be no other input: {drop(others)}")
        return problems
    for name, kind in kinds.items():
        match kind:
            case "number":
                problems += _unfit_number(table, name)
            case "category":
                problems += _unfit_words(table, name)
            case "image":
                pass
            case _:
                said = f"make days of them with date=[{name!r}] (--date {shlex.quote(name)}), or "
                problems.append(f"column {name!r} {kind}: {said if kind == DATES else ''}{drop([name])}")
    return problems


def unfit_weight(table: Table, name: str | None) -> list[str]:
    """Say why a column cannot be weights, which are numbers from 0 on, and where; a missing one is a gap."""
    if name is None:
        return []
    column, wanted = table.data.column(name), "weights are numbers from 0 on"
    kind = kind_of(column)
    if kind == "category":
        found = words(column)
        odd = [code for code, text in enumerate(found.names) if not is_number(text)] or [0]
        row = int(np.isin(found.codes, odd).argmax())
        return [
            f"the weight in {table.row(row)}, column {name!r}, is {found.names[found.codes[row]]!r}: {wanted}; "
            f"correct it, or name another column"
        ]
    if kind != "number" or is_list(column.type):
        return [
            f"column {name!r} {'holds lists' if kind == 'number' else kind}: {wanted}; name another column"
        ]
    values = numbers(column)[:, 0]
    if (wrong := (values < 0) | np.isinf(values)).any():
        row = int(wrong.argmax())
        return [
            f"the weight in {table.row(row)}, column {name!r}, is {values[row]:g}: {wanted}; correct it, or leave "
            f"the row out"
        ]
    return []


def misfit(table: Table, features: Sequence[Feature]) -> list[str]:
    """Say which columns hold other values than a schema has."""
    problems = []
    for feature in features:
        kind = kind_of(table.data.column(feature.name))
        wanted = "number" if feature.kind in ("ordered", "date") else feature.kind
        if kind == wanted or (kind, wanted) == ("number", "category"):
            continue
        odd = ""
        if (kind, wanted) == ("category", "number"):
            found = words(table.data.column(feature.name))
            code = next((code for code, text in enumerate(found.names) if not is_number(text)), 0)
            odd = f", such as {found.names[code]!r} in {table.row(int((found.codes == code).argmax()))}"
            kind = "texts"
        problems.append(f"column {feature.name!r} holds {kind}{odd}, where the schema has a {feature.kind}")
    return problems


def gaps(table: Table, names: Sequence[str]) -> dict[str, Mask]:
    """Map column to the mask of its missing values; only columns that miss any."""
    masks = {name: missing(table.data.column(name)) for name in names}
    return {name: mask for name, mask in masks.items() if mask.any()}


def counted(table: Table, holes: Mapping[str, Mask]) -> str:
    """Say how many values are missing in which columns, and where the first is."""
    words = [
        f"{int(mask.sum())} in {name!r} (first: {table.row(int(mask.argmax()))})"
        for name, mask in list(holes.items())[:_SHOWN]
    ]
    more = [f"and in {len(holes) - _SHOWN} more columns"] if len(holes) > _SHOWN else []
    return ", ".join([*words, *more])


def drop(names: Sequence[str]) -> str:
    """Say how columns are left out."""
    words = shlex.join(word for name in names for word in ("--drop", name))
    return f"leave {'it' if len(names) == 1 else 'them'} out with drop={list(names)!r} ({words})"


def is_number(text: str) -> bool:
    """Tell whether a text is a number, be it with a decimal comma."""
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _usual_label(columns: Sequence[str], place: str) -> str:
    found = [name for name in columns if name.lower() in LABELS]
    if len(found) == 1:
        return found[0]
    why = f"{listed(found)} could all be the labels" if found else f"no column is called {', '.join(LABELS)}"
    hint = ""
    if all(is_number(name) for name in columns):
        hint = " (the first line of a CSV file must name its columns)"
    raise DataError(
        f"{place}: {why}: say which it is with label=... (--label); the columns are {listed(columns)}{hint}"
    )


def _of_schema(features: Sequence[str], place: str, known: Schema) -> list[str]:
    wanted = [feature.name for feature in known.features]
    if absent := [name for name in wanted if name not in features]:
        raise DataError(f"{place} has no column {listed(absent)}, which the schema asks for")
    if others := [name for name in features if name not in wanted]:
        warn(f"{place}: the schema has no column {listed(others)}: not taken as inputs")
    return wanted


def _unfit_number(table: Table, name: str) -> list[str]:
    column = table.data.column(name)
    try:
        values = numbers(column)
    except UserError as error:
        return [f"column {name!r} {error}: {drop([name])}"]
    if is_fractional(column) or is_list(column.type):
        endless = np.isinf(values).any(axis=1)
        return [f"column {name!r} is infinite in {table.row(int(endless.argmax()))}"] if endless.any() else []
    if _counts_rows(values[:, 0]):
        warn(f"column {name!r} numbers the rows, from which nothing can be learned: {drop([name])}")
    return []


def _unfit_words(table: Table, name: str) -> list[str]:
    found = words(table.data.column(name))
    distinct, rows = len(found.names), int((found.codes >= 0).sum())
    unique = distinct > _FEW and distinct > 0.9 * rows
    if said := stray(table, name):
        if not unique and distinct <= _MOST_CATEGORIES:
            warn(f"{said}: each is taken as a category")
            return []
        return [f"{said}: make it numbers alone, with nothing where one is missing, or {drop([name])}"]
    if unique:
        return [
            f"column {name!r} has another text in nearly every row, as names have: nothing can be learned from it; "
            f"{drop([name])}"
        ]
    if distinct > _MOST_CATEGORIES:
        return [
            f"column {name!r} has {distinct:,} different texts, and each would be an input of its own "
            f"(at most {_MOST_CATEGORIES:,}): {drop([name])}"
        ]
    return []


def stray(table: Table, name: str) -> str | None:
    """Say that a column holds numbers but for some cells that make texts of them all, and where the first is."""
    column = table.data.column(name)
    if kind_of(column) != "category":
        return None
    found = words(column)
    distinct = len(found.names)
    odd = [position for position, text in enumerate(found.names) if not is_number(text)]
    if len(odd) >= distinct / 2 or (not odd and distinct <= _FEW):
        return None
    said = f"column {name!r} holds numbers, but as texts"
    if odd:
        first = int(np.isin(found.codes, odd).argmax())
        said += f", since there is {found.names[found.codes[first]]!r} in {table.row(first)}"
    return said


def _counts_rows(values: Floats) -> bool:
    rows = len(values)
    if rows <= _FEW or np.isnan(values).any():
        return False
    each_once = values.max() - values.min() + 1 == rows == len(np.unique(values))
    return bool(each_once or (np.diff(values) == 1).mean() > 0.9)
