"""A run's folder: what was asked for, what has happened, and where to go on.

    settings.toml            everything, resolved: settings_file.py
    metrics.jsonl            the history, one line per round
    checkpoint/
      schema.json            how raw values became tensors, where files say it
      clients.jsonl          every client's result, one line per evaluation of everyone
      secret                 of a server of real clients, under privacy: what cohorts and noise are drawn from
      server.safetensors     round t, the shared weights, the server's optimiser, and the digests of all the rest
      states/                the clients' states: state_files.py
      kept/<t>.safetensors   earlier checkpoints to go back to, where they were asked for: server_files.py
    report.html

A checkpoint writes only what has changed. server.safetensors is replaced last, and its round number decides:
whatever a killed run wrote beyond it is dropped on resuming and done again. It lists the files of states it needs and
has a digest of the settings that may not change, so that nothing can be lost, exchanged or edited without notice. A
client that joins later has a file of its own, and then settings.toml is replaced, which decides in its turn.

Where several processes train together, each writes the states of its own clients, and the first of them everything
else, server.safetensors when all states are there. A run may go on with any number of processes. Whoever writes here
holds checkpoint/.lock, so that nobody else does.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_bytes

from filelock import FileLock

from pflego.codec import Decoded
from pflego.engines.peers import Peers
from pflego.errors import FolderError, UserError
from pflego.federation.roster import ClientId
from pflego.files import locked, make_folder, remove_drafts, write_atomically
from pflego.runs.history import Evaluations, HistoryFile, HistoryRow
from pflego.runs.record import RECORD, Tables, differences, joined_states
from pflego.runs.server_files import ServerFiles, round_of
from pflego.runs.settings_file import SettingsFile
from pflego.runs.state_files import StateFiles, join, split
from pflego.weights import Weights

_READINGS = 10  # attempts to read a checkpoint that is replaced meanwhile
_ENDING = 2.0  # seconds that a process before this one may take to end


class HistoryWarning(UserWarning):
    """A run was opened whose history is damaged."""


@dataclass
class Checkpoint:
    """Where to go on: everything as it was after a round."""

    round: int
    shared: Weights
    server: Weights
    states: dict[str, Weights] = field(default_factory=dict)  # by str(id)
    history: list[HistoryRow] = field(default_factory=list)
    evaluations: Evaluations = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)  # by str(id)
    silent: dict[str, int] = field(default_factory=dict)  # by str(id)

    def rejections(self, ids: Iterable[ClientId]) -> Counter[ClientId]:
        """Count how often each client's update was left out, by its id."""
        return _by_id(self.rejected, ids)

    def silences(self, ids: Iterable[ClientId]) -> Counter[ClientId]:
        """Count how often each client's reply did not arrive, by its id."""
        return _by_id(self.silent, ids)


def _counts(told: Mapping[object, object]) -> dict[str, int]:
    return {str(client): int(str(count)) for client, count in told.items()}


def _by_id(known: Mapping[str, int], ids: Iterable[ClientId]) -> Counter[ClientId]:
    return Counter({one: known[str(one)] for one in ids if str(one) in known} if known else {})


class RunFolder:
    """The files of one run, and who else works on it.

    Parameters
    ----------
    path
        The folder.
    peers
        The processes that train together.
    free
        The settings of [run] that may differ when the run is resumed.
    """

    def __init__(self, path: Path, peers: Peers = Peers(), *, free: Set[str] = frozenset()) -> None:
        inner = path / "checkpoint"
        self.path = path
        self.schema = inner / "schema.json"
        self._peers = peers
        self._free = free
        self._settings = SettingsFile(path / "settings.toml", self.schema, free)
        self._server = ServerFiles(inner)
        self._states = StateFiles(inner / "states")
        self._metrics = HistoryFile(path / "metrics.jsonl")
        self._clients = HistoryFile(inner / "clients.jsonl")

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        try:
            return self._settings.path.exists() or self._server.path.exists()
        except OSError as error:
            raise FolderError(f"{self.path} cannot be a folder: {error.strerror or error}") from error

    @property
    def writes(self) -> bool:
        """Whether it is this process that writes what all have in common."""
        return self._peers.first

    @contextmanager
    def held(self, *, wait: float = _ENDING) -> Iterator[None]:
        """Keep others from writing here, after this many seconds of waiting for them. A dead process holds nothing."""
        if not self._peers.first:
            yield
            return
        make_folder(self.path)
        make_folder(inner := self.schema.parent, private=True)
        lock = FileLock(inner / ".lock", is_singleton=True)  # who holds it may hold it again
        with locked(lock, wait=wait, what=f"the run in {self.path}", place=f"to the folder {self.path}"):
            if lock.lock_counter == 1:
                for folder in (self.path, inner, self._states.folder, self._server.earlier):
                    remove_drafts(folder)
            yield

    def begin(self, settings: Tables, *, schema: str | None = None) -> None:
        """Start a new run here; refuse if there is one already. `schema` says how raw values become tensors."""
        if self._peers.first:
            self._begin(settings, schema)
        self._peers.gather(None)

    def resume(
        self,
        settings: Tables,
        *,
        schema: str | None = None,
        keep_states: bool = True,
        only: Container[str] | None = None,
    ) -> Checkpoint | None:
        """Go on with the run here; refuse other settings, but for those that may change.

        None: it was stopped before its first checkpoint. keep_states and only are those of `load`.
        """
        checkpoint = self._resume(settings, schema, keep_states, only) if self._peers.first else None
        self._peers.gather(None)
        return checkpoint if self._peers.first else self.load(keep_states=keep_states, only=only)

    def go_back(self, round_number: int) -> None:
        """Make the checkpoint that was kept of an earlier round the run's present one."""
        with self.held():
            for history in (self._metrics, self._clients):
                history.check(round_number)
            self._server.go_back(round_number)
            self._forget_beyond(round_number)

    def kept(self) -> list[int]:
        """List the rounds whose checkpoints can be gone back to."""
        return self._server.kept()

    def secret(self, *, begins: bool = False) -> bytes | None:
        """Read what only the server of real clients may know, under privacy; None if there is none.

        begins: a run without rounds yet gets one, from the system's generator. It is on disk before it is used, so that
        a run that goes on draws the same cohorts and the same noise.
        """
        path = self.schema.parent / "secret"
        try:
            if path.exists():
                return path.read_bytes()
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {error.strerror or error}") from error
        if not begins:
            return None
        made = token_bytes(32)
        write_atomically(path, made, private=True)
        return made

    def settings(self) -> Tables:
        """Read settings.toml."""
        return self._settings.read()

    def load(
        self, *, keep_states: bool = True, only: Container[str] | None = None, salvage: bool = False
    ) -> Checkpoint | None:
        """Read the checkpoint and check all of it, without changing anything; also while somebody trains.

        Parameters
        ----------
        keep_states
            Whether the clients' states are read, or left on disk to be read one by one.
        only
            The clients whose states are wanted, if not all are.
        salvage
            Whether to go on, with a warning and without a history, where nothing but the history is damaged.
        """
        for _ in range(_READINGS):
            if (before := self._server.stamp()) is None:
                return None
            try:
                checkpoint = self._load(keep_states, only, salvage)
            except FolderError:
                if self._server.stamp() == before:
                    raise
            else:
                if self._server.stamp() == before:
                    return checkpoint
        raise FolderError(
            f"{self.path} changes faster than it can be read: try again when training has ended"
        )

    def check(self) -> dict[str, str | None]:
        """Look whether everything is whole: what is wrong with each part, None if nothing is."""
        found: dict[str, str | None] = {}

        def look(what: str, action: Callable[[], object]) -> object:
            try:
                result = action()
            except UserError as error:
                found[what] = str(error)
                return None
            found[what] = None
            return result

        look("settings", self.settings)
        if self._server.stamp() is None:
            found["checkpoint"] = "there is none yet"
            return found
        server = look("checkpoint", self._server.read)
        if isinstance(server, Decoded):
            if found["settings"] is None:
                look("settings", lambda: self._settings.check(server))
            look("states", lambda: self._states.load(self._listed(server), keep=False))
            look("history", lambda: self._metrics.read(round_of(server), server.facts.text("history")))
            look("evaluations", lambda: self._clients.read(round_of(server), server.facts.text("clients")))
        for number in self.kept():
            look(f"kept checkpoint of round {number}", partial(self._server.read, number))
        return found

    def join(self, client_id: ClientId, state: Weights, settings: Tables, *, round_number: int) -> Tables:
        """Add a client after the last round: its state in a file of its own, then the settings that name both.

        Gives the settings as they are then. They are replaced last, and decide: a state whose client they do not name
        is nobody's.
        """
        with self.held():
            checkpoint = self.load(keep_states=False)
            if checkpoint is None or checkpoint.round != round_number:
                raise FolderError(f"{self.path} has gone on since it was opened: open it again")
            if state:
                written = self._states.add(round_number, str(client_id), state)
                listed = {**joined_states(settings), written.name: written.digest}
                settings = {**settings, RECORD: {**settings[RECORD], "joined_states": listed}}
            self._settings.write(settings)
            return settings

    def append(self, row: HistoryRow, figures: Sequence[float | None] | None = None) -> None:
        """Add a round to metrics.jsonl, at once, and every client's figure, where they were evaluated."""
        if not self._peers.first:
            return
        if figures is not None:
            self._clients.append({"round": row["round"], "figures": list(figures)})
        self._metrics.append(row)

    def state(self, client_id: ClientId) -> Weights | None:
        """Read one client's newest state; None if it has none here."""
        return self._states.read(str(client_id))

    def save(
        self,
        round_number: int,
        shared: Weights,
        server: Weights,
        changed: Mapping[ClientId, Weights],
        *,
        rejected: Mapping[ClientId, int],
        silent: Mapping[ClientId, int],
        keep: int = 1,
    ) -> None:
        """Write a checkpoint: the states that changed since the last one, then the server's side.

        rejected: how often each client's update was left out so far. silent: how often its reply did not arrive. keep:
        how many checkpoints there are to go back to, this one included.
        """
        rank = self._peers.rank if self._peers.size > 1 else None
        own = self._states.write(round_number, rank, {str(one): state for one, state in changed.items()})
        for written in self._peers.gather(own):  # from here on all states are on disk
            if written is not None:
                self._states.track(written)
        listed = self._states.forget_spent()
        if not self._peers.first:
            return
        facts = {
            "round": round_number,
            "history": self._metrics.digest,
            "clients": self._clients.digest,
            "states": listed,
            "rejected": {str(client): count for client, count in rejected.items()},
            "silent": {str(client): count for client, count in silent.items()},
            **self._settings.facts,
        }
        self._server.write(join({"shared": shared, "server": server}), facts)
        needed = set(listed)
        for number in self._server.keep(round_number, keep):
            with suppress(UserError):  # one that is damaged is of no use, and no reason to stop
                needed |= self._listed(self._server.read(number)).keys()
        self._states.remove_all_but(needed)

    def _begin(self, settings: Tables, schema: str | None) -> None:
        if self.exists:
            raise FolderError(
                f"{self.path} already holds a run: resume it (resume=True, --resume) or choose another folder"
            )
        make_folder(self._states.folder, private=True)
        self._forget_beyond(0)
        self._settings.write(settings, schema)

    def _resume(
        self, settings: Tables, schema: str | None, keep_states: bool, only: Container[str] | None
    ) -> Checkpoint | None:
        if not self.exists:
            self._begin(settings, schema)
            return None
        old = self.settings()
        if words := differences(old, settings, but=self._free):
            raise UserError(f"{self.path} was started with other settings: {'; '.join(words)}")
        checkpoint = self.load(keep_states=keep_states, only=only)
        if checkpoint is None:
            self._check_none_was_lost(old)
        rounds = settings["run"].get("rounds")
        if checkpoint is not None and isinstance(rounds, int) and checkpoint.round > rounds:
            raise UserError(
                f"{self.path} is already at round {checkpoint.round}, past the {rounds} asked for"
            )
        make_folder(self._states.folder, private=True)
        self._forget_beyond(0 if checkpoint is None else checkpoint.round)
        changed = {key: value for key, value in settings["run"].items() if key in self._free}
        self._settings.write({**old, "run": {**old["run"], **changed}}, schema)
        return checkpoint

    def _check_none_was_lost(self, settings: Tables) -> None:
        """Refuse to begin anew where there was a checkpoint: the history or a copy of it tells."""
        every, kept = settings["run"].get("checkpoint_every"), self.kept()
        if kept or (isinstance(every, int) and self._metrics.rounds() > every):
            copies = f"go back to one that was kept (--back-to {kept[-1]})" if kept else "bring it back"
            raise FolderError(
                f"{self._server.path} is gone, and the run was past its first checkpoint: {copies}, or remove the "
                f"folder to begin anew"
            )

    def _load(self, keep_states: bool, only: Container[str] | None, salvage: bool) -> Checkpoint:
        found = self._server.read()
        number = round_of(found)
        self._settings.check(found)
        states = self._states.load(self._listed(found), keep=keep_states, only=only)
        parts = split(found.tensors)
        checkpoint = Checkpoint(
            number,
            parts.get("shared", {}),
            parts.get("server", {}),
            states,
            rejected=_counts(found.facts.one("rejected", (dict,))),
            silent=_counts(found.facts.one("silent", (dict,))),
        )
        try:
            checkpoint.history = self._metrics.read(number, found.facts.text("history"))
            evaluated = self._clients.read(number, found.facts.text("clients"))
            checkpoint.evaluations = {row["round"]: row["figures"] for row in evaluated}
        except FolderError as error:
            if not salvage:
                raise
            warnings.warn(f"opened without its history: {error}", HistoryWarning, stacklevel=2)
        return checkpoint

    def _listed(self, found: Decoded) -> dict[str, str]:
        """Name the files of states that a checkpoint needs, and those of clients that joined since, by digest."""
        listed = found.facts.one("states", (dict,))
        if not all(isinstance(name, str) and isinstance(digest, str) for name, digest in listed.items()):
            raise FolderError(f"{self._server.path} is no run's checkpoint and was left as it is")
        joined = joined_states(self.settings()) if self._settings.path.exists() else {}
        present = {name: digest for name, digest in joined.items() if int(name[:8]) >= round_of(found)}
        return {**present, **listed}

    def _forget_beyond(self, round_number: int) -> None:
        self._states.remove_beyond(round_number)
        self._metrics.cut(round_number)
        self._clients.cut(round_number)
