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
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.registry import method
from pflego.declaration import Positive, Strength
from pflego.exchange.round import Round, Update
from pflego.learning.problem import FeatureTerm, Problem
from pflego.weights import Weights, minus

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

    mu: Strength = 1.0
    temperature: Positive = 0.5

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """theta_0, in the place of a previous backbone."""
        return _as_previous(problem.model.weights())

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on a copy of the model; send how far it went, keep its backbone."""
        weights = self.adapt(shared, state, problem)
        kept = _as_previous({name: weights[name] for name in problem.model.names})
        return Update(kept, minus(weights, shared), model=self.personal(shared, weights, problem))

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        own = {name: w for name, w in state.items() if not name.startswith(_PREVIOUS)}
        return super().personal(shared, own, problem)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau steps on a copy of the model, with the contrastive term, as in a round."""
        previous = {name: state[_PREVIOUS + name] for name in problem.model.names}
        if not self.mu:
            return self.descend(problem, shared)
        return self.descend(problem, shared, on_features=self._contrast(shared, previous, problem))

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Begin where the others are: without a contrast in the first round."""
        return _as_previous({name: shared[name] for name in problem.model.names})

    def _contrast(self, received: Weights, previous: Weights, problem: Problem) -> FeatureTerm:
        near, far = problem.features(received), problem.features(previous)  # (samples, M)

        def term(features: Tensor, places: Tensor) -> Tensor:
            to_near = functional.cosine_similarity(features, near[places])
            to_far = functional.cosine_similarity(features, far[places])
            return self.mu * functional.softplus((to_far - to_near) / self.temperature).mean()

        return term


def _as_previous(theta: Weights) -> Weights:
    return {_PREVIOUS + name: w for name, w in theta.items()}
