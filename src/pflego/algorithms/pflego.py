"""PFLEGO, Algorithm 1 of the paper. Round t, client i of the cohort, head W_i:

    tau - 1 times   W_i   <- W_i - beta grad_W l_i(W_i, theta)
    once            g_i   =  grad_theta l_i(W_i, theta),  sent to the server
                    W_i   <- W_i - rho I/r grad_W l_i(W_i, theta)                    eq. (clientupdate)
    server          theta <- theta - rho I/r sum_i alpha_i g_i                       eq. (serverupdate)

theta does not move inside a round, so the features of one forward pass serve all tau steps, and one backward
pass gives g_i. tau is `steps`, beta `client_lr`, rho `server_lr`.

The last two lines together are one SGD step on the federation's loss, eq. (fullloss), when the head's step
carries alpha_i too, as in the paper's proof: head_step="exact". As the paper's text has it, without alpha_i,
it is head_step="paper".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.optimizers import check_optimizer, optimizer_step
from pflego.errors import check_choice, check_positive
from pflego.heads import HeadInit, check_head_init
from pflego.problem import Problem
from pflego.weights import Weights, step, weighted_sum


@dataclass(frozen=True, kw_only=True)
class PFLEGO(Algorithm):
    """Personalised federated learning with exact gradient-based optimisation.

    Parameters
    ----------
    steps
        tau, head steps a round, the last of them the joint one.
    client_lr
        beta, the rate of the first tau - 1 steps.
    server_lr
        rho, the rate of the joint step.
    server_optimizer
        "sgd" (the algorithm as written), "adam" (as in the paper's experiments), or any of torch.optim.
    head_step
        "paper": the head's last step is rho I/r; "exact": rho I/r alpha_i, one SGD step on the whole loss.
    head_init
        "zeros", "uniform" (the paper's U[0, 1)), or a function (rows, columns, generator) -> Tensor.
    """

    steps: int = 50
    client_lr: float = 0.1
    server_lr: float = 0.003
    server_optimizer: str = "adam"
    head_step: Literal["paper", "exact"] = "paper"
    head_init: HeadInit = "zeros"

    def __post_init__(self) -> None:
        check_positive("steps", self.steps, whole=True)
        check_positive("client_lr", self.client_lr)
        check_positive("server_lr", self.server_lr)
        check_optimizer(self.server_optimizer)
        check_choice("head_step", self.head_step, ["paper", "exact"])
        check_head_init(self.head_init)

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i."""
        return problem.new_head(self.head_init, seed)

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Tau - 1 steps on the head, then the joint gradient: keep the head's part, send theta's."""
        forward = problem.forward(shared)
        head = self._head_steps(state, forward.features, problem)
        joint = problem.head_gradient(head, forward.features)
        gradient = forward.backward(joint.features)
        rate = self.server_lr * round.scale
        if self.head_step == "exact":
            rate *= round.alpha(problem.samples)
        head = step(head, joint.head, rate)
        return Update(head, gradient, loss=problem.head_loss(head, forward.features))

    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """Take one step along I/r sum_i alpha_i g_i."""
        gradient = weighted_sum(
            (round.scale * round.alpha(reply.samples), reply.message) for reply in replies
        )
        return optimizer_step(self.server_optimizer, self.server_lr, shared, gradient, server)

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Tau - 1 head steps against the present theta."""
        return self._head_steps(state, problem.forward(shared).features, problem)

    def _head_steps(self, head: Weights, features: Tensor, problem: Problem) -> Weights:
        return problem.head_steps(head, features, steps=self.steps - 1, rate=self.client_lr)
