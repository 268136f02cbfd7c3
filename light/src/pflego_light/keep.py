"""A client's state on its own disk: what it keeps between rounds, and what a restart must find.

One file per run and client, replaced in one step, of the same format as a full client's. It holds the state before the
client's last round and the one after it, the round's number, and a digest of what was asked. A server that was killed
before its checkpoint asks for the same round again: the client then begins from the state before, and its answer is the
same to the bit. Beside it, in a folder shared/, lie the weights that the client was last evaluated with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from pflego_light.arrays import Weights
from pflego_light.codec import Decoded
from pflego_light.data import ClientId
from pflego_light.errors import MessageError
from pflego_light.files import make_folder, read_arrays, write_arrays
from pflego_light.round import Federation, Round

_BEFORE, _AFTER = "0", "after"


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

    def begin(self, now: Round, question: str) -> Weights | None:
        """Give the state that a round begins with. None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        last, asked = kept.facts.whole("round", least=1), kept.facts.one("questions", (list,))
        if now.number > last:
            return _part(kept.tensors, _AFTER)
        if now.number < last:
            raise MessageError(
                f"round {now.number} was asked for after round {last}: this client does not go back. If the server was "
                f"restored from an older copy, start a new run there, or remove {self.path}"
            )
        if [question] != asked:
            raise MessageError(
                f"round {now.number} was asked for before, with other weights: this client does not repeat it. If the "
                f"server's folder was changed, start a new run there, or remove {self.path}"
            )
        return _part(kept.tensors, _BEFORE)

    def welcome(self, number: int, question: str, first: Weights, ready: Weights) -> None:
        """Write down the state with which a client joins in a round; one that has taken part keeps its own."""
        if (kept := self._read()) is not None and not kept.facts.facts.get("welcome"):
            raise MessageError(
                f"this client has taken part already: it goes on with its state in {self.path}"
            )
        self._write({_BEFORE: first, _AFTER: ready}, round=number - 1, questions=[question], welcome=True)

    def as_of(self, number: int) -> Weights | None:
        """Give the state as it was after a round; None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        return _part(kept.tensors, _AFTER if kept.facts.whole("round", least=1) <= number else _BEFORE)

    def keep(self, now: Round, question: str, before: Weights, after: Weights) -> None:
        """Write the states of a round down. When this returns they are on disk."""
        self._write({_BEFORE: before, _AFTER: after}, round=now.number, questions=[question])

    def note(self, number: int, shared: Weights, federation: Federation) -> None:
        """Write down what everybody shares after a round."""
        make_folder(self.path.parent)
        make_folder(self.shared_path.parent)
        write_arrays(
            self.shared_path, shared, {**self._facts, "round": number, "federation": asdict(federation)}
        )

    def _write(self, states: Mapping[str, Weights], **facts: object) -> None:
        make_folder(self.path.parent)
        arrays = {f"{part}/{name}": array for part, state in states.items() for name, array in state.items()}
        write_arrays(self.path, arrays, {**self._facts, **facts})

    def _read(self) -> Decoded | None:
        if not self.path.exists():
            return None
        kept = read_arrays(self.path)
        for name, value in self._facts.items():
            if kept.facts.facts.get(name) != value:
                raise MessageError(
                    f"{self.path} is of {name} {kept.facts.facts.get(name)!r}, not {value!r}: it was left as it is"
                )
        return kept


def _part(arrays: Weights, part: str) -> Weights:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
