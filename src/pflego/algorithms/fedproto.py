"""FedProto (Tan et al., 2022): everybody has a model of its own, and only the mean features of classes travel.

    tau times   w_i <- w_i - beta grad [ l_i(w_i) + mu/M mean_x |phi(x; theta_i) - P_y|^2 ]
    sent        the sum of phi(x; theta_i) over the samples of each class, and their number
    server      P_c = mean of phi over all samples of class c that the cohort has

w_i, a whole model, is what client i keeps and uses. P_c are the federation's prototypes (class_means.py): samples of a
class that nobody has sent yet are not pulled. Sums and numbers are those of the model after its steps, over all
samples of a client, for one more forward pass; means of means, over batches or over clients, would be others. tau is
`steps`, beta `client_lr`. The authors have mu 1, rate 0.01, momentum 0.5, one epoch of batches of 4.

Everything is personal, whatever a model says, running statistics of batch norm included. Steps are taken in training
mode, the sums are of evaluation mode.
"""

from __future__ import annotations

from pflego.algorithms import class_means
from pflego.algorithms.base import Family
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.registry import method
from pflego.declaration import Strength
from pflego.exchange.round import Round, Update
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights


@method
class FedProto(LocalSteps):
    """A model for each client, whose features are pulled to the federation's mean features of their classes.

    Parameters
    ----------
    mu
        The strength of the pull. At 0 everybody learns alone.
    """

    abilities = frozenset({"personal parts", "training mode"})
    divides_by_counts = True

    mu: Strength = 1.0

    @property
    def family(self) -> Family:
        """A model of its own, near what all have in common."""
        return "mixed"

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Return prototypes that are not known yet."""
        return class_means.unknown_means(model, outputs)

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0 and W_i."""
        return {**problem.model.weights(), **self.new_head(problem, seed)}

    def exact(self, name: str) -> bool:
        """Prototypes are ratios, of the newest sums alone."""
        return name in class_means.SENT or super().exact(name)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the whole model; send sums of features and numbers of samples."""
        weights = self.adapt(shared, state, problem)
        features = problem.features(weights)
        sent = class_means.class_sums(problem, features, len(shared[class_means.KNOWN]))
        return Update(weights, sent, loss=problem.head_loss(weights, features))

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Take the mean of every class that somebody has sent."""
        return class_means.updated(shared, aggregate), server

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """w_i."""
        return state

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau more steps, as in a round."""
        return self.descend(problem, state, on_features=class_means.pull(shared, problem, self.mu))

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Make tau steps, as in anybody's first round."""
        pull = class_means.pull(shared, problem, self.mu)
        return self.descend(problem, state, duration=steps, on_features=pull)
