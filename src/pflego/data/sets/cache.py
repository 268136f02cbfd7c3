"""What was read from a data set's files once, kept as plain arrays that open at once.

    <cache>/<name>/             files that were downloaded, under their official names
    <cache>/arrays/<name>-<key>/*.npy   what was read from files; the key changes when they do

The cache is PFLEGO_CACHE, or the system's place for caches. It may be deleted at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from pflego.data.blocks import BLOCK, Array, Blocks
from pflego.data.source import Source
from pflego.errors import DataError

_FORMAT = 1
_NAMES = "arrays.json"  # of all arrays: somebody may tidy up the cache and take some of them away


def cache_dir() -> Path:
    """Give the folder of the cache: PFLEGO_CACHE, or the system's place for it."""
    if folder := os.environ.get("PFLEGO_CACHE"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("pflego"))


def arrays(name: str, source: Source) -> dict[str, Array]:
    """Give a data set's arrays: those the cache has kept, or read from the files and kept from now on.

    Large ones are memory-mapped. Where the cache cannot be written, all are read into memory, each time.
    """
    folder = cache_dir() / "arrays" / f"{name}-{_key(source.files)}"
    if (kept := _open(folder)) is not None:
        return kept
    try:
        _write(folder, source.read())
    except OSError as error:
        reason = error.strerror or error
        warnings.warn(
            f"{name} is read anew each time: cannot write to {folder.parent}: {reason}", stacklevel=2
        )
        return source.arrays()
    if (kept := _open(folder)) is None:
        raise DataError(f"the cache {folder} disappeared while {name} was read: try again")
    return kept


def _open(folder: Path) -> dict[str, Array] | None:
    """Open what was kept. A folder that was damaged is dropped."""
    if not folder.is_dir():
        return None
    try:
        names: list[str] = json.loads((folder / _NAMES).read_text())
        files = {name: folder / f"{name}.npy" for name in names}
        return {
            name: np.load(file, mmap_mode="r" if file.stat().st_size > BLOCK else None)
            for name, file in files.items()
        }
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _write(folder: Path, found: Iterable[tuple[str, Blocks]]) -> None:
    """Write arrays into a folder that is there with all of them or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    draft.chmod(0o755)  # others may share the cache
    try:
        names = []
        for name, blocks in found:
            blocks.save(draft / f"{name}.npy")
            names.append(name)
        (draft / _NAMES).write_text(json.dumps(names))
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise somebody else was quicker
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _key(files: Sequence[Path]) -> str:
    """Digest where the files are, how large, and when they were written."""
    facts: list[object] = [_FORMAT]
    for file in files:
        # Of a tree of images, its folders: adding or removing one shows in their times.
        tree = sorted(file.glob("*/*")) if file.is_dir() else []
        for path in [file.resolve(), *tree]:
            status = path.stat()
            facts.append([str(path), status.st_size, status.st_mtime_ns])
    return blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
