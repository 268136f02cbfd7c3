"""What a folder holds, and what the places of its files say: whose they are, for training or for testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pflego.data.own import tables
from pflego.data.source import reading
from pflego.errors import DataError

Format: TypeAlias = Literal["table", "npz", "image"]

IMAGES = [".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"]

_FOR_TEST = {"train": False, "training": False, "test": True, "testing": True}
_NEITHER = {"val", "valid", "validation", "dev"}


@dataclass(frozen=True)
class Place:
    """A file, and the names of the folders it lies in; its own is the last of them, unless it is a picture."""

    path: Path
    names: tuple[str, ...]
    test: bool | None = None  # whether one of these names said that it is for testing; None: none did


@dataclass(frozen=True)
class Layout:
    """The files of a folder that can be read, all of one format, and how many there are besides."""

    format: Format
    places: Sequence[Place]
    others: int


def format_of(path: Path) -> Format | None:
    """Tell by its name what a file is; None: nothing that is read here."""
    if tables.suffix(path):
        return "table"
    end = path.suffix.lower()
    return "npz" if end == ".npz" else "image" if end in IMAGES else None


def name_of(path: Path) -> str:
    """Return a file's name without its suffix."""
    return path.name.removesuffix(path.name[-len(end) :] if (end := tables.suffix(path)) else path.suffix)


def for_test(word: object) -> bool | None:
    """Tell whether a word such as train or test means testing; None: it means neither.

    >>> for_test("Test"), for_test("training"), for_test("ward")
    (True, False, None)
    """
    return _FOR_TEST.get(str(word).strip().lower())


def is_split(words: Sequence[object], place: str) -> bool:
    """Tell whether these words say what is for training and what for testing; refuse any third part."""
    known = {for_test(word) for word in words}
    if known <= {True, False}:
        return bool(known)
    if (third := {str(word) for word in words if str(word).strip().lower() in _NEITHER}) and known != {None}:
        raise DataError(
            f"{place} has {', '.join(sorted(third))} beside train and test: there is training and testing here, "
            f"and nothing between; leave it out, or call it test"
        )
    return False


def explore(folder: Path) -> Layout:
    """Find the files of a folder, and of those in it; hidden ones do not count."""
    with reading(folder):
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        ]
    formats = Counter(found for path in files if (found := format_of(path)))
    if not formats:
        raise DataError(f"{folder} holds no CSV, Parquet, .npz or image files")
    if len(formats) > 1:
        counts = ", ".join(f"{count} {name} files" for name, count in formats.most_common())
        raise DataError(f"{folder} holds {counts}: give each kind a folder of its own")
    file_format = next(iter(formats))
    chosen = [path for path in files if format_of(path)]
    named = [_names(path.relative_to(folder), file_format) for path in chosen]
    level = next((level for level in range(min(map(len, named))) if _says_split(named, level, folder)), None)
    places = [Place(path, names) for path, names in zip(chosen, named, strict=True)]
    if level is not None:
        said = any(for_test(names[level]) for names in named)  # train alone is all there is: no more is known
        places = [
            Place(
                place.path,
                (*place.names[:level], *place.names[level + 1 :]),
                for_test(place.names[level]) if said else None,
            )
            for place in places
        ]
    return Layout(file_format, places, len(files) - len(chosen))


def _names(path: Path, file_format: Format) -> tuple[str, ...]:
    return path.parent.parts if file_format == "image" else (*path.parent.parts, name_of(path))


def _says_split(named: Sequence[tuple[str, ...]], level: int, folder: Path) -> bool:
    return is_split(sorted({names[level] for names in named}), f"the folder {folder}")
