"""A client's state on its own disk: what it keeps between rounds, and what a restart must find.

One safetensors file a run and client, replaced in one step. It holds the state before the client's last round and the
state after it, the round's number, and a digest of what was asked. A server that was killed before its checkpoint
asks for the same round again: the client then begins from the state before, and its answer is the same to the bit.

Beside it, in a folder shared/, lie the weights that the client was last evaluated with: with both it has its model.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from pflego.engines.flower.facts import Common
from pflego.engines.flower.records import MessageError
from pflego.federation import ClientId
from pflego.files import make_folder, read_tensors, write_tensors
from pflego.weights import Weights

_BEFORE, _AFTER = "before/", "after/"


class StateFile:
    """The file of one client in one run.

    Parameters
    ----------
    folder
        Where the operator wants it.
    run, client
        Whose it is: they make its name and are written in it, so that a file of another federation is refused.
    """

    def __init__(self, folder: Path, run: str, client: ClientId) -> None:
        self.path = folder / f"{run}.{quote(str(client), safe='')}.safetensors"
        self.shared_path = folder / "shared" / self.path.name
        self._facts = {"run": run, "client": str(client)}

    def begin(self, round: int, question: str) -> Weights | None:
        """Give the state that a round begins with. None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        tensors, last, asked = kept
        if round > last:
            return _part(tensors, _AFTER)
        if round < last:
            raise MessageError(
                f"round {round} was asked for after round {last}: this client does not go back. If the server was "
                f"restored from an older copy, start a new run there, or remove {self.path}"
            )
        if question != asked:
            raise MessageError(
                f"round {round} was asked for before, with other weights: this client does not repeat it. If the "
                f"server's folder was changed, start a new run there, or remove {self.path}"
            )
        return _part(tensors, _BEFORE)

    def as_of(self, round: int) -> Weights | None:
        """Give the state as it was after a round; None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        tensors, last, _ = kept
        return _part(tensors, _AFTER if last <= round else _BEFORE)

    def keep(self, round: int, question: str, before: Weights, after: Weights) -> None:
        """Write a round's states down. When this returns they are on disk."""
        make_folder(self.path.parent)
        tensors = {
            f"{part}{name}": t for part, ws in [(_BEFORE, before), (_AFTER, after)] for name, t in ws.items()
        }
        write_tensors(self.path, tensors, {**self._facts, "round": str(round), "question": question})

    def note(self, round: int, shared: Weights, common: Common) -> None:
        """Write down what everybody shares after a round."""
        make_folder(self.shared_path.parent)
        facts = {**self._facts, "round": str(round), "federation": json.dumps(asdict(common))}
        write_tensors(self.shared_path, shared, facts)

    def _read(self) -> tuple[Weights, int, str] | None:
        if not self.path.exists():
            return None
        tensors, facts = read_tensors(self.path)
        for name, value in self._facts.items():
            if facts.get(name) != value:
                raise MessageError(
                    f"{self.path} is of {name} {facts.get(name)!r}, not {value!r}: it was left as it is"
                )
        return tensors, int(facts["round"]), facts["question"]


def last_noted(folder: Path, client: ClientId) -> tuple[Weights, int, Common] | None:
    """Give what a client noted last of any run: what everybody shared, after which round, and in which federation."""
    name = f"{quote(str(client), safe='')}.safetensors"
    own = [file for file in (folder / "shared").glob("*.safetensors") if file.name.partition(".")[2] == name]
    if not own:
        return None
    tensors, facts = read_tensors(max(own, key=lambda file: file.stat().st_mtime))
    common = json.loads(facts["federation"])
    return tensors, int(facts["round"]), Common(**{**common, "classes": tuple(common["classes"])})


def _part(tensors: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
