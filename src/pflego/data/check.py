"""A federation looked through before anything is trained: what would be learned, and what looks wrong."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pflego.data.named_tables import TABLES
from pflego.data.schema import Feature, Schema, schema_of
from pflego.federation.roster import Client, ClientId, Federation

_FEW = 10  # training samples, with fewer of which a client can hardly learn
_LARGE = 50  # inputs beyond this want to be scaled
_SHOWN = 5  # names in a sentence
_CODES = 8  # different whole numbers, of which a column of codes may have no more
_ROUNDING = 1e-3  # that scaling and its undoing leave of a whole number
_WEIGHTS = {
    "weight",
    "weights",
    "wt",
    "wgt",
    "pweight",
    "fweight",
    "iweight",
    "perwt",
}  # what weights are called


@dataclass(frozen=True)
class ClassCount:
    """How many samples there are of a class, and how many clients have it."""

    name: str
    train: int
    test: int
    clients: int


@dataclass(frozen=True)
class Findings:
    """What would be learned, and what looks wrong."""

    schema: Schema
    classes: Sequence[ClassCount]  # none in regression
    facts: Sequence[str]
    warnings: Sequence[str]


def examine(federation: Federation) -> Findings:
    """Look through all data of a federation."""
    schema, members = schema_of(federation), list(federation)
    classes = _classes(federation, members, schema)
    facts = [_inputs(schema), _testing(federation, members)]
    facts += _weights(federation, members, schema)
    facts += [_targets(members, schema)] if federation.classes is None else _overlap(classes, members)
    warnings = [
        *(_codes(members, schema) if federation.source.get("data") not in TABLES else []),
        *_weight_like(schema),
        *_unscaled(members, schema),
        *_leaks(members),
        *_poor(members),
    ]
    if (same := _constant(members)).any():
        if schema.kind == "table":
            warnings[:0] = _unchanging(schema, same)
        else:
            facts.append(f"{same.sum()} of {len(same)} inputs are the same in every training sample")
    return Findings(schema, classes, facts, warnings)


def encoding(feature: Feature) -> str:
    """Say how a column becomes inputs."""
    if feature.kind == "category":
        return f"category: {_some(feature.categories)}"
    if feature.kind == "image":
        return "picture"
    marked = ", and whether it is missing" if feature.gap else ""
    if len(feature.mean) > 1:
        how = "as they are" if not feature.scale else "each with mean 0 and standard deviation 1"
        return f"{len(feature.mean)} numbers, {how}{marked}"
    called = {
        "number": "number",
        "date": "days since 1970",
        "ordered": f"order: {'<'.join(feature.categories)}",
    }
    how = f": (value - {feature.mean[0]:.5g}) / {feature.scale[0]:.5g}" if feature.scale else ", as it is"
    return called[feature.kind] + how + marked


def _inputs(schema: Schema) -> str:
    shape = "×".join(map(str, schema.shape))
    kinds = {"table": "numbers", "images": "pixels", "arrays": f"{schema.dtype} values, taken as they are"}
    divided = ", divided by 255" if schema.dtype == "uint8" else ""
    return f"a sample is {shape} {kinds[schema.kind]}{divided}"


def _testing(federation: Federation, members: Sequence[Client]) -> str:
    share = federation.source.get("test_share")
    how = (
        "what the data say"
        if share is None
        else f"{100 * float(str(share)):.3g} % of each client's samples, drawn"
    )
    without = [client.id for client in members if len(client.x_test) == 0]
    return f"for testing: {how}" + (f"; nothing of {_clients(without)}" if without else "")


def _targets(members: Sequence[Client], schema: Schema) -> str:
    values = np.concatenate([np.ravel(schema.in_units(client.y_train.numpy())) for client in members])
    numbers = values.astype(np.float64)
    scaled = ", and is learned with mean 0 and standard deviation 1" if schema.label_scale != 1 else ""
    return (
        f"a regression: the label goes from {numbers.min():.5g} to {numbers.max():.5g}, its mean is "
        f"{numbers.mean():.5g}, its standard deviation {numbers.std():.5g}{scaled}; rmse is in its own unit"
    )


def _weights(federation: Federation, members: Sequence[Client], schema: Schema) -> list[str]:
    """Say how much training samples count, and how many of equal weight would tell as much: (sum s)^2 / sum s^2."""
    if not federation.weighted:
        return []
    each = np.concatenate(
        [
            np.ones(len(client.y_train)) if client.weights is None else client.weights.numpy()
            for client in members
        ]
    )
    effective = each.sum() ** 2 / (each**2).sum()
    name = "" if schema.weight is None else f" {schema.weight!r}"
    zeros = int((each == 0).sum())
    without = f", {zeros} of them 0" if zeros else ""
    return [
        f"training samples have weights{name} from {each.min():.5g} to {each.max():.5g}{without}: "
        f"{len(each)} tell as much as {effective:.4g} of equal weight"
    ]


def _weight_like(schema: Schema) -> list[str]:
    """Name the columns that are inputs, and called like weights of rows."""
    if schema.weight is not None:
        return []
    called = [
        feature.name
        for feature in schema.features
        if feature.kind == "number"
        and feature.name.lower().replace("-", "_").removeprefix("sample").strip("_") in _WEIGHTS
    ]
    return [
        f"{name} is taken as an input: if it says how much a row counts, say weight={name!r} "
        f"(--weight {shlex.quote(name)})"
        for name in called
    ]


def _classes(federation: Federation, members: Sequence[Client], schema: Schema) -> list[ClassCount]:
    numbers = federation.classes or []
    train, test = (
        np.concatenate([getattr(client, part).numpy() for client in members])
        for part in ("y_train", "y_test")
    )
    held = np.concatenate([client.classes.numpy() for client in members])
    return [
        ClassCount(schema.class_name(number), *(int((own == number).sum()) for own in (train, test, held)))
        for number in numbers
    ]


def _overlap(classes: Sequence[ClassCount], members: Sequence[Client]) -> list[str]:
    """Say how alike clients are: of how many classes any two both have samples."""
    clients = len(members)
    if clients == 1:
        return []
    pairs = clients * (clients - 1) / 2
    shared = sum(one.clients * (one.clients - 1) / 2 for one in classes) / pairs
    each = sum(one.clients for one in classes) / clients
    alone = sum(one.clients == 1 for one in classes)
    words = f"a client has {each:.3g} of {len(classes)} classes on average, and {shared:.3g} in common with another"
    return [words + (f"; held by one client alone: {alone}" if alone else "")]


def _constant(members: Sequence[Client]) -> npt.NDArray[np.bool_]:
    """Mask the inputs that are the same in every training sample."""
    least = np.min([_flat(client.x_train).min(axis=0) for client in members], axis=0)
    most = np.max([_flat(client.x_train).max(axis=0) for client in members], axis=0)
    return np.asarray(least == most)


def _unchanging(schema: Schema, same: npt.NDArray[np.bool_]) -> list[str]:
    """Name the columns all of whose inputs are the same in every training sample."""
    ends = np.cumsum([feature.width for feature in schema.features])
    never = [
        feature.name
        for feature, end in zip(schema.features, ends, strict=True)
        if same[end - feature.width : end].all()
    ]
    return [f"the same in every training sample, and so of no use: {_some(never)}"] if never else []


def _codes(members: Sequence[Client], schema: Schema) -> list[str]:
    """Name the columns of numbers that take so few whole values that they may be codes, and no quantities."""
    if schema.kind != "table":
        return []
    x = np.concatenate([_flat(client.x_train) for client in members])
    start, suspects = 0, []
    for feature in schema.features:
        if feature.kind == "number" and len(feature.mean) == 1:
            known = x[:, start][x[:, start + 1] == 0] if feature.gap else x[:, start]
            known = known[known != 0] if schema.fill and feature.scale else known  # 0: filled with the mean
            scale, mean = (feature.scale[0], feature.mean[0]) if feature.scale else (1.0, 0.0)
            values = np.unique(known).astype(np.float64) * scale + mean
            if 2 < len(values) <= _CODES and np.abs(values - np.round(values)).max() < _ROUNDING:
                suspects.append(f"{feature.name} ({', '.join(str(round(value)) for value in values)})")
        start += feature.width
    if not suspects:
        return []
    return [
        f"few whole numbers, taken as quantities: {_some(suspects)}; if they are codes, say which are categories, "
        f"category=[...] (--category)"
    ]


def _unscaled(members: Sequence[Client], schema: Schema) -> list[str]:
    if not schema.dtype.startswith(("float", "bfloat")):  # bytes are divided by 255, whole numbers looked up
        return []
    most = max(float(np.abs(_flat(client.x_train)).max(initial=0)) for client in members)
    words = f"inputs reach {most:.5g}, where most models want them between -3 and 3"
    return [words] if most > _LARGE else []


def _leaks(members: Sequence[Client]) -> list[str]:
    """Count the test samples that are training samples too, on the same client or on another."""
    trained = [set(_digests(client.x_train)) for client in members]
    everybodys = set().union(*trained)
    tested = [_digests(client.x_test) for client in members]
    total = sum(len(own) for own in tested)
    again = sum(digest in everybodys for own in tested for digest in own)
    at_home = sum(digest in mine for own, mine in zip(tested, trained, strict=True) for digest in own)
    if not again:
        return []
    return [
        f"{again} of {total} test samples have the same inputs as a training sample, {at_home} of them as one of the "
        f"same client: a model can know them by heart"
    ]


def _poor(members: Sequence[Client]) -> list[str]:
    """Name the clients that have little to learn from."""
    few = [client.id for client in members if len(client.x_train) < _FEW]
    alike = [client.id for client in members if len(client.classes) == 1]
    strange = [client.id for client in members if not _known(client)]
    untested = sum(len(client.x_test) for client in members) == 0
    return [
        words
        for words, found in [
            (f"fewer than {_FEW} training samples: {_clients(few)}", few),
            (f"one class alone, and so nothing to tell apart: {_clients(alike)}", alike),
            (
                f"test samples of classes that the client has none of to train on: {_clients(strange)}",
                strange,
            ),
            ("there are no test samples: nothing will show how good the models are", untested),
        ]
        if found
    ]


def _known(client: Client) -> bool:
    """Tell whether a client trains on every class it is tested on."""
    return client.y_test.is_floating_point() or bool(
        np.isin(client.y_test.numpy(), client.classes.numpy()).all()
    )


def _digests(x: Tensor) -> list[int]:
    return [hash(row.tobytes()) for row in x.numpy()]


def _flat(x: Tensor) -> npt.NDArray[np.generic]:
    flat: npt.NDArray[np.generic] = x.numpy().reshape(len(x), -1)
    return flat


def _clients(ids: Sequence[ClientId]) -> str:
    return f"{len(ids)} client{'s' * (len(ids) > 1)} ({_some([str(client_id) for client_id in ids])})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, ... ({len(names)} in all)"
