"""A site's answers, as bytes: who it is, a round's work, a test result. Whatever carries them looks inside neither way.

query      who are you?             client, samples, classes, outputs, shape, type
train      the shared weights       the method's contribution, and metrics
  .welcome the shared weights       that a state is ready for them: this client joins late
evaluate   the shared weights       a test result
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from pflego_light.arrays import Weights
from pflego_light.client import Client
from pflego_light.codec import Decoded, decode, encode
from pflego_light.data import Data
from pflego_light.errors import FolderError, MessageError
from pflego_light.keep import StateFile
from pflego_light.kit import Kit
from pflego_light.round import Federation, Round
from pflego_light.terms import Answers, Question, Site, check_run_config

WELCOME = "train.welcome"  # the kind of message that asks a client to join

log = logging.getLogger("flwr.pflego")


@dataclass(frozen=True)
class Desk:
    """One site: its kit, and what its operator said."""

    kit: Kit
    site: Site

    @cached_property
    def data(self) -> Data:
        """The site's own samples."""
        data = Data.read(self.site.id, self.site.data)
        self.kit.check(data.x_train)
        return data

    @cached_property
    def answers(self) -> Answers:
        """The log of all that was answered."""
        return Answers(self.site.state, self.site.id)

    def answer(self, kind: str, run_config: Mapping[str, object], question: bytes) -> bytes:
        """Answer a server, if it asks for what was agreed on."""
        check_run_config(self.kit, run_config)
        if kind == "query":
            return self._introduce()
        work = {"train": self._train, WELCOME: self._welcome, "evaluate": self._evaluate}
        if kind not in work:
            raise MessageError(
                f"a light client is asked who it is, to train and to evaluate, not to {kind[:40]!r}"
            )
        asked = decode(question)
        federation = Federation.read(asked.facts.inner("federation"))
        client = Client(self.kit, self.data, federation)
        return work[kind](client, asked)

    def facts(self) -> dict[str, object]:
        """Say who is here."""
        data = self.data
        return {
            "client": data.id,
            "samples": len(data.x_train),
            "tests": len(data.x_test),
            "task": data.task,
            "classes": list(data.classes),
            "outputs": data.outputs,
            "shape": list(data.x_train.shape[1:]),
            "dtype": str(data.x_train.dtype),
            "schema": "",
            "unit": 1.0,
        }

    def _introduce(self) -> bytes:
        facts = self.facts()
        self.answers.introduced(facts)
        return encode({}, facts)

    def _train(self, client: Client, asked: Decoded) -> bytes:
        """Do a round's work, keep the new state on disk, then give what is sent."""
        now, run = Round.read(asked.facts.inner("round")), client.federation.run
        kept = StateFile(self.site.state, run, self.site.id)
        question = Question(run, "train", now.number)
        self.answers.check(question, self.site)
        shared = asked.hold_to(client.shared).tensors
        before = kept.begin(now, asked.digest)
        if before is None:
            before = self._first(client, kept)
        done = client.work(now, shared, before)
        if done.finite:
            kept.keep(now, asked.digest, before, done.state)
        sent: Weights = done.contribution if done.finite else {}
        self.answers.note(question, sent, kept=done.finite)
        size = sum(array.nbytes for array in sent.values())
        log.info("round %d: %d bytes leave: %s", now.number, size, ", ".join(sent) or "no weights")
        if not done.finite:
            return encode({}, {"finite": False})
        metrics = {name: list(metric) for name, metric in done.metrics.items()}
        return encode(sent, {"finite": True, "seconds": done.seconds, "metrics": metrics})

    def _welcome(self, client: Client, asked: Decoded) -> bytes:
        """Make a state ready for the shared weights as they are, keep it on disk, then say so. Nothing else leaves."""
        arrival, run = asked.facts.inner("arrival"), client.federation.run
        number = arrival.whole("round", least=2)
        steps = None if arrival.facts.get("steps") is None else arrival.whole("steps", least=1)
        question = Question(run, "welcome", number)
        self.answers.check(question, self.site)
        shared = asked.hold_to(client.shared).tensors
        kept = StateFile(self.site.state, run, self.site.id)
        kept.welcome(number, asked.digest, *client.welcome(shared, steps))
        self.answers.note(question, {}, kept=True)
        log.info("this client joins in round %d", number)
        return encode({}, {"round": number})

    def _evaluate(self, client: Client, asked: Decoded) -> bytes:
        """Try this client's own model on its test data, as of a round; the shared part of it is written down."""
        moment, run = asked.facts.inner("moment"), client.federation.run
        number, adapt = moment.whole("round", least=0), moment.one("adapt", (bool,))
        kept = StateFile(self.site.state, run, self.site.id)
        question = Question(run, "evaluate", number, int(adapt))
        self.answers.check(question, self.site)
        shared = asked.hold_to(client.shared).tensors
        state = kept.as_of(number)
        if state is None:
            state = self._first(client, kept)
        kept.note(number, shared, client.federation)
        score = client.score(shared, state, adapt=adapt)
        self.answers.note(question, {}, kept=False)
        return encode({}, asdict(score))

    def _first(self, client: Client, kept: StateFile) -> Weights:
        """Give a first state, but not where one was kept before: a lost head would go unnoticed."""
        if self.answers.has_kept(client.federation.run):
            name = self.answers.path.name
            raise FolderError(
                f"the state of this client is gone: {kept.path} is not there, and {name} says that it was written. "
                f"Bring it back from a backup; or remove {name} too, to begin with a new state"
            )
        return client.first()
