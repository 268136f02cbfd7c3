"""A run's folder: what was asked for, what has happened, and where to go on.

    settings.toml            everything, resolved
    metrics.jsonl            the history, one line per round
    checkpoint/
      schema.json            how raw values became tensors, where files say it
      clients.jsonl          every client's figure, one line per evaluation of everyone
      server.safetensors     round t, the shared weights, the server's optimiser
      states/<t>.safetensors the states of the clients that changed in the rounds up to t since the file before
    report.html

A checkpoint writes only what has changed. server.safetensors is replaced last, and its round number decides:
whatever a killed run wrote beyond it is dropped on resuming and done again. A client's state is in the newest
file that names it; a file no client needs any more is deleted. A client that joins later changes the newest file of
states and then settings.toml, which decides in its turn.

Where several processes train together, each writes the states of its own clients, states/<t>-<rank>.safetensors, and
the first of them everything else, server.safetensors when all states are there. A run may go on with any number of
processes. Whoever writes here holds checkpoint/.lock, so that nobody else does.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from filelock import FileLock, Timeout

from pflego.engines.peers import Peers
from pflego.errors import FolderError, UserError
from pflego.federation.roster import ClientId
from pflego.files import make_folder, read_some, read_tensors, write_atomically, write_tensors
from pflego.runs.history import Evaluations, HistoryFile, HistoryRow
from pflego.runs.record import RECORD, TABLES, Tables, as_toml, differences
from pflego.weights import Weights

_READINGS = 10  # attempts to read a checkpoint that is replaced meanwhile
_ENDING = 2.0  # seconds that a process before this one may take to end


@dataclass
class Checkpoint:
    """Where to go on: everything as it was after a round."""

    round: int
    shared: Weights
    server: Weights
    states: dict[str, Weights]  # by str(id)
    history: list[HistoryRow]
    evaluations: Evaluations


class RunFolder:
    """The files of one run, and who else works on it."""

    def __init__(self, path: Path, peers: Peers = Peers()) -> None:
        self.path = path
        self._peers = peers
        self._server = path / "checkpoint" / "server.safetensors"
        self._states = path / "checkpoint" / "states"
        self.schema = path / "checkpoint" / "schema.json"
        self._metrics = HistoryFile(path / "metrics.jsonl")
        self._clients = HistoryFile(path / "checkpoint" / "clients.jsonl")
        self._newest: dict[str, Path] = {}  # the file with a client's newest state
        self._needed: Counter[Path] = Counter()  # how many clients need a file

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        try:
            return (self.path / "settings.toml").exists() or self._server.exists()
        except OSError as error:
            raise FolderError(f"{self.path} cannot be a folder: {error.strerror or error}") from error

    @contextmanager
    def held(self, *, wait: float = _ENDING) -> Iterator[None]:
        """Keep others from writing here, after this many seconds of waiting for them. A dead process holds nothing."""
        if not self._peers.first:
            yield
            return
        make_folder(self._server.parent)
        lock = FileLock(self._server.with_name(".lock"), is_singleton=True)  # who holds it may hold it again
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            raise FolderError(
                f"another process is at work on the run in {self.path}: wait until it is done, or stop it"
            ) from None
        except OSError as error:
            raise FolderError(f"cannot write to the folder {self.path}: {error.strerror or error}") from error
        try:
            yield
        finally:
            lock.release()

    @property
    def writes(self) -> bool:
        """Whether it is this process that writes what all have in common."""
        return self._peers.first

    def begin(self, settings: Tables) -> None:
        """Start a new run here; refuse if there is one already."""
        if self._peers.first:
            self._begin(settings)
        self._peers.gather(None)

    def resume(
        self,
        settings: Tables,
        *,
        may_change: Set[str] = frozenset(),
        keep_states: bool = True,
        only: Container[str] | None = None,
    ) -> Checkpoint | None:
        """Go on with the run here; refuse other settings, but for those that may change.

        None: it was stopped before its first checkpoint. keep_states and only are those of `load`.
        """
        checkpoint = self._resume(settings, may_change, keep_states, only) if self._peers.first else None
        self._peers.gather(None)
        return checkpoint if self._peers.first else self.load(keep_states=keep_states, only=only)

    def _begin(self, settings: Tables) -> None:
        if self.exists:
            raise FolderError(
                f"{self.path} already holds a run: resume it (resume=True, --resume) or choose another folder"
            )
        make_folder(self.path)
        make_folder(self._states)
        self._forget_beyond(0)
        self._write_settings(settings)

    def _resume(
        self, settings: Tables, may_change: Set[str], keep_states: bool, only: Container[str] | None
    ) -> Checkpoint | None:
        if not self.exists:
            self._begin(settings)
            return None
        old = self.settings()
        if words := differences(old, settings, but=may_change):
            raise UserError(f"{self.path} was started with other settings: {'; '.join(words)}")
        checkpoint = self.load(keep_states=keep_states, only=only)
        rounds = settings["run"].get("rounds")
        if checkpoint is not None and isinstance(rounds, int) and checkpoint.round > rounds:
            raise UserError(
                f"{self.path} is already at round {checkpoint.round}, past the {rounds} asked for"
            )
        make_folder(self._states)
        self._forget_beyond(0 if checkpoint is None else checkpoint.round)
        changed = {key: value for key, value in settings["run"].items() if key in may_change}
        self._write_settings({**old, "run": {**old["run"], **changed}})
        return checkpoint

    def settings(self) -> Tables:
        """Read settings.toml."""
        path = self.path / "settings.toml"
        try:
            tables: Tables = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FolderError(f"{path} cannot be read and was left as it is: {error}") from error
        if not all(isinstance(tables.get(table), dict) for table in (*TABLES, RECORD)):
            raise FolderError(
                f"{path} was not written by this version of pflego and was left as it is: it lacks the tables "
                f"{', '.join((*TABLES, RECORD))}"
            )
        return tables

    def load(self, *, keep_states: bool = True, only: Container[str] | None = None) -> Checkpoint | None:
        """Read the checkpoint and check all of it, without changing anything; also while somebody trains.

        keep_states=False leaves the clients' states on disk, to be read one by one; `only` names the clients whose
        states are wanted, if not all are.
        """
        for _ in range(_READINGS):
            if (before := self._stamp()) is None:
                return None
            try:
                checkpoint = self._load(keep_states, only)
            except FolderError:
                if self._stamp() == before:
                    raise
            else:
                if self._stamp() == before:
                    return checkpoint
        raise FolderError(
            f"{self.path} changes faster than it can be read: try again when training has ended"
        )

    def _stamp(self) -> tuple[int, int] | None:
        """Return a stamp that differs whenever server.safetensors was replaced."""
        try:
            facts = self._server.stat()
        except FileNotFoundError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def _load(self, keep_states: bool, only: Container[str] | None) -> Checkpoint:
        tensors, facts = read_tensors(self._server)
        if not isinstance(number := facts.facts.get("round"), int):
            raise FolderError(f"{self._server} is no run's checkpoint and was left as it is")
        states: dict[str, Weights] = {}
        self._newest, self._needed = {}, Counter()
        for file in self._state_files():
            if _written_in(file) <= number:
                try:
                    changed = _split(read_tensors(file)[0])
                except FolderError:
                    if file.exists():
                        raise
                    continue  # by now nobody needs it any more
                if keep_states:
                    states.update(
                        {
                            client_id: own
                            for client_id, own in changed.items()
                            if only is None or client_id in only
                        }
                    )
                self._track(changed, file)
        parts = _split(tensors)
        history: list[HistoryRow] = self._metrics.read(number, facts.text("history"))
        evaluated = self._clients.read(number, facts.text("clients"))
        return Checkpoint(
            number,
            parts.get("shared", {}),
            parts.get("server", {}),
            states,
            history,
            {row["round"]: row["figures"] for row in evaluated},
        )

    def join(self, client_id: ClientId, state: Weights, settings: Tables, *, round_number: int) -> None:
        """Add a client after the last round: its state beside those written then, then the settings that name it.

        The settings are replaced last, and decide: a state whose client they do not name is nobody's.
        """
        with self.held():
            checkpoint = self.load(keep_states=False)
            if checkpoint is None or checkpoint.round != round_number:
                raise FolderError(f"{self.path} has gone on since it was opened: open it again")
            if state:
                file = self._state_file(round_number)
                others = _split(read_tensors(file)[0]) if file.exists() else {}
                write_tensors(file, _join({**others, str(client_id): state}), {"round": round_number})
            self._write_settings(settings)

    def append(self, row: HistoryRow, figures: Sequence[float | None] | None = None) -> None:
        """Add a round to metrics.jsonl, at once, and every client's figure, where they were evaluated."""
        if not self._peers.first:
            return
        if figures is not None:
            self._clients.append({"round": row["round"], "figures": list(figures)})
        self._metrics.append(row)

    def state(self, client_id: ClientId) -> Weights | None:
        """Read one client's newest state; None if it has none here."""
        if (file := self._newest.get(str(client_id))) is None:
            return None
        return read_some(file, f"{_quoted(str(client_id))}/")

    def save(
        self, round_number: int, shared: Weights, server: Weights, changed: Mapping[ClientId, Weights]
    ) -> None:
        """Write a checkpoint: the states that changed since the last one, then the server's side."""
        named = {str(client_id): state for client_id, state in changed.items() if state}
        file = self._state_file(round_number, self._peers.rank if self._peers.size > 1 else None)
        if named:
            write_tensors(file, _join(named), {"round": round_number})
        written = self._peers.gather((file.name, list(named)))  # from here on all states are on disk
        if self._peers.first:
            facts = {"round": round_number, "history": self._metrics.digest, "clients": self._clients.digest}
            write_tensors(self._server, _join({"shared": shared, "server": server}), facts)
        for name, ids in written:
            for spent in self._track(ids, self._states / name):
                if self._peers.first:
                    spent.unlink(missing_ok=True)

    def _track(self, changed: Iterable[str], file: Path) -> set[Path]:
        """Note that the newest states of some are in a file; give the files that nobody needs any more."""
        left = set()
        for client_id in changed:
            if client_id in self._newest:
                left.add(self._newest[client_id])
                self._needed[self._newest[client_id]] -= 1
            self._newest[client_id] = file
            self._needed[file] += 1
        return {old for old in left if self._needed[old] == 0}

    def _state_file(self, round_number: int, rank: int | None = None) -> Path:
        return self._states / f"{round_number:08}{'' if rank is None else f'-{rank}'}.safetensors"

    def _state_files(self) -> list[Path]:
        files = self._states.glob("[0-9]*.safetensors")
        return sorted(file for file in files if file.stem.replace("-", "").isdigit())

    def _forget_beyond(self, round_number: int) -> None:
        for file in self._state_files():
            if _written_in(file) > round_number:
                file.unlink()
        self._metrics.cut(round_number)
        self._clients.cut(round_number)

    def _write_settings(self, settings: Tables) -> None:
        write_atomically(self.path / "settings.toml", as_toml(settings).encode())


def _written_in(file: Path) -> int:
    """Return the round of a file of states."""
    return int(file.stem.partition("-")[0])


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _join(parts: Mapping[str, Weights]) -> Weights:
    return {f"{_quoted(part)}/{name}": t for part, weights in parts.items() for name, t in weights.items()}


def _split(tensors: Weights) -> dict[str, Weights]:
    parts: dict[str, Weights] = {}
    for place, tensor in tensors.items():
        part, _, name = place.partition("/")
        parts.setdefault(unquote(part), {})[name] = tensor
    return parts
