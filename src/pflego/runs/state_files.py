"""The files of clients' states in a run's folder: which there are, and which of them holds whose newest state.

states/<t>.safetensors has the states that changed up to round t since the file before it; where several processes
train together each writes its own, <t>-<rank>.safetensors. A client's state is in the newest file that names it. A
checkpoint lists the files it needs with their digests, so that one that was lost or exchanged is noticed. Where most of
what lies there is out of date, all states are written anew into one file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from pflego.errors import FolderError
from pflego.files import read_checked, read_some, write_tensors
from pflego.weights import Weights, nbytes

_FEW = 8  # files that are let lie, whatever is in them
_STALE = 2.0  # times the bytes of all newest states that files may hold


@dataclass(frozen=True)
class Written:
    """A file of states that was written: its name and digest, and how many bytes of whose state are in it."""

    name: str
    digest: str
    clients: dict[str, int]


class StateFiles:
    """The states of a run's clients on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}  # of the files that somebody needs
        self._newest: dict[str, str] = {}  # the file with a client's newest state
        self._needed: Counter[str] = Counter()  # how many clients' newest states are in a file
        self._held: dict[str, int] = {}  # bytes of all states in it
        self._sizes: dict[str, int] = {}  # of a client's newest state
        self._own: set[str] = set()  # clients whose states this process writes

    @property
    def listed(self) -> dict[str, str]:
        """The files that hold somebody's newest state, with their digests."""
        return {name: digest for name, digest in sorted(self._digests.items()) if self._needed[name]}

    def load(
        self, listed: Mapping[str, str], *, keep: bool = True, only: Container[str] | None = None
    ) -> dict[str, Weights]:
        """Read and check the files that a checkpoint lists; give their states, by client.

        Parameters
        ----------
        keep
            Whether states are given at all, or left on disk to be read one by one.
        only
            The clients whose states are wanted, if not all are.
        """
        for known in (self._digests, self._newest, self._needed, self._held, self._sizes, self._own):
            known.clear()
        states: dict[str, Weights] = {}
        for name, digest in sorted(listed.items()):
            path = self.folder / name
            if Path(name).name != name or not path.is_file():
                raise FolderError(
                    f"{path} is missing: the checkpoint needs the states of clients that are in it"
                )
            found = read_checked(path)
            if found.digest != digest:
                raise FolderError(
                    f"{path} is not the file that the checkpoint was written with: it was left as it is"
                )
            own = split(found.tensors)
            self.track(_written(name, digest, own))
            self._own |= {client for client in own if only is None or client in only}
            if keep:
                states |= {client: state for client, state in own.items() if only is None or client in only}
        return states

    def read(self, client: str) -> Weights | None:
        """Read one client's newest state; None if it has none here."""
        return self._read([client]).get(client)

    def _read(self, clients: Iterable[str]) -> dict[str, Weights]:
        """Read the newest states of some clients, those that have one: every file once."""
        places: dict[str, set[str]] = defaultdict(set)
        for client in clients:
            if (name := self._newest.get(client)) is not None:
                places[name].add(_quoted(client))
        states: dict[str, Weights] = {}
        for name, wanted in sorted(places.items()):
            states |= split(read_some(self.folder / name, partial(_is_of, wanted)))
        return states

    def write(self, round_number: int, rank: int | None, changed: Mapping[str, Weights]) -> Written | None:
        """Write the states that changed up to a round; all that are this process's, where most files are stale."""
        named = {client: state for client, state in changed.items() if state}
        if not named:
            return None
        self._own |= named.keys()
        if self._stale():
            named = {**self._read(self._own - named.keys()), **named}
        name = f"{round_number:08}{'' if rank is None else f'-{rank}'}.safetensors"
        digest = write_tensors(self.folder / name, join(named), {"round": round_number}, private=True)
        return _written(name, digest, named)

    def add(self, round_number: int, client: str, state: Weights) -> Written:
        """Write the state of a client that joins after a round into a file of its own."""
        taken = sum(1 for _ in self.folder.glob(f"{round_number:08}+*.safetensors"))
        name = f"{round_number:08}+{taken}.safetensors"
        digest = write_tensors(
            self.folder / name, join({client: state}), {"round": round_number}, private=True
        )
        return _written(name, digest, {client: state})

    def track(self, written: Written) -> None:
        """Note that the newest states of some clients are in a file."""
        self._digests[written.name] = written.digest
        self._held[written.name] = sum(written.clients.values())
        for client, size in written.clients.items():
            if client in self._newest:
                self._needed[self._newest[client]] -= 1
            self._needed[written.name] += 1
            self._newest[client] = written.name
            self._sizes[client] = size

    def forget_spent(self) -> dict[str, str]:
        """Forget the files that hold nobody's newest state; give the others with their digests."""
        self._digests = self.listed
        self._held = {name: size for name, size in self._held.items() if name in self._digests}
        return self._digests

    def remove_all_but(self, needed: Collection[str]) -> None:
        """Remove the files that no checkpoint needs."""
        for path in self.files():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def remove_beyond(self, round_number: int) -> None:
        """Remove the files of later rounds."""
        for path in self.files():
            if int(path.name[:8]) > round_number:
                path.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """List the files of states."""
        return sorted(path for path in self.folder.glob("*.safetensors") if path.name[:8].isdigit())

    def _stale(self) -> bool:
        """Whether there are many files, and most of what they hold is out of date."""
        return len(self._held) >= _FEW and sum(self._held.values()) > _STALE * sum(self._sizes.values())


def join(parts: Mapping[str, Weights]) -> Weights:
    """Put several dictionaries of tensors into one, by names <part>/<name>."""
    return {f"{_quoted(part)}/{name}": t for part, weights in parts.items() for name, t in weights.items()}


def split(tensors: Weights) -> dict[str, Weights]:
    """Take apart what `join` put together."""
    parts: dict[str, Weights] = {}
    for place, tensor in tensors.items():
        part, _, name = place.partition("/")
        parts.setdefault(unquote(part), {})[name] = tensor
    return parts


def _written(name: str, digest: str, states: Mapping[str, Weights]) -> Written:
    return Written(name, digest, {client: nbytes(state) for client, state in states.items()})


def _is_of(clients: Container[str], name: str) -> bool:
    """Tell whether a tensor belongs to one of some clients, by their quoted ids."""
    return name.partition("/")[0] in clients


def _quoted(name: str) -> str:
    return quote(name, safe="")
