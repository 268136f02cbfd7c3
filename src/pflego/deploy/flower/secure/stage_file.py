"""A client's secrets between the stages of a secure sum, on its own disk: they must outlive its process, and no longer.

One file per client, replaced in one step after every stage, for its owner's eyes alone. A question that was answered is
answered again only if it is the same, with the same bytes. The answer to the last stage takes the place of all secrets.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

from pflego.codec import Facts, MessageError, Reader
from pflego.deploy.flower.secure.party import Party
from pflego.deploy.flower.secure.roster import Session
from pflego.federation.roster import ClientId
from pflego.files import make_folder, read_tensors, write_tensors
from pflego.weights import Weights

Stage: TypeAlias = Literal["keys", "shares", "masked", "agree", "unmask"]
_STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True)
class Answer:
    """What was answered to a stage."""

    tensors: Weights
    facts: Facts


@dataclass(frozen=True)
class _Kept:
    session: Session
    stage: str
    question: str
    party: Party | None
    answer: Answer


class StageFile:
    """The file of one client.

    Parameters
    ----------
    folder
        Where the client's states are.
    client
        Whose it is.
    signed
        Whether sums are signed: a stage more.
    """

    def __init__(self, folder: Path, client: ClientId, *, signed: bool) -> None:
        self.path = folder / f"{quote(str(client), safe='')}.stage"
        self._client = str(client)
        self._order = [stage for stage in _STAGES if signed or stage != "agree"]

    def before(self, session: Session, stage: Stage, question: str) -> Party | Answer | None:
        """Give what a stage begins with; or the answer, where the same was asked before; None: the first stage is new.

        A stage that is out of turn, or asked again with another question, is refused: its answer could undo a mask.
        """
        kept = self._read()
        if kept is not None and kept.session == session and kept.stage == stage:
            if kept.question != question:
                raise MessageError(f"the stage {stage!r} was answered before, to another question")
            return kept.answer
        if stage == "keys":
            if kept is not None and kept.session == session:
                raise MessageError("it asks for keys of a sum that is under way")
            return None
        if kept is None or kept.session != session or kept.party is None:
            raise MessageError(f"it asks for the stage {stage!r} of a sum that this client is not in")
        if [kept.stage, stage] not in [self._order[n : n + 2] for n in range(len(self._order))]:
            raise MessageError(f"it asks for the stage {stage!r} after the stage {kept.stage!r}")
        return kept.party

    def keep(
        self, session: Session, stage: Stage, question: str, party: Party | None, answer: Answer
    ) -> None:
        """Write down what the next stage needs, and the answer to this one. When this returns it is on disk."""
        make_folder(self.path.parent, private=True)
        facts = {
            "client": self._client,
            "session": asdict(session),
            "stage": stage,
            "question": question,
            "party": None if party is None else party.facts,
            "answer": answer.facts,
        }
        write_tensors(self.path, answer.tensors, facts, private=True)

    def _read(self) -> _Kept | None:
        if not self.path.exists():
            return None
        tensors, facts = read_tensors(self.path)
        if facts.facts.get("client") != self._client:
            raise MessageError(f"{self.path} is of another client: it was left as it is")
        return _Kept(
            Session.read(facts.inner("session")),
            stage=facts.choice("stage", _STAGES),
            question=facts.text("question"),
            party=None if facts.facts["party"] is None else Party.read(Reader(facts.facts["party"])),
            answer=Answer(tensors, facts.inner("answer").facts),
        )
