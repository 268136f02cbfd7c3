"""From a table to the samples of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflego.data.blocks import Array
from pflego.data.division import staying
from pflego.data.own import images
from pflego.data.own.classes import Labels, labels, suspect
from pflego.data.own.columns import Indices, Mask, alike, integers, kind_of, numbers, words
from pflego.data.own.encoding import encode, fit, standard
from pflego.data.own.holdout import Order, arrange
from pflego.data.own.kinds import ColumnKinds
from pflego.data.own.layout import for_test, name_of
from pflego.data.own.pool import Pool, Reading
from pflego.data.own.roles import Roles, counted, gaps, misfit, roles_of, stray, unfit, unfit_weight
from pflego.data.own.tables import Table
from pflego.data.problems import DataProblems, warn
from pflego.data.schema import Feature, Schema
from pflego.errors import DataError, UserError
from pflego.federation.roster import ClientId


def pool(
    table: Table,
    place: str,
    wanted: Reading,
    column: str | None,
    *,
    seed: int,
    leave_out: Sequence[str] = (),
) -> Pool:
    """Read the clients' samples from a table, but for those of clients that are left out."""
    known = wanted.known()
    if known is not None:
        wanted.refuse(["label", "task", "drop", "weight", "scale", "size"], "said by the schema already")
    roles = roles_of(table, place, label=wanted.label, client=column, weight=wanted.weight, known=known)
    kinds = kinds_of(wanted)
    table = kinds.convert(table, roles.features, place)
    problems = misfit(table, known.features) if known else unfit(table, roles.features)
    problems += unfit_weight(table, roles.weight)
    table = _close_gaps(table, roles, wanted.gaps or ("mean" if known and known.fill else "refuse"), problems)
    if problems:
        raise DataProblems([f"{place}: {problem}" for problem in problems])
    ids, owners = clients(table, place, roles.client)
    if ids is not None and leave_out:
        stay = staying(ids, leave_out)
        left = ~np.isin(owners, stay)
        table, ids, owners = table.without(left), [ids[k] for k in stay], np.searchsorted(stay, owners[~left])
    found = _labels(table, place, roles.label, wanted.task, known)
    testing = _testing(table, roles)
    if testing is not None:
        wanted.refuse(["test_share"], f"for data that do not say what is for testing, as {place} does")
    alone = [name_of(Path(place))]  # a site that has only its own data, or data that are yet to be divided
    order = arrange(owners, ids or alone, found.kinds, test=testing, share=wanted.share, seed=seed)
    if (untrained := order.untrained) is not None:
        who = place if ids is None else f"{place}: client {ids[untrained]!r}"
        raise DataError(f"{who} has nothing to train on: leave its rows out, or give it some for training")
    schema = known or _schema(table, roles, found, order, wanted, kinds)
    x, y = inputs(schema, table, order.rows), targets(schema, found)[order.rows]
    resolved: dict[str, object] = {"column": roles.client}
    if known is None:
        resolved |= {"label": roles.label, "task": found.task, "gaps": wanted.gaps or "refuse"}
        resolved["scale"] = wanted.scale is not False if schema.kind == "table" else None
    if testing is None:
        resolved["test_share"] = wanted.share
    whose = alone if ids is None and known is not None else ids
    left_out = tuple(leave_out) if ids is not None else ()
    weights = None
    if roles.weight is not None:
        weights = order.training(numbers(table.data.column(roles.weight))[order.rows, 0])
    settings = wanted.settings(**resolved)
    return Pool(Path(place).name, whose, order.shares(x, y), schema, settings, left_out, weights)


def kinds_of(wanted: Reading) -> ColumnKinds:
    """Say what columns are that do not look like it: as the settings have it, or a schema."""
    known = wanted.known()
    if known is None:
        return ColumnKinds.parse(wanted.category, wanted.ordered, wanted.date)
    wanted.refuse(["category", "ordered", "date"], "said by the schema already")
    return ColumnKinds.of_schema(known)


def inputs(schema: Schema, table: Table, rows: Indices) -> Array:
    """Encode rows of a table as a schema has them, (rows, ...)."""
    if schema.kind == "images":
        return images.decode(*_pictures(table, schema.features[0].name, rows), schema.shape)
    return encode(schema.features, table.data.column, rows)


def targets(schema: Schema, found: Labels) -> Array:
    """Encode labels as a schema has them: class ids, or numbers on its scale."""
    if schema.task == "classification":
        return found.values
    return ((found.values - schema.label_mean) / schema.label_scale).astype(np.float32)


def clients(table: Table, place: object, column: str | None) -> tuple[list[ClientId] | None, Indices]:
    """Return the clients' ids, if known, and the owner of each row: by a column, or by files."""
    if column is not None:
        values = table.data.column(column)
        if kind_of(values) == "category":
            if (pair := alike(values)) is not None:
                raise DataError(
                    f"{place}: column {column!r} has clients {pair[0]!r} and {pair[1]!r}, which differ in blanks "
                    f"alone: write them in one way if they are one client, and in two if they are two"
                )
            found = words(values)
            return list(found.names), found.codes
        whole = integers(values)
        if whole is None:
            raise DataError(f"{place}: column {column!r} cannot name clients: texts or whole numbers do")
        names, owners = np.unique(whole, return_inverse=True)
        return names.tolist(), owners
    files = sorted({piece.client for piece in table.pieces if piece.client is not None})
    if not files:
        return None, np.zeros(table.data.num_rows, np.int64)
    position = {name: number for number, name in enumerate(files)}
    return list(files), table.each(position[str(piece.client)] for piece in table.pieces).astype(np.int64)


def _schema(
    table: Table, roles: Roles, found: Labels, order: Order, wanted: Reading, kinds: ColumnKinds
) -> Schema:
    """Learn from the training rows how everybody's values become tensors."""
    train = order.rows[~order.test]
    mean, spread = 0.0, 1.0
    if found.task == "regression" and wanted.scale is not False:
        (mean,), (spread,) = standard(found.values[train, None].astype(np.float64))
    first = roles.features[0]
    if pictures := kind_of(table.data.column(first)) == "image":
        wanted.refuse(["scale"], "for tables of numbers, and pictures are divided by 255")
        everything = _pictures(table, first, np.arange(table.data.num_rows))
        features = [Feature(first, "image")]
        shape = images.common_shape(*everything, images.parse_size(wanted.size))
    else:
        wanted.refuse(["size"], "for pictures")
        features = [
            fit(
                name,
                table.data.column(name),
                train,
                scale=wanted.scale is not False,
                kind=kinds.of(name),
                order=kinds.ordered.get(name, ()),
                mark_gaps=wanted.gaps == "indicator",
            )
            for name in roles.features
        ]
        shape = (sum(feature.width for feature in features),)
    return Schema(
        "images" if pictures else "table",
        shape,
        "uint8" if pictures else "float32",
        found.task,
        features=tuple(features),
        label=roles.label,
        client=roles.client,
        class_names=found.names,
        label_mean=float(mean),
        label_scale=float(spread),
        fill=wanted.gaps in ("mean", "indicator"),
        weight=roles.weight,
    )


def _close_gaps(table: Table, roles: Roles, how: str, problems: list[str]) -> Table:
    """Do with missing values what was asked for; add what cannot be done to the problems."""
    holes = gaps(table, [*roles.features, *roles.others])
    if not holes:
        return table
    if how == "drop":
        lost = np.logical_or.reduce(list(holes.values()))
        warn(
            f"{lost.sum()} of {len(lost)} rows have missing values and are left out: {counted(table, holes)}"
        )
        if lost.all():
            problems.append(f"every row has a missing value: {counted(table, holes)}")
        return table.without(lost)
    simple = [name for name in roles.features if kind_of(table.data.column(name)) != "image"]
    filled = {name: mask for name, mask in holes.items() if how in ("mean", "indicator") and name in simple}
    if filled:
        marked = " and marked by an input of their own" if how == "indicator" else ""
        warn(
            f"missing values are filled with the mean{marked}, or with no category: {counted(table, filled)}"
        )
    if left := {name: mask for name, mask in holes.items() if name not in filled}:
        fill = (
            "fill them with gaps='mean' or 'indicator' (--gaps mean, --gaps indicator), "
            if how == "refuse"
            else ""
        )
        problems.append(
            f"values are missing, {counted(table, left)}: {fill}leave such rows out with gaps='drop' (--gaps drop), "
            f"or a column with drop=[...] (--drop)"
        )
    return table


def _labels(table: Table, place: str, name: str, task: str | None, known: Schema | None) -> Labels:
    column = table.data.column(name)
    try:
        if known is None:
            found = labels(name, column, task, names=tuple(table.names.get(name, ())))
            if task is None:
                suspect(found, name)
                if odd := stray(table, name):
                    warn(f"the label {odd}: taken as classes, not as a regression")
            return found
        found = labels(name, column, known.task, names=known.class_names)
    except UserError as error:
        raise DataError(f"{place}: {error}") from error
    if known.task == "classification" and (strange := found.values == len(known.class_names)).any():
        row = int(strange.argmax())
        raise DataError(
            f"{table.row(row)}: the label {column[row].as_py()!r} is no class of the schema; "
            f"it has {', '.join(known.class_names)}"
        )
    return found


def _testing(table: Table, roles: Roles) -> Mask | None:
    """Mask the rows that are for testing, where a column or a file's place says it."""
    if roles.split is not None:
        found = words(table.data.column(roles.split))
        said = np.array([bool(for_test(name)) for name in found.names])[found.codes]
    elif any(piece.test is not None for piece in table.pieces):
        said = table.each(bool(piece.test) for piece in table.pieces).astype(bool)
    else:
        return None
    return said if said.any() else None


def _pictures(table: Table, name: str, rows: Indices) -> tuple[list[images.Picture], list[str]]:
    """Read a column of pictures: their bytes or the paths of their files, and what each is called."""
    column = table.data.column(name).take(rows).to_pylist()
    pictures = [cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]) for cell in column]
    return pictures, [cell["path"] or table.row(int(row)) for cell, row in zip(column, rows, strict=True)]
