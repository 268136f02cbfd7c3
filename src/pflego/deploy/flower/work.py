"""A round's work at a site: from the state that was kept to the one that is."""

from __future__ import annotations

from flwr.app import Context

from pflego.deploy.flower.desk import Desk
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.keep import StateFile
from pflego.deploy.flower.messages import Arrival
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.site_config import Site
from pflego.deploy.flower.terms import Answers
from pflego.engines.base import Outcome
from pflego.errors import FolderError
from pflego.exchange.round import Round
from pflego.learning.evaluation import Score
from pflego.weights import Weights


class Seat:
    """A client in a federation, with its data, its files and what its operator has agreed to."""

    def __init__(self, common: Common, context: Context) -> None:
        self.site = Site.read(context.node_config)
        assignment = self.site.assignment(context.run_config)
        client, schema = self.site.data_and_schema()
        self.common = common
        self.desk = Desk.of(assignment, client, common, schema, device=self.site.device)
        self.secure: SecureSum = assignment.secure
        self.private = assignment.privacy is not None  # no figures leave
        self.kept = StateFile(self.site.state, common.run, self.site.id)
        self.answers = Answers(self.site.state, self.site.id)

    def work(self, now: Round, received: Weights, digest: str) -> tuple[Outcome, float]:
        """Do a round's work, and keep the new state if it is of use; give what came of it, and how long it took.

        digest: of the question, which must be the same if the round was done before.
        """
        before = self.kept.begin(now, digest)
        if before is None:
            before = self._first()
        outcome, seconds = self.desk.work(now, received, before)
        if outcome.finite:
            self.kept.keep(now, digest, before, outcome.state)
        return outcome, seconds

    def welcome(self, arrival: Arrival, shared: Weights, digest: str) -> None:
        """Make a state ready for the shared weights as they are, and keep it."""
        self.kept.welcome(arrival.round, digest, *self.desk.welcome(shared, steps=arrival.steps))

    def score(self, number: int, shared: Weights, *, adapt: bool) -> Score:
        """Try this client's own model on its test data, as of a round; write down the shared part of it."""
        state = self.kept.as_of(number)
        if state is None:
            state = self._first()
        self.kept.note(number, shared, self.common)
        if self.private:
            return Score(0, None, 0.0)
        return self.desk.score(shared, state, adapt=adapt)

    def _first(self) -> Weights:
        """Begin; but not anew, where a state was kept before: a lost head would go unnoticed."""
        if self.answers.has_kept(self.common.run):
            raise FolderError(
                f"the state of this client is gone: {self.kept.path} is not there, and {self.answers.path.name} says "
                f"that it was written. Bring it back from a backup; or remove {self.answers.path.name} too, to begin "
                f"with a new state"
            )
        return self.desk.first()
