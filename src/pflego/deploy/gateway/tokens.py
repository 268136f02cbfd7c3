"""Who may come in through the gateway: one token per client, given out by the operator.

A token is 32 random bytes. The server's file maps client ids to digests of tokens: whoever reads it cannot come in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe

from filelock import FileLock

from pflego.codec import MessageError
from pflego.deploy.flower.facts import check_id
from pflego.errors import FolderError, SettingError
from pflego.files import locked, make_folder, write_atomically

_DIGEST = re.compile("[0-9a-f]{64}")
_LONGEST = 200  # characters of a token that are looked at
_OTHERS = 10.0  # seconds that others may take to write the file


def give(path: Path, client: str) -> str:
    """Make a token for a client that has none, and return it; it is written down nowhere."""
    try:
        check_id(client)
    except MessageError as error:
        raise SettingError(str(error)) from error
    make_folder(path.parent)
    with _held(path):
        known = dict(read(path)) if path.exists() else {}
        if client in known:
            raise SettingError(
                f"client {client!r} has a token already: take it back first, pflego deploy token {client} --revoke"
            )
        token = token_urlsafe(32)
        _write(path, {**known, client: digest(token)})
    return token


def revoke(path: Path, client: str) -> None:
    """Let a token open nothing any more."""
    read(path)  # where there is no file there is nothing to hold
    with _held(path):
        known = dict(read(path))
        if known.pop(client, None) is None:
            raise SettingError(f"client {client!r} has no token in {path}")
        _write(path, known)


def read(path: Path) -> Mapping[str, str]:
    """Map client id to the digest of its token."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(known, dict) or not all(map(_is_digest, known.values())):
            raise ValueError("it does not map ids to digests")
    except FileNotFoundError as error:
        raise FolderError(f"{path} is not there: pflego deploy token CLIENT makes it") from error
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read and was left as it is: {error}") from error
    return known


def whose(known: Mapping[str, str], token: str) -> str | None:
    """Say which client a token is of; None: nobody's. All are compared, however early one fits."""
    given = digest(token[:_LONGEST])
    found = [client for client, one in known.items() if compare_digest(one, given)]
    return found[0] if found else None


def digest(token: str) -> str:
    """Give what is kept of a token."""
    return sha256(token.encode(errors="replace")).hexdigest()


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _held(path: Path) -> AbstractContextManager[None]:
    """Keep others from writing the file between a look at it and its next version."""
    lock = FileLock(path.parent / f".{path.name}.lock", mode=0o600)
    return locked(lock, wait=_OTHERS, what=str(path), place=str(path))


def _write(path: Path, known: Mapping[str, str]) -> None:
    write_atomically(path, f"{json.dumps(known, indent=1, ensure_ascii=False)}\n".encode(), private=True)
