"""The data sets that pflego knows by name; catalogue.toml says what they are."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from pflego.data.blocks import Blocks
from pflego.data.dataset import ARRAYS
from pflego.data.sets import cifar, idx, npz, omniglot, shakespeare, watch
from pflego.data.sets.download import Remote
from pflego.data.source import Source

# The official files in a folder, and the folder where torchvision keeps them.
_FINDERS: dict[str, tuple[Callable[[Path], Source | None], str]] = {
    "mnist": (partial(idx.find_mnist, "mnist"), "MNIST/raw"),
    "fashion-mnist": (partial(idx.find_mnist, "fashion-mnist"), "FashionMNIST/raw"),
    "emnist": (idx.find_emnist, "EMNIST/raw"),
    "cifar10": (cifar.find, "cifar10"),
    "omniglot": (omniglot.find, "omniglot-py"),
    "watch": (watch.find, "watch"),
    "shakespeare": (shakespeare.find, "shakespeare"),
}
_PACKED = {"omniglot": omniglot.PACKED, "watch": watch.PACKED}  # arrays of a format of our own
_ALSO = {"shakespeare": f"{shakespeare.PACKED_LINES}, "}
_TABLES = {
    "heart": ["heart.csv"],
    "schools": ["Exam.csv", "exam.csv"],
    "schools-hsb82": ["Hsb82.csv", "hsb82.csv"],
}


@dataclass(frozen=True)
class Entry:
    """A data set as it is published."""

    name: str
    train: int  # samples
    test: int
    classes: int  # 0: a regression
    shape: Sequence[int]  # of a sample
    picture: Sequence[int] = ()  # its shape as a picture, where that is another one
    class_names: Sequence[str] = ()
    clients: str = ""  # who they are, where the data say it
    home: str = ""  # where it can be had, where nothing is downloaded
    remotes: Sequence[Remote] = ()
    tables: Sequence[str] = ()  # what its file may be called, where it is a table

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(remote.size for remote in self.remotes)

    @property
    def files(self) -> str:
        """What can be put into a folder to have the set, in words."""
        if self.tables:
            return self.tables[0]
        inside = ", ".join(_PACKED.get(self.name, ARRAYS))
        official = _listed([remote.name for remote in self.remotes])
        return f"{official}, {_ALSO.get(self.name, '')}or {self.name}.npz ({inside})"

    def find(self, folder: Path) -> Source | None:
        """Find the set in a folder: <name>.npz or the official files, in its folder <name> or in itself.

        The folder <name> comes first, since MNIST's and Fashion-MNIST's files have the same names.
        """
        if self.tables:
            files = [place / name for place in (folder / self.name, folder) for name in self.tables]
            return next((Source([file], _no_arrays) for file in files if file.is_file()), None)
        official, elsewhere = _FINDERS[self.name]
        for place in (folder / self.name, folder, folder / elsewhere):
            if (file := place / f"{self.name}.npz").is_file():
                return npz.source(file)
            if source := official(place):
                return source
        return None


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    addresses, published = facts.pop("addresses", []), facts.pop("files", [])
    remotes = [
        Remote(file["name"], [address + file["name"] for address in addresses], file["size"], file["sha256"])
        for file in published
    ]
    facts.setdefault("class_names", tuple(shakespeare.ALPHABET) if name == "shakespeare" else ())
    return Entry(name, remotes=remotes, tables=_TABLES.get(name, ()), **facts)


def _no_arrays() -> Iterator[tuple[str, Blocks]]:
    """Give nothing: a table is read by what its columns mean."""
    return iter(())


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


_FACTS = tomllib.loads(files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8"))
KNOWN = {name: _entry(name, facts) for name, facts in _FACTS.items()}
CATALOGUE = {name: entry for name, entry in KNOWN.items() if entry.remotes}  # those on file
