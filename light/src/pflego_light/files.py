"""Files that are either whole or not there, and arrays that know when they were damaged."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from pflego_light.arrays import Weights
from pflego_light.codec import Decoded, Facts, decode, encode
from pflego_light.errors import FolderError, MessageError


def make_folder(path: Path) -> None:
    """Make a folder for its owner alone, and those above it; or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise FolderError(f"cannot write to the folder {path}: {error.strerror or error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, meets the old content or the new, never a part.

    When this returns, content and name are on disk. The file is for its owner alone.
    """
    draft = path.parent / f".{path.name}.{token_hex(8)}.part"
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            raise FolderError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def _sync_folder(path: Path) -> None:
    with suppress(OSError):  # not on every system is a folder something to open
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_arrays(path: Path, arrays: Weights, facts: Facts) -> None:
    """Write arrays with a few facts beside them and a digest over both."""
    write_atomically(path, encode(arrays, facts))


def read_arrays(path: Path) -> Decoded:
    """Read what `write_arrays` wrote, or say that it is damaged or foreign. The file is never touched."""
    try:
        return decode(path.read_bytes())
    except (OSError, MessageError) as error:
        raise FolderError(f"{path} is damaged and was left as it is: {error}") from error
