"""Files that are either whole or not there, and tensors that know when they were damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from filelock import BaseFileLock, Timeout
from safetensors import SafetensorError, safe_open

from pflego.codec import Decoded, Facts, Reader, checked, digest_of, encode
from pflego.errors import FolderError
from pflego.weights import Weights

_DRAFT = ".part"


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and those above it, or say why not; a private one is for its owner alone."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if private:
            path.chmod(0o700)
    except OSError as error:
        raise FolderError(f"cannot write to the folder {path}: {error.strerror or error}") from error


@contextmanager
def locked(lock: BaseFileLock, *, wait: float, what: str, place: str) -> Iterator[None]:
    """Hold a lock on something, after this many seconds of waiting for others. A dead process holds nothing.

    place: what cannot be written where there can be no lock.
    """
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise FolderError(
            f"another process is at work on {what}: wait until it is done, or stop it"
        ) from None
    except OSError as error:
        raise FolderError(f"cannot write {place}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file in one step: a reader, or a crash, meets the old content or the new, never a part.

    When this returns, content and name are on disk. A private file is for its owner alone.
    """
    draft = path.parent / f".{path.name}.{token_hex(8)}{_DRAFT}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, 0o600 if private else 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            raise FolderError(f"cannot write {path}: {error.strerror or error}") from error
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder outlive a power cut, where the system can."""
    with suppress(OSError):  # not on every system is a folder something to open
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes left half written. For those who know that nobody else writes here."""
    for draft in folder.glob(f".*{_DRAFT}"):
        draft.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Weights, facts: Facts, *, private: bool = False) -> str:
    """Write tensors with a few facts beside them and a digest over both, which is given."""
    content = encode(tensors, facts)
    write_atomically(path, content, private=private)
    return digest_of(content)


def read_tensors(path: Path) -> tuple[Weights, Reader]:
    """Read what `write_tensors` wrote, or say that it is damaged or foreign. The file is never touched."""
    found = read_checked(path)
    return found.tensors, found.facts


def read_checked(path: Path) -> Decoded:
    """Read what `write_tensors` wrote, with its digest."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        return checked(tensors, metadata)
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(f"{path} is damaged and was left as it is: {error}") from error


def read_some(path: Path, wanted: Callable[[str], bool]) -> Weights:
    """Read the tensors whose names are wanted, from a file that was checked before."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 - not a dictionary
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path} was there and can no longer be read: {error}") from error
