"""settings.toml in a run's folder, and beside it the schema that its data are read with."""

from __future__ import annotations

import tomllib
from collections.abc import Set
from pathlib import Path

from pflego.codec import Decoded
from pflego.errors import FolderError
from pflego.files import write_atomically
from pflego.runs.record import RECORD, TABLES, Tables, as_toml, digest_of_bytes, file_digest, settings_digest


class SettingsFile:
    """What was asked for, resolved.

    Parameters
    ----------
    path
        Of settings.toml.
    schema
        Of schema.json, where files say how raw values become tensors.
    free
        The settings of [run] that may differ when the run is resumed.
    """

    def __init__(self, path: Path, schema: Path, free: Set[str]) -> None:
        self.path = path
        self.schema = schema
        self._free = free
        self._digest = ""

    @property
    def facts(self) -> dict[str, object]:
        """What a checkpoint says of the settings that were written last."""
        return {"settings": self._digest, "free": sorted(self._free)}

    def read(self) -> Tables:
        """Read the tables."""
        try:
            tables: Tables = tomllib.loads(self.path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FolderError(f"{self.path} cannot be read and was left as it is: {error}") from error
        if not all(isinstance(tables.get(table), dict) for table in (*TABLES, RECORD)):
            raise FolderError(
                f"{self.path} was not written by this version of pflego and was left as it is: it lacks the tables "
                f"{', '.join((*TABLES, RECORD))}"
            )
        return tables

    def check(self, found: Decoded) -> None:
        """Refuse settings that were changed by hand since a checkpoint was written."""
        free = {str(name) for name in found.facts.one("free", (list,))}
        tables = self.read()
        if settings_digest(tables, free=free) != found.facts.text("settings"):
            raise FolderError(
                f"{self.path} was changed since the checkpoint was written: put it back as it was, "
                "or begin a new run with it in another folder (pflego run settings.toml --out FOLDER)"
            )
        good = tables[RECORD].get("schema")
        if isinstance(good, list) and file_digest(self.schema) not in good:
            raise FolderError(
                f"{self.schema} is not the file that the run was made with: it was left as it is"
            )

    def write(self, settings: Tables, schema: str | None = None) -> None:
        """Write the settings, and the schema if it is new; the digests of both old and new are good in between."""
        self._digest = settings_digest(settings, free=self._free)
        content = None if schema is None else schema.encode()
        good = {file_digest(self.schema), None if content is None else digest_of_bytes(content)} - {None}
        if good:
            settings = {**settings, RECORD: {**settings[RECORD], "schema": sorted(map(str, good))}}
        write_atomically(self.path, as_toml(settings).encode())
        if content is not None and file_digest(self.schema) != digest_of_bytes(content):
            write_atomically(self.schema, content, private=True)
