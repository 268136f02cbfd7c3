"""What a site's operator agreed to: a server that asks for anything else, or for more, is refused.

The kit is the agreement: method, model and every setting of theirs must be as it says. Every answer is noted beside the
state, in answers.<client>.jsonl: when, to which run and round, and what was sent, by name and norm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from pflego_light.arrays import Weights, norm
from pflego_light.codec import some
from pflego_light.data import ClientId
from pflego_light.errors import FolderError, MessageError, SettingError
from pflego_light.files import make_folder
from pflego_light.kit import Kit

_LONGEST_ID = 80  # characters: ids are parts of file names
_TITLES = {"model.name": "model", "model.seed": "model_seed", "method.name": "algorithm"}
_FULL = ("privacy", "compression", "secure")  # what only full clients do


@dataclass(frozen=True)
class Site:
    """What the node config of a SuperNode says."""

    id: ClientId
    data: str
    state: Path
    runs: int = 1  # how many are taken part in
    rounds: int = 10_000  # that a run may have
    repeats: int = 5  # how often the same question is answered: once, and again after a crash

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Site:
        """Check a node config."""
        given = {name.replace("-", "_"): value for name, value in config.items()}
        own = {"client_id", "data", "state", "runs", "rounds", "repeats"}
        given.pop("device", None)  # a light client has one
        if unknown := sorted(given.keys() - own):
            raise SettingError(
                f"a light site has no node setting {unknown[0]!r}: it has {', '.join(sorted(own))}"
            )
        for name in ("client_id", "data", "state"):
            if name not in given:
                raise SettingError(
                    f'the node config has no {name}: --node-config \'client-id="..." data="..." state="..."\''
                )
        client = given.pop("client_id")
        fits = isinstance(client, str) and 0 < len(client) <= _LONGEST_ID and client.isprintable()
        if not fits and (isinstance(client, bool) or not isinstance(client, int)):
            raise SettingError(
                f"client-id must be a whole number or 1 to {_LONGEST_ID} characters, not {client!r}"
            )
        assert isinstance(client, str | int)
        data, state = str(given.pop("data")), Path(str(given.pop("state"))).expanduser()
        limits: dict[str, int] = {}
        for name, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError(f"{name} must be a whole number above 0, not {value!r}")
            limits[name] = value
        return cls(client, data, state, **limits)


def check_run_config(kit: Kit, config: Mapping[str, object]) -> None:
    """Refuse a run that asks for another method, model or setting than the kit was made for."""
    settings, unsaid = kit.spec["settings"], kit.spec["unsaid"]
    asked = dict(unsaid)
    for spelled, value in config.items():
        name = spelled.replace("-", "_")
        name = _TITLES.get(name, name)
        for table in ("method.", "model.", "run."):
            name = name.removeprefix(table)
        if name in _FULL and value:
            raise SettingError(
                f"the server asks for {name}, which takes full clients: a light one does without"
            )
        if name in settings:
            asked[name] = value
    for name, agreed in settings.items():
        if asked.get(name) != agreed:
            raise SettingError(
                f"the server asks for {name} = {asked.get(name)!r}, and this site's kit was made for {agreed!r}"
            )


@dataclass(frozen=True)
class Question:
    """What a server asks for, but for the weights."""

    run: str
    kind: str  # train or evaluate
    round: int
    part: int = 0  # 1 for an evaluation that adapts


class Answers:
    """The log of a client's answers."""

    def __init__(self, folder: Path, client: ClientId) -> None:
        self.path = folder / f"answers.{quote(str(client), safe='')}.jsonl"

    def check(self, question: Question, site: Site) -> None:
        """Refuse a question that the operator has not agreed to."""
        entries = self.entries()
        known = list(dict.fromkeys(str(entry["run"]) for entry in entries if "run" in entry))
        if question.run not in known and len(known) >= site.runs:
            raise MessageError(
                f"this site takes part in {site.runs} runs, {some(known)}, and not in {question.run!r}: its "
                f"operator can allow another with runs={len(known) + 1} in the node config"
            )
        if question.round > site.rounds:
            raise MessageError(
                f"this site's operator agreed to {site.rounds} rounds, not to round {question.round}"
            )
        given = sum(all(entry.get(n) == value for n, value in vars(question).items()) for entry in entries)
        if given >= site.repeats:
            raise MessageError(
                f"round {question.round} was answered {given} times ({question.kind}), and is not answered again"
            )

    def note(self, question: Question, sent: Weights, *, kept: bool) -> None:
        """Write down what is about to be sent, and whether a new state was kept."""
        norms = {name: float(f"{norm({name: array}):.6g}") for name, array in sent.items()}
        self._write({**vars(question), "kept": kept, "norms": norms})

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
        make_folder(self.path.parent)
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
