"""What a site's operator agreed to: a server that asks for anything else, or for more, is refused.

Every answer is noted beside the state, in answers.<client>.jsonl: when, to which run and round, and what was sent, by
name and norm. The operator can read it, and the limits are counted from it.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from flwr.common.config import flatten_dict

from pflego.codec import MessageError, some
from pflego.declaration import Count, Whole, check_fields
from pflego.errors import FolderError, SettingError
from pflego.federation.roster import ClientId
from pflego.files import make_folder
from pflego.weights import Weights, norm

_ROUNDS = 10_000  # where the operator named neither a number nor an app


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the operator of a site agrees to.

    Parameters
    ----------
    accepts
        The folder of the app whose method, model and settings were accepted; others are refused. Empty: any.
    allow
        Methods and models outside of pflego that may be used, as module:Name, separated by commas.
    runs
        How many runs are taken part in.
    rounds
        How many rounds a run may have; 0: as many as the accepted app says, or 10000.
    repeats
        How often the same question is answered: once, and again after a crash.
    peers
        A folder with the public keys of all clients, <client-id>.pub: where sums are signed, only they are believed.
    identity
        The file of this site's private key, to sign with; pflego deploy site sets it.
    """

    accepts: str = ""
    allow: str = ""
    runs: Whole = 1
    rounds: Count = 0
    repeats: Whole = 5
    peers: str = ""
    identity: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def allowed(self) -> list[str]:
        """The names in `allow`."""
        return [name for part in self.allow.split(",") if (name := part.strip())]

    @property
    def accepted(self) -> dict[str, object] | None:
        """The run config of the accepted app; None: the operator named none."""
        return run_config(Path(self.accepts).expanduser()) if self.accepts else None

    @property
    def most_rounds(self) -> int:
        """The last round that is answered."""
        accepted = self.accepted or {}
        said = accepted.get("rounds", accepted.get("run.rounds"))  # it may stand in a table
        return self.rounds or (said if isinstance(said, int) else _ROUNDS)


@dataclass(frozen=True)
class Question:
    """What a server asks for, but for the weights."""

    run: str
    kind: str  # train or evaluate, and the stage of a secure sum
    round: int
    part: int = 0  # the exchange of a round; 1 for an evaluation that adapts


class Answers:
    """The log of a client's answers.

    Parameters
    ----------
    folder
        Where the client's states are.
    client
        Whose they are.
    """

    def __init__(self, folder: Path, client: ClientId) -> None:
        self.path = folder / f"answers.{quote(str(client), safe='')}.jsonl"

    def check(self, question: Question, terms: Terms) -> None:
        """Refuse a question that the operator has not agreed to."""
        entries = self.entries()
        known = list(dict.fromkeys(str(entry["run"]) for entry in entries if "run" in entry))
        if question.run not in known and len(known) >= terms.runs:
            raise MessageError(
                f"this site takes part in {terms.runs} runs, {some(known)}, and not in {question.run!r}: its "
                f"operator can allow another with runs={len(known) + 1} in the node config"
            )
        if question.round > (most := terms.most_rounds):
            raise MessageError(
                f"this site's operator agreed to {most} rounds, and not to round {question.round}"
            )
        given = sum(_is(entry, question) for entry in entries)
        if given >= terms.repeats:
            raise MessageError(
                f"round {question.round} was answered {given} times ({question.kind}), and is not answered again"
            )

    def note(self, question: Question, sent: Weights, *, kept: bool) -> None:
        """Write down what is about to be sent, and whether a new state was kept."""
        self._write(
            {
                "run": question.run,
                "kind": question.kind,
                "round": question.round,
                "part": question.part,
                "kept": kept,
                "norms": {name: float(f"{norm({name: tensor}):.6g}") for name, tensor in sent.items()},
            }
        )

    def given(self, question: Question) -> bool:
        """Tell whether a question was answered."""
        return any(_is(entry, question) for entry in self.entries())

    def introduced(self, facts: Mapping[str, object]) -> None:
        """Write down what was said to a server that asked who is here."""
        self._write({"kind": "query", "facts": facts})

    def has_kept(self, run: str) -> bool:
        """Tell whether a state was kept in a run."""
        return any(entry.get("run") == run and entry.get("kept") for entry in self.entries())

    def entries(self) -> list[dict[str, object]]:
        """Read all entries; a last line that a crash has cut off is left out."""
        try:
            lines = self.path.read_text().split("\n")
            return [json.loads(line) for line in lines[:-1] if line]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise FolderError(f"{self.path} cannot be read and was left as it is: {error}") from error

    def _write(self, entry: Mapping[str, object]) -> None:
        make_folder(self.path.parent, private=True)
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}) + "\n"
        try:
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                whole = file.read()
                file.seek(whole.rfind(b"\n") + 1)  # over a line that a crash has cut off
                file.truncate()
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FolderError(f"cannot write {self.path}: {error.strerror or error}") from error


def run_config(app: Path) -> dict[str, object]:
    """Read the run config in the folder of a Flower app."""
    path = app / "pyproject.toml"
    try:
        settings = tomllib.loads(path.read_text())
        return dict(flatten_dict(settings["tool"]["flwr"]["app"].get("config", {})))
    except OSError as error:
        raise SettingError(
            f"{app} is no folder of a Flower app: cannot read {path}: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} is not that of a Flower app: {error}") from error


def _is(entry: Mapping[str, object], question: Question) -> bool:
    return all(entry.get(name) == value for name, value in vars(question).items())
