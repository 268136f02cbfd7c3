"""A client's state on its own disk: what it keeps between rounds, and what a restart must find.

One file per run and client, replaced in one step. It holds the states before each exchange of the client's last round
and the state after it, the round's number, and a digest of what was asked in each. A server that was killed before its
checkpoint asks for the same round again: the client then begins from the state before, and its answer is the same to
the bit.

Beside it, in a folder shared/, lie the weights that the client was last evaluated with: with both it has its model.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from pflego.codec import MessageError, Reader
from pflego.deploy.flower.facts import Common
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.files import make_folder, read_tensors, write_tensors
from pflego.weights import Weights

_AFTER = "after"


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
        """Give the state that an exchange of a round begins with. None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        tensors, facts = kept
        last, asked = facts.whole("round", least=1), facts.one("questions", (list,))
        if now.number > last or (now.number == last and now.exchange == len(asked)):
            return _part(tensors, _AFTER)
        if now.number < last or now.exchange > len(asked):
            raise MessageError(
                f"round {now.number} was asked for after round {last}: this client does not go back. If the server was "
                f"restored from an older copy, start a new run there, or remove {self.path}"
            )
        if question != asked[now.exchange]:
            raise MessageError(
                f"round {now.number} was asked for before, with other weights: this client does not repeat it. If the "
                f"server's folder was changed, start a new run there, or remove {self.path}"
            )
        return _part(tensors, str(now.exchange))

    def welcome(self, number: int, question: str, first: Weights, ready: Weights) -> None:
        """Write down the state with which a client joins in a round; one that has taken part keeps its own."""
        if (kept := self._read()) is not None and not kept[1].facts.get("welcome"):
            raise MessageError(
                f"this client has taken part already: it goes on with its state in {self.path}"
            )
        make_folder(self.path.parent, private=True)
        tensors = {
            f"{part}/{name}": t
            for part, state in (("0", first), (_AFTER, ready))
            for name, t in state.items()
        }
        facts = {**self._facts, "round": number - 1, "questions": [question], "welcome": True}
        write_tensors(self.path, tensors, facts, private=True)

    def as_of(self, number: int) -> Weights | None:
        """Give the state as it was after a round; None: this client was never asked before."""
        if (kept := self._read()) is None:
            return None
        tensors, facts = kept
        return _part(tensors, _AFTER if facts.whole("round", least=1) <= number else "0")

    def keep(self, now: Round, question: str, before: Weights, after: Weights) -> None:
        """Write the states of an exchange down. When this returns they are on disk."""
        make_folder(self.path.parent, private=True)
        states, questions = {str(now.exchange): before, _AFTER: after}, [question]
        if now.exchange and (kept := self._read()) is not None:
            tensors, facts = kept
            earlier = [str(exchange) for exchange in range(now.exchange)]
            states |= {name: _part(tensors, name) for name in earlier}
            questions = [*facts.one("questions", (list,))[: now.exchange], question]
        tensors = {f"{part}/{name}": t for part, state in states.items() for name, t in state.items()}
        facts_beside = {**self._facts, "round": now.number, "questions": questions}
        write_tensors(self.path, tensors, facts_beside, private=True)

    def note(self, number: int, shared: Weights, common: Common) -> None:
        """Write down what everybody shares after a round."""
        make_folder(self.path.parent, private=True)
        make_folder(self.shared_path.parent, private=True)
        facts = {**self._facts, "round": number, "federation": asdict(common)}
        write_tensors(self.shared_path, shared, facts, private=True)

    def _read(self) -> tuple[Weights, Reader] | None:
        if not self.path.exists():
            return None
        tensors, facts = read_tensors(self.path)
        for name, value in self._facts.items():
            if facts.facts.get(name) != value:
                raise MessageError(
                    f"{self.path} is of {name} {facts.facts.get(name)!r}, not {value!r}: it was left as it is"
                )
        return tensors, facts


def last_noted(folder: Path, client: ClientId) -> tuple[Weights, int, Common] | None:
    """Give what a client noted last of any run: what everybody shared, after which round, and in which federation."""
    name = f"{quote(str(client), safe='')}.safetensors"
    own = [file for file in (folder / "shared").glob("*.safetensors") if file.name.partition(".")[2] == name]
    if not own:
        return None
    tensors, facts = read_tensors(max(own, key=lambda file: file.stat().st_mtime))
    return tensors, facts.whole("round", least=0), Common.read(facts.inner("federation"))


def _part(tensors: Weights, part: str) -> Weights:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
