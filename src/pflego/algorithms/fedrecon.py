"""FedRecon (Singhal et al., 2021): heads first, then one gradient of the backbone. Round t, client i:

    tau times   W_i <- W_i - beta grad_W l_i(W_i, theta_t)
    once        g_i =  grad_theta l_i(W_i, theta_t),  sent to the server
    server      theta_{t+1} from theta_t and sum_i N_i g_i / sum_i N_i, by an optimiser of rate rho

Block coordinate descent: unlike PFLEGO's, the head does not move together with the backbone. The paper behind this
package keeps heads between rounds (reset=False); the method's own authors build them anew from nothing every time
they are needed and take the gradient on samples that the head was not fitted to (reset=True, query_share=0.5): W_i is
fitted to the support samples, g_i is that of the query samples. tau is `steps`, beta `client_lr`, rho `server_lr`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pflego.algorithms.base import Algorithm, Family
from pflego.algorithms.optimizers import OptimizerName, optimizer_step
from pflego.algorithms.registry import method
from pflego.declaration import HeadRate, LearningRate, Probability, Whole
from pflego.exchange.round import Round, Update
from pflego.learning.heads import Descent, HeadInit, HessianBound
from pflego.learning.problem import Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights


@method
class FedRecon(Algorithm):
    """A shared backbone, and heads fitted to it.

    Parameters
    ----------
    steps
        tau, head steps per round.
    client_lr
        beta, the rate of the head steps. "auto": 1/L_i for every client and round; "centred": the same with the mean of
        the features taken out, as in PFLEGO.
    server_lr
        rho, the rate of the server's step.
    server_optimizer
        "adam", as in the paper's experiments, "sgd", or any other of torch.optim.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; or a function, as in PFLEGO.
    reset
        Build the head anew whenever it is needed, instead of keeping it.
    query_share
        The share of a client's samples, drawn once, that the backbone's gradient is taken on; in a round heads are then
        fitted to the others alone. 0: all samples for both.
    """

    steps: Whole = 50
    client_lr: HeadRate = "centred"
    server_lr: LearningRate = 0.003
    server_optimizer: OptimizerName = "adam"
    head_init: HeadInit = "zeros"
    reset: bool = False
    query_share: Probability = 0.0

    @property
    def family(self) -> Family:
        """The backbone is shared, the head is not."""
        return "split"

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i."""
        return problem.new_head(self.head_init, seed)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau steps on the head, then the backbone's gradient."""
        forward = problem.forward(shared)
        support, query = self._split(problem, now.seed)
        head = self._fit(state, forward.features, problem, support)
        joint = problem.head.gradient(
            head, forward.features[query], problem.targets[query], problem.task
        )  # of the query samples
        slopes = torch.zeros_like(forward.features)
        slopes[query] = joint.features
        gradient = forward.backward(slopes)
        kept = state if self.reset else head
        loss = problem.head_loss(head, forward.features)
        return Update(kept, gradient, loss=loss, model={**shared, **head})

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along the mean gradient."""
        return optimizer_step(self.server_optimizer, self.server_lr, shared, aggregate, server)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta and W_i, which is first fitted if it is not kept."""
        return {**shared, **(self.adapt(shared, state, problem) if self.reset else state)}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau head steps against the present backbone."""
        return self._fit(state, problem.forward(shared).features, problem)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a head to the backbone, unless heads are built anew whenever they are needed."""
        return state if self.reset else super().welcome(shared, state, problem, steps=steps)

    def _split(self, problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
        """Draw which samples a head is fitted to, and which give the gradient; one sample must do for both."""
        if not self.query_share or problem.samples < 2:
            everything = torch.arange(problem.samples, device=problem.device)
            return everything, everything
        generator = torch_generator(seed, "query", client=problem.client.id)
        order = torch.randperm(problem.samples, generator=generator).to(problem.device)
        queries = min(max(1, round(self.query_share * problem.samples)), problem.samples - 1)
        return order[queries:].sort().values, order[:queries].sort().values

    def _fit(
        self, head: Weights, features: Tensor, problem: Problem, support: Tensor | None = None
    ) -> Weights:
        targets = problem.targets
        if support is not None:
            features, targets = features[support], targets[support]
        descent = self._descent(head, features, targets, problem)
        return problem.head.descend(head, features, targets, problem.task, self.steps, descent)

    def _descent(self, head: Weights, features: Tensor, targets: Tensor, problem: Problem) -> Descent:
        if not isinstance(self.client_lr, str):
            return Descent(self.client_lr)
        if self.client_lr == "auto":
            return HessianBound(problem.head.smoothness(head, features, targets, problem.task)).descent()
        return problem.head.hessian_bound(head, features, targets, problem.task).descent()
