"""How raw values become tensors: the same on every client, fixed when a federation is loaded, remembered with a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from pflego.data.blocks import Array
from pflego.data.sets.catalogue import KNOWN
from pflego.errors import DataError, check_choice, path_of, shortened
from pflego.federation.roster import ClientId, Federation
from pflego.learning.task import TaskName

Kind: TypeAlias = Literal["table", "arrays", "images"]
FeatureKind: TypeAlias = Literal["number", "ordered", "date", "category", "image"]

_FORMAT = "pflego schema 1"
_DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16"]
_MOST_INPUTS = 1 << 30  # numbers of a sample
_LARGEST = 3.4e38  # of 32 bits
_MOST_NAMES = 100_000  # classes numbered further than this have no list of names


@dataclass(frozen=True)
class Samples:
    """What a file holds, ready for a model."""

    x: Array  # (samples, ...), as a Client takes it
    y: (
        Array | None
    )  # as a Client takes it; a class nobody trained on is len(class_names); None: no label column
    clients: Sequence[ClientId] | None  # whose each sample is; None: the file does not say
    rows: Sequence[str | int]  # what to call each: its number in the file, from 1 on, or the name of its file


@dataclass(frozen=True)
class Feature:
    """A column, and how its values become inputs.

    "number": (value - mean) / scale, one of each, or one per place where the column holds lists; without a scale it
    is taken as it is, and the mean is only there for values that are missing. "date": a number, the days since
    1970-01-01. "ordered": a number, the position of a text in `categories`, from 0 on. "category": one input per
    category, 1 for the one it is, and zeros alone for a category that is not among them. "image": a picture.

    `gap`: one more input, 1 where the value is missing.
    """

    name: str
    kind: FeatureKind
    categories: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    gap: bool = False

    @property
    def width(self) -> int:
        """How many inputs it gives; a picture those of its schema's shape."""
        return len(self.categories if self.kind == "category" else self.mean) + self.gap


@dataclass(frozen=True)
class Schema:
    """How raw values become tensors.

    Parameters
    ----------
    kind
        "table": columns of numbers and categories; "images": pictures; "arrays": numbers that are taken as they are.
    shape, dtype
        Of a sample as a client holds it.
    task
        "classification" or "regression".
    features
        The columns that are inputs, in their order; none for arrays and for folders of pictures.
    label, client, weight
        The columns of labels, of client ids, and of how much each row counts; None where there is no such column. Of
        arrays, the name of the one with weights.
    class_names
        The classes by their ids; none in regression.
    label_mean, label_scale
        Of a regression: what is trained on is (label - label_mean) / label_scale.
    fill
        Whether a missing value is filled (with the mean, with zeros for a category) or refused.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    task: TaskName
    features: tuple[Feature, ...] = ()
    label: str | None = None
    client: str | None = None
    class_names: tuple[str, ...] = ()
    label_mean: float = 0.0
    label_scale: float = 1.0
    fill: bool = False
    weight: str | None = None

    @property
    def inputs(self) -> int:
        """How many numbers a sample is."""
        return prod(self.shape)

    @property
    def digest(self) -> str:
        """The same wherever values become the same tensors."""
        return blake2b(self.to_json().encode(), digest_size=12).hexdigest()

    def class_name(self, client_id: int) -> str:
        """Name a class; one without a name is called by its id."""
        return self.class_names[client_id] if 0 <= client_id < len(self.class_names) else str(client_id)

    def in_units(self, outputs: Array) -> Array:
        """Turn a regression's outputs back into the label's own unit."""
        return np.asarray(outputs, np.float64) * self.label_scale + self.label_mean

    def read(self, path: str | Path) -> Samples:
        """Read a file, or a folder of pictures, in the formats of training data: CSV, Parquet, .npz, images."""
        from pflego.data.own.samples import read

        return read(self, path_of("path", path))

    def to_json(self) -> str:
        """Write it down, one line per column."""
        absent = {"features", *(["weight"] if self.weight is None else [])}
        facts = {key: value for key, value in asdict(self).items() if key not in absent}
        head = json.dumps({"format": _FORMAT, **facts}, indent=1, ensure_ascii=False).removesuffix("\n}")
        columns = ",\n  ".join(
            json.dumps({key: value for key, value in asdict(feature).items() if value}, ensure_ascii=False)
            for feature in self.features
        )
        return f'{head},\n "features": [\n  {columns}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote."""
        try:
            facts: dict[str, Any] = json.loads(text)
            if facts.pop("format") != _FORMAT:
                raise DataError("it was written by another version of pflego")
            features = tuple(Feature(**_tuples(feature)) for feature in facts.pop("features"))
            schema = cls(features=features, **_tuples(facts))
            _check(schema)
            return schema
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"no schema of pflego's: {error or type(error).__name__}") from error

    @classmethod
    def open(cls, path: str | Path) -> Schema:
        """Read a schema's file."""
        try:
            return cls.from_json(path_of("schema", path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise DataError(f"cannot read {path}: {error}") from error


def schema_of(federation: Federation) -> Schema:
    """Give a federation's schema; of one that has none, that of its arrays, which are taken as they are."""
    if federation.schema is not None:
        return federation.schema
    first = federation[0].x_train
    shape, dtype = tuple(first.shape[1:]), str(first.dtype).removeprefix("torch.")
    if federation.classes is None:
        return Schema("arrays", shape, dtype, "regression")
    entry, beyond = KNOWN.get(str(federation.source.get("data"))), max(federation.classes) + 1
    names = tuple(entry.class_names) if entry else ()
    if len(names) < beyond <= _MOST_NAMES:
        names = tuple(map(str, range(beyond)))
    return Schema("arrays", shape, dtype, "classification", class_names=names)


def _check(schema: Schema) -> None:
    """Refuse a schema whose parts are of other types than it declares, or do not go together."""
    check_choice("kind", schema.kind, get_args(Kind))
    check_choice("task", schema.task, get_args(TaskName))
    check_choice("dtype", schema.dtype, _DTYPES)
    _each("shape", schema.shape, int, least=1)
    if prod(schema.shape) > _MOST_INPUTS:
        raise DataError(f"a sample of {prod(schema.shape):,} numbers is beyond what can be read")
    _each("class_names", schema.class_names, str)
    _each("label_mean and label_scale", (schema.label_mean, schema.label_scale), float)
    if schema.label_scale == 0 or not isinstance(schema.fill, bool):
        raise DataError("label_scale must not be 0, and fill be true or false")
    for name in ("label", "client", "weight"):
        if not isinstance(value := getattr(schema, name), str | None):
            raise DataError(f"{name} must be the name of a column, not {shortened(value)}")
    for feature in schema.features:
        _check_feature(feature)
    if schema.weight in {schema.label, schema.client, *(f.name for f in schema.features)} - {None}:
        raise DataError(f"its column of weights, {schema.weight!r}, is something else too")
    widths = sum(feature.width for feature in schema.features)
    if schema.kind == "table" and (not schema.features or schema.shape != (widths,)):
        raise DataError(f"its columns give {widths} inputs, its shape is {schema.shape}")
    if schema.kind == "images" and (schema.dtype != "uint8" or len(schema.shape) not in (2, 3)):
        raise DataError(
            f"pictures are bytes of two or three dimensions, not {schema.dtype} of {schema.shape}"
        )
    if len({feature.name for feature in schema.features}) < len(schema.features):
        raise DataError("two of its columns have the same name")


def _check_feature(feature: Feature) -> None:
    check_choice("kind", feature.kind, get_args(FeatureKind))
    _each("name", (feature.name,), str)
    _each(f"categories of {feature.name!r}", feature.categories, str)
    _each(f"mean of {feature.name!r}", feature.mean, float)
    _each(f"scale of {feature.name!r}", feature.scale, float)
    if not isinstance(feature.gap, bool):
        raise DataError(f"gap of {feature.name!r} must be true or false, not {shortened(feature.gap)}")
    numbers, spreads = len(feature.mean), len(feature.scale)
    number = bool(numbers) and spreads in (0, numbers) and 0 not in feature.scale
    right = {
        "number": number and not feature.categories,
        "date": number and numbers == 1 and not feature.categories,
        "ordered": number and numbers == 1 and 1 < len(set(feature.categories)) == len(feature.categories),
        "category": not numbers and not spreads and not feature.gap,
        "image": not feature.width and not spreads,
    }
    if not right[feature.kind]:
        raise DataError(f"column {feature.name!r} is no {feature.kind}: its parts do not go together")


def _each(what: str, values: object, kind: type, *, least: float | None = None) -> None:
    """Refuse what is no list of values of one type; whole numbers will do for fractions."""
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(values, tuple):
        raise DataError(f"{what} must be a list, not {shortened(values)}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise DataError(f"{what} must be of type {kind.__name__}, not {shortened(value)}")
        if isinstance(value, int | float) and (
            abs(value) > _LARGEST or value != value or (least is not None and value < least)
        ):
            raise DataError(f"{what} cannot be {shortened(value)}")


def _tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
