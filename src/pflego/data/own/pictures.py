"""From folders of pictures, client/class/picture, to the samples of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pflego.data.own import images
from pflego.data.own.classes import numbered
from pflego.data.own.holdout import arrange
from pflego.data.own.layout import Place
from pflego.data.own.pool import Pool, Reading
from pflego.data.schema import Schema
from pflego.errors import DataError

_OF_TABLES = ["label", "task", "drop", "category", "ordered", "date", "weight", "scale", "gaps"]


def pool(places: Sequence[Place], folder: Path, wanted: Reading, *, seed: int) -> Pool:
    """Read the clients' pictures; in folders of classes alone, nothing says whose they are."""
    wanted.refuse(_OF_TABLES, f"for tables, and {folder} holds pictures")
    if len({len(place.names) > 1 for place in places}) > 1 or not all(place.names for place in places):
        odd = min(places, key=lambda place: len(place.names))
        raise DataError(f"{odd.path} does not lie in a folder client/class, as pictures must")
    known = wanted.known()
    if known is not None:
        wanted.refuse(["size"], "said by the schema already")
    if known is not None and known.kind != "images":
        raise DataError(f"{folder} holds pictures, but the schema is one of {known.kind}")
    classes, names = numbered(np.array([p.names[-1] for p in places]), known.class_names if known else ())
    if (classes == len(names)).any():
        strange = places[int((classes == len(names)).argmax())]
        raise DataError(
            f"{strange.path}: {strange.names[-1]!r} is no class of the schema; it has {', '.join(names)}"
        )
    ids, owners = np.unique(["/".join(place.names[:-1]) for place in places], return_inverse=True)
    testing = None
    if places[0].test is not None:
        wanted.refuse(["test_share"], f"for data that do not say what is for testing, as {folder} does")
        testing = np.array([bool(place.test) for place in places])
    order = arrange(owners, ids.tolist(), classes, test=testing, share=wanted.share, seed=seed)
    if order.untrained is not None:
        raise DataError(
            f"{folder}: client {str(ids[order.untrained])!r} has no picture to train on: leave it out"
        )
    paths = [place.path for place in places]
    shape = known.shape if known else images.common_shape(paths, paths, images.parse_size(wanted.size))
    ordered = [paths[row] for row in order.rows]
    x, y = images.decode(ordered, ordered, shape), classes[order.rows]
    return Pool(
        folder.name,
        ids.tolist() if len(places[0].names) > 1 else None,
        order.shares(x, y),
        known or Schema("images", shape, "uint8", "classification", class_names=names),
        wanted.settings(test_share=wanted.share if testing is None else None),
    )
