"""What the operator of a server asks for while a run goes on: that a client may join, or is gone.

requests.jsonl in the run's folder has one line per request. The server reads it before every round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from pflego.errors import FolderError, SettingError
from pflego.federation.members import Members

What: TypeAlias = Literal["join", "leave"]

_FILE = "requests.jsonl"


@dataclass(frozen=True)
class Request:
    """One of them."""

    what: What
    client: str


def ask(folder: Path, request: Request) -> None:
    """Add a request for the run in a folder."""
    members = Members.load(folder)
    if members is None:
        raise FolderError(
            f"{folder} holds no run on Flower: name the folder that `out` in the app's settings names"
        )
    earlier = [Request("join", name) for name in members.requests.comers]
    known = {
        *(str(client.id) for client in members.clients),
        *(one.client for one in [*earlier, *read(folder)]),
    }
    if request.what == "leave" and request.client not in known:
        raise SettingError(f"the run in {folder} has no client {request.client!r}")
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(request)}) + "\n"
    try:
        with os.fdopen(os.open(folder / _FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise FolderError(f"cannot write {folder / _FILE}: {error.strerror or error}") from error


def read(folder: Path) -> Sequence[Request]:
    """Read all requests so far; a last line that is not whole yet is left for later."""
    path = folder / _FILE
    try:
        lines = path.read_text().split("\n")[:-1]
        entries = [json.loads(line) for line in lines]
        return [Request(_what(entry["what"]), str(entry["client"])) for entry in entries]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{path} cannot be read and was left as it is: {error}") from error


def _what(told: object) -> What:
    if told == "join" or told == "leave":
        return told
    raise ValueError(f"a request is to join or to leave, not {told!r}")
