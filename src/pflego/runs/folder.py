"""A run's folder: what was asked for, what has happened, and where to go on.

    settings.toml            everything, resolved
    metrics.jsonl            the history, one line per round
    checkpoint/
      schema.json            how raw values became tensors, where files say it
      clients.jsonl          every client's result, one line per evaluation of everyone
      server.safetensors     round t, the shared weights, the server's optimiser, and the digests of all the rest
      states/                the clients' states: state_files.py
      kept/<t>.safetensors   earlier checkpoints to go back to, where they were asked for
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

import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from pflego.codec import Decoded, MessageError
from pflego.engines.peers import Peers
from pflego.errors import FolderError, UserError
from pflego.federation.roster import ClientId
from pflego.files import make_folder, read_checked, remove_drafts, write_atomically, write_tensors
from pflego.runs.history import Evaluations, HistoryFile, HistoryRow
from pflego.runs.record import (
    RECORD,
    TABLES,
    Tables,
    as_toml,
    differences,
    digest_of_bytes,
    file_digest,
    joined_states,
    settings_digest,
)
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
        self.path = path
        self.schema = path / "checkpoint" / "schema.json"
        self._peers = peers
        self._free = free
        self._server = path / "checkpoint" / "server.safetensors"
        self._kept = path / "checkpoint" / "kept"
        self._states = StateFiles(path / "checkpoint" / "states")
        self._metrics = HistoryFile(path / "metrics.jsonl")
        self._clients = HistoryFile(path / "checkpoint" / "clients.jsonl")
        self._settings_digest = ""

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        try:
            return (self.path / "settings.toml").exists() or self._server.exists()
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
        make_folder(self._server.parent, private=True)
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
            if lock.lock_counter == 1:
                for folder in (self.path, self._server.parent, self._states.folder, self._kept):
                    remove_drafts(folder)
            yield
        finally:
            lock.release()

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
            kept = self._kept / f"{round_number:08}.safetensors"
            if not kept.is_file():
                known = ", ".join(str(number) for number in self.kept()) or "none"
                raise FolderError(
                    f"{self.path} has no checkpoint of round {round_number} to go back to; kept are: {known}"
                )
            read_checked(kept)
            write_atomically(self._server, kept.read_bytes(), private=True)
            for path in self._kept.glob("*.safetensors"):
                if int(path.stem) > round_number:
                    path.unlink()
            self._forget_beyond(round_number)

    def kept(self) -> list[int]:
        """List the rounds whose checkpoints can be gone back to."""
        return sorted(int(path.stem) for path in self._kept.glob("*.safetensors") if path.stem.isdigit())

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
            if (before := self._stamp()) is None:
                return None
            try:
                checkpoint = self._load(keep_states, only, salvage)
            except FolderError:
                if self._stamp() == before:
                    raise
            else:
                if self._stamp() == before:
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
        if self._stamp() is None:
            found["checkpoint"] = "there is none yet"
            return found
        server = look("checkpoint", lambda: read_checked(self._server))
        if isinstance(server, Decoded):
            if found["settings"] is None:
                look("settings", lambda: self._check_settings(server))
            look("states", lambda: self._states.load(self._listed(server), keep=False))
            look("history", lambda: self._metrics.read(_round(server), server.facts.text("history")))
            look("evaluations", lambda: self._clients.read(_round(server), server.facts.text("clients")))
        for number in self.kept():
            path = self._kept / f"{number:08}.safetensors"
            look(f"kept checkpoint of round {number}", lambda path=path: read_checked(path))  # type: ignore[misc]
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
            self._write_settings(settings)
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
            "settings": self._settings_digest,
            "free": sorted(self._free),
        }
        write_tensors(self._server, join({"shared": shared, "server": server}), facts, private=True)
        self._states.remove_all_but({*listed, *self._keep(round_number, keep)})

    def _keep(self, round_number: int, keep: int) -> set[str]:
        """Keep this checkpoint beside the latest others, if any; give the files of states that those need."""
        numbers = self.kept()
        if keep > 1:
            make_folder(self._kept, private=True)
            write_atomically(
                self._kept / f"{round_number:08}.safetensors", self._server.read_bytes(), private=True
            )
            numbers = sorted({*numbers, round_number})
        needed: set[str] = set()
        for number in numbers[:-keep] if keep > 1 else numbers:
            (self._kept / f"{number:08}.safetensors").unlink(missing_ok=True)
        for number in numbers[-keep:] if keep > 1 else []:
            with suppress(UserError):  # one that is damaged is of no use, and no reason to stop
                needed |= self._listed(read_checked(self._kept / f"{number:08}.safetensors")).keys()
        return needed

    def _begin(self, settings: Tables, schema: str | None) -> None:
        if self.exists:
            raise FolderError(
                f"{self.path} already holds a run: resume it (resume=True, --resume) or choose another folder"
            )
        make_folder(self._states.folder, private=True)
        self._forget_beyond(0)
        self._write_settings(settings, schema)

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
        rounds = settings["run"].get("rounds")
        if checkpoint is not None and isinstance(rounds, int) and checkpoint.round > rounds:
            raise UserError(
                f"{self.path} is already at round {checkpoint.round}, past the {rounds} asked for"
            )
        make_folder(self._states.folder, private=True)
        self._forget_beyond(0 if checkpoint is None else checkpoint.round)
        changed = {key: value for key, value in settings["run"].items() if key in self._free}
        self._write_settings({**old, "run": {**old["run"], **changed}}, schema)
        return checkpoint

    def _stamp(self) -> tuple[int, int] | None:
        """Tell one server.safetensors from the next that replaces it; None where there is none."""
        try:
            facts = self._server.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FolderError(f"{self._server} cannot be read: {error.strerror or error}") from error
        return facts.st_ino, facts.st_mtime_ns

    def _load(self, keep_states: bool, only: Container[str] | None, salvage: bool) -> Checkpoint:
        found = read_checked(self._server)
        number = _round(found)
        self._check_settings(found)
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
            raise FolderError(f"{self._server} is no run's checkpoint and was left as it is")
        joined = joined_states(self.settings()) if (self.path / "settings.toml").exists() else {}
        present = {name: digest for name, digest in joined.items() if int(name[:8]) >= _round(found)}
        return {**present, **listed}

    def _check_settings(self, found: Decoded) -> None:
        """Refuse settings that were changed by hand since the checkpoint."""
        free = {str(name) for name in found.facts.one("free", (list,))}
        tables = self.settings()
        if settings_digest(tables, free=free) != found.facts.text("settings"):
            raise FolderError(
                f"{self.path / 'settings.toml'} was changed since the checkpoint was written: put it back as it was, "
                "or begin a new run with it in another folder (pflego run settings.toml --out FOLDER)"
            )
        good = tables[RECORD].get("schema")
        if isinstance(good, list) and file_digest(self.schema) not in good:
            raise FolderError(
                f"{self.schema} is not the file that the run was made with: it was left as it is"
            )

    def _forget_beyond(self, round_number: int) -> None:
        self._states.remove_beyond(round_number)
        self._metrics.cut(round_number)
        self._clients.cut(round_number)

    def _write_settings(self, settings: Tables, schema: str | None = None) -> None:
        """Write settings.toml, and schema.json if it is new; the digests of both old and new are good in between."""
        self._settings_digest = settings_digest(settings, free=self._free)
        content = None if schema is None else schema.encode()
        good = {file_digest(self.schema), None if content is None else digest_of_bytes(content)} - {None}
        if good:
            settings = {**settings, RECORD: {**settings[RECORD], "schema": sorted(map(str, good))}}
        write_atomically(self.path / "settings.toml", as_toml(settings).encode())
        if content is not None and file_digest(self.schema) != digest_of_bytes(content):
            write_atomically(self.schema, content, private=True)


def _round(found: Decoded) -> int:
    try:
        return found.facts.whole("round", least=0)
    except MessageError as error:
        raise FolderError(f"this is no run's checkpoint: {error}") from error
