"""Clients that were left out of a federation, to come later as somebody new."""

from __future__ import annotations

import warnings
from pathlib import Path

from pflego.data import load
from pflego.data.named_tables import TABLES, place_of
from pflego.data.one_client import read_client
from pflego.data.problems import DataWarning
from pflego.data.schema import Schema, schema_of
from pflego.declaration import arguments
from pflego.errors import DataError
from pflego.federation.roster import Client, ClientId, Federation


def is_left_out(federation: Federation, client_id: ClientId) -> bool:
    """Tell whether a client was left out when a federation was loaded."""
    names = federation.source.get("leave_out")
    return isinstance(names, list) and str(client_id) in names and "data" in federation.source


def left_out(federation: Federation, client_id: ClientId) -> tuple[Client, Schema]:
    """Give a client that was left out, its values read as the others' were, and the schema, with classes nobody had."""
    if not is_left_out(federation, client_id):
        raise DataError(
            f"client {client_id!r} was not left out of this federation: name a file with its data"
        )
    source, schema = federation.source, schema_of(federation)
    data, seed = str(source["data"]), int(str(source["data_seed"]))
    drawn = schema.client is None and all(isinstance(other, int) for other in federation.ids)
    if not schema.features or drawn:
        others = {name: value for name, value in source.items() if name != "leave_out"}
        everybody = load(data, seed=seed, **arguments(load, others))
        return next(client for client in everybody if str(client.id) == str(client_id)), schema
    place = source.get("data_dir")
    path = (
        place_of(data, None if place is None else str(place)) if data in TABLES else Path(data).expanduser()
    )
    share = source.get("test_share")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # said when the others' data were read
        return read_client(
            path, client_id, schema, seed=seed, test_share=None if share is None else float(str(share))
        )
