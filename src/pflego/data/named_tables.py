"""Tables that are known by name: which file they are, and what their columns mean."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from pflego.data import sets
from pflego.data.own import tabular
from pflego.data.own.pool import Gaps, Pool, Reading
from pflego.data.own.tables import Piece, read_files
from pflego.data.problems import DataWarning, listed
from pflego.errors import DataError

_FREE = ["test_share", "drop", "scale", "gaps"]  # what may be said of them


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean: whose a row is, what is learned from it, and from what."""

    client: str
    label: str
    inputs: Sequence[str]
    category: Sequence[str] | None = None
    ordered: Sequence[str] | None = None
    gaps: Gaps | None = None


_BANDS = "bottom 25%<mid 50%<top 25%"
TABLES: Mapping[str, Columns] = {
    "heart": Columns(
        "hospital",
        "disease",
        [
            "age",
            "sex",
            "cp",
            "trestbps",
            "chol",
            "fbs",
            "restecg",
            "thalach",
            "exang",
            "oldpeak",
            "slope",
            "ca",
            "thal",
        ],
        category=["cp", "restecg", "slope", "thal"],
        gaps="indicator",
    ),
    "schools": Columns(
        "school",
        "normexam",
        ["schgend", "schavg", "vr", "intake", "standLRT", "sex", "type"],
        ordered=[f"vr={_BANDS}", f"intake={_BANDS}"],
    ),
    "schools-hsb82": Columns("school", "mAch", ["minrty", "sx", "ses", "meanses", "sector"]),
}


def place_of(name: str, data_dir: str | Path | None) -> Path:
    """Find a table's file: in the data folder or the cache, or the one that is embedded."""
    if source := sets.find(name, data_dir=data_dir):
        return source.place
    if (embedded := files(sets) / f"{name}.csv").is_file():
        return Path(str(embedded))
    return sets.get(name, data_dir=data_dir).place


def read(
    name: str, wanted: Reading, *, data_dir: str | Path | None, seed: int, leave_out: Sequence[str] = ()
) -> Pool:
    """Read a table by its name; some of what is known of it may be said otherwise."""
    columns, path = TABLES[name], place_of(name, data_dir)
    others = [setting for setting in vars(wanted) if setting not in _FREE]
    wanted.refuse(others, f"known of {name}")
    inputs = [column for column in columns.inputs if column not in (wanted.drop or ())]
    if absent := [column for column in wanted.drop or () if column not in columns.inputs]:
        raise DataError(f"{name} has no column {absent[0]!r} to drop; it has {listed(columns.inputs)}")
    kept = {*inputs, columns.client, columns.label}
    reading = replace(
        wanted,
        label=columns.label,
        drop=None,
        category=[column for column in columns.category or () if column in inputs],
        ordered=[one for one in columns.ordered or () if one.partition("=")[0] in inputs],
        gaps=wanted.gaps or columns.gaps,
    )

    def choose(names: list[str], file: Path) -> list[str]:
        if absent := kept - {*names}:
            raise DataError(f"{file} has no column {listed(sorted(absent))}, which {name} has")
        return [column for column in names if column in kept]

    table = read_files({path: Piece(str(path), 0)}, choose, texts=tabular.kinds_of(reading).texts)
    with warnings.catch_warnings():
        if wanted.gaps is None:
            warnings.simplefilter("ignore", DataWarning)  # its gaps are known, and what is done about them
        pool = tabular.pool(table, str(path), reading, columns.client, seed=seed, leave_out=leave_out)
    return replace(pool, name=name, settings=wanted.settings(test_share=wanted.share))
