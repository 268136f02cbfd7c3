"""MOON (Li et al., 2021): FedAvg whose clients' features stay near the shared model's. Round t, client i:

    w_i <- w_t
    tau times   w_i <- w_i - beta grad [ l_i(w_i) + mu mean_x log(1 + e^((cos(phi_i, phi_p) - cos(phi_i, phi_t)) / T)) ]
    sent        w_i - w_t
    server      w_{t+1} = w_t + sum_i N_i (w_i - w_t) / sum_i N_i

phi_i, phi_t and phi_p are the features of a sample by the backbones that is trained, that was received, and that this
client ended its previous round with: its state, theta_0 before its first. The second term is the contrastive loss
-log(e^a / (e^a + e^b)), a = cos(phi_i, phi_t) / T, b = cos(phi_i, phi_p) / T. Its authors compare what a projection
makes of the features; here it is the features themselves.

phi_t and phi_p do not change during a round: two forward passes for them all, and one per step for phi_i, where a
loop that looks them up in every step makes three. tau is `steps`, beta `client_lr`, T `temperature`. The authors have
T 0.5 and mu 5 on CIFAR-10, 1 on CIFAR-100; rate 0.01, momentum 0.9, 10 epochs of batches of 64.

phi_t and phi_p are features of evaluation mode, phi_i, in a step, of training mode. Personal parts take the steps and
stay; the model that was received has them, too. Running statistics of batch norm are averaged.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.declaration import Positive, Strength
from pflego.exchange.round import Round, Update
from pflego.learning.problem import FeatureTerm, Problem
from pflego.learning.weighted import average
from pflego.weights import Weights, minus, of_prefix, with_prefix

_PREVIOUS = "previous/"  # of the names of the state: the backbone of the client's previous round


@method
class MOON(FedAvg):
    """FedAvg with a contrastive term of the features.

    Parameters
    ----------
    mu
        The strength of the contrastive term. 0 is FedAvg.
    temperature
        T, by which similarities are divided.
    """

    abilities = frozenset({"personal parts", "training mode"})

    mu: Strength = 1.0
    temperature: Positive = 0.5

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0, in the place of a previous backbone, and what is personal."""
        return {**_backbone(problem.model.weights(), problem), **super().init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send how far it went, keep its backbone."""
        weights = self.adapt(shared, state, problem)
        way = minus({name: weights[name] for name in shared}, shared)
        kept = {**_backbone(weights, problem), **self.own_part(problem.model, weights)}
        return Update(kept, way, model=self.personal(shared, weights, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        own = {name: w for name, w in state.items() if not name.startswith(_PREVIOUS)}
        return super().personal(shared, own, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on a copy of the model, with the contrastive term, as in a round."""
        received, previous = self.whole(shared, state, problem), of_prefix(_PREVIOUS, state)
        contrast = self._contrast(received, previous, problem) if self.mu else None
        return self.descend(problem, received, on_features=contrast)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Begin where the others are, with own parts fitted to that: without a contrast in the first round."""
        own = self.fitted(shared, self.own_part(problem.model, state), problem, steps)
        return {**_backbone({**shared, **own}, problem), **own}

    def _contrast(self, received: Weights, previous: Weights, problem: Problem) -> FeatureTerm:
        near, far = problem.features(received), problem.features(previous)  # (samples, M)
        weights = problem.weights

        def term(features: Tensor, places: Tensor) -> Tensor:
            to_near = functional.cosine_similarity(features, near[places])
            to_far = functional.cosine_similarity(features, far[places])
            terms = functional.softplus((to_far - to_near) / self.temperature)
            return self.mu * average(terms, weights if weights is None else weights[places])

        return term


def _backbone(weights: Weights, problem: Problem) -> Weights:
    """Keep a backbone, running statistics included, as the previous one."""
    names = (*problem.model.names, *problem.model.statistics)
    return with_prefix(_PREVIOUS, {name: weights[name] for name in names})
