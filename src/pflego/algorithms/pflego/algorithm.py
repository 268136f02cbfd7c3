"""PFLEGO, Algorithm 1 of the paper. Round t, client i of the cohort, head W_i:

    tau - 1 times   W_i   <- W_i - beta grad_W l_i(W_i, theta)
    once            g_i   =  grad_theta l_i(W_i, theta),  sent to the server
                    W_i   <- W_i - rho I/r grad_W l_i(W_i, theta)                    eq. (clientupdate)
    server          theta <- theta - rho I/r sum_i alpha_i g_i                       eq. (serverupdate)

theta does not move inside a round, so the features of one forward pass serve all tau steps, and one backward pass gives
g_i. tau is `steps`, beta `client_lr`, rho `server_lr`. The last two lines together are one SGD step on the federation's
loss, eq. (fullloss), when the head's step carries alpha_i too, as in the paper's proof: head_step="exact". As the
paper's text has it, without alpha_i, it is head_step="paper".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from pflego.algorithms.base import Algorithm
from pflego.algorithms.optimizers import OptimizerName, optimizer_step
from pflego.algorithms.pflego.common_head import CommonHead, OwnHead
from pflego.algorithms.pflego.rates import SMOOTHNESS, Rates, resolve_defaults
from pflego.algorithms.pflego.safeguard import guarded_steps
from pflego.algorithms.registry import method
from pflego.declaration import AutoRate, Positive, Strength, Whole
from pflego.exchange.metrics import total
from pflego.exchange.round import Round, Update
from pflego.learning.heads import HeadInit
from pflego.learning.heads.fit import fit_head
from pflego.learning.heads.rules import Rule
from pflego.learning.model import Model
from pflego.learning.problem import ForwardPass, Problem
from pflego.weights import Weights, plus, step


@method
class PFLEGO(Algorithm):
    """Personalised federated learning with exact gradient-based optimisation.

    Parameters
    ----------
    steps
        tau, local steps per round. Of the head's, the last is the joint one.
    client_lr
        beta, the rate of the local steps. "auto": 1/L_i for every client and round, which also caps the head's last
        step.
    server_lr
        rho, the rate of the server's step; 0.003 if not given, or 0.002 beside a common head. "auto", for
        server_optimizer="sgd" alone: r/I 1/L with the largest smoothness constant the round's clients measure, at
        five more passes each way.
    server_optimizer
        The server's optimiser: sgd, adam, or any other of torch.optim. "sgd" is the algorithm as written, "adam" what
        the paper's experiments use.
    head_step
        The head's last step: as in the paper's text, rho I/r, or exact, rho I/r alpha_i. With "exact" head and backbone
        together take one SGD step on the whole loss.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal. "uniform" is the paper's U[0, 1), "centred" that
        less its mean over the outputs, the best start of a common head, "layer" as nn.Linear starts; or a function
        (rows, columns, generator) -> Tensor.
    head_optimizer
        The rule of the head's tau - 1 steps, afresh every round. "momentum" and "adam" are held to the paper's
        condition: see safeguard.py. The history counts clients that had to fall back as fallbacks.
    momentum
        Momentum of the local steps.
    common_head
        Split each head into a part shared by everybody, trained at the server, and a personal rest.
    head_decay
        lambda, adds lambda/2 |W_i|^2 to client i's loss, or lambda/2 |V_i|^2 beside a common head; 0 if not given, or
        0.1 beside a common head.
    """

    weights = "unbiased"

    steps: Whole = 50
    client_lr: AutoRate = "auto"
    server_lr: AutoRate = None  # type: ignore[assignment]  # resolve_defaults
    server_optimizer: OptimizerName = "adam"
    head_step: Literal["paper", "exact"] = "paper"
    head_init: HeadInit = "zeros"
    head_optimizer: Rule = "gd"
    momentum: Positive = 0.9
    common_head: bool = False
    head_decay: Strength = None  # type: ignore[assignment]  # resolve_defaults

    def __post_init__(self) -> None:
        resolve_defaults(self)
        super().__post_init__()
        self.rates.check(self.server_optimizer)

    @property
    def rates(self) -> Rates:
        """How far the steps go."""
        return Rates(self.client_lr, self.server_lr, self.head_optimizer, self.momentum, self.head_decay)

    @property
    def heads(self) -> OwnHead | CommonHead:
        """What of a head is personal, and what is shared."""
        return CommonHead(self.head_init) if self.common_head else OwnHead(self.head_init)

    @property
    def largest(self) -> frozenset[str]:
        """Of smoothness constants the server takes the largest."""
        return frozenset({SMOOTHNESS} if self.server_lr == "auto" else ())

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0, and W_0 if there is a common head."""
        return {**model.weights(), **self.heads.init_shared(model, outputs, seed)}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or V_i = 0 beside a common head."""
        return self.heads.init_state(problem, seed)

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Update a group of one client."""
        [update], contribution = self.group_update([now], shared, [state], [problem], [1.0])
        return replace(update, contribution=contribution)

    def group_update(
        self,
        turns: Sequence[Round],
        shared: Weights,
        states: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> tuple[list[Update], Weights]:
        """tau - 1 steps on each head, then the joint gradient: keep the heads' part, send theta's."""
        heads, rates = self.heads, self.rates
        forward = ForwardPass(problems, shared)
        features = torch.split(forward.features, [problem.samples for problem in problems])  # (N_i, M) each
        work = [
            guarded_steps(problem, heads.whole(shared, state, problem), phi, self.steps - 1, descent)
            for problem, state, phi in zip(problems, states, features, strict=True)
            for descent in [rates.descent(problem, heads, shared, state, phi)]
        ]
        joint = [
            problem.head_gradient(w.head, phi)
            for problem, w, phi in zip(problems, work, features, strict=True)
        ]
        slopes = [j.features if a == 1 else j.features * a for j, a in zip(joint, weights, strict=True)]
        contribution = forward.backward(slopes[0] if len(slopes) == 1 else torch.cat(slopes))
        contribution |= heads.contribution(shared, [j.head for j in joint], problems, weights)
        updates = []
        measured = []
        for now, problem, phi, w, j in zip(turns, problems, features, work, joint, strict=True):
            curvature = rates.measure(problem, {**shared, **w.head}, w.descent, common=self.common_head)
            rate = rates.joint(now, curvature) * (now.alpha if self.head_step == "exact" else 1)
            slope = plus(j.head, w.descent.pull(w.head)) if self.head_decay else j.head
            head = step(w.head, slope, min(rate, w.descent.limit))
            loss = problem.head_loss(head, phi)
            kept = heads.own(shared, head, problem)
            updates.append(Update(kept, loss=loss, metrics={"fallbacks": total(w.fallbacks)}))
            measured.append(curvature)
        if self.server_lr == "auto":
            contribution[SMOOTHNESS] = torch.tensor(max(measured))
        return updates, contribution

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along I/r sum_i alpha_i g_i."""
        gradient = {name: tensor for name, tensor in aggregate.items() if name != SMOOTHNESS}
        rate = self.rates.server(now, aggregate)
        return optimizer_step(self.server_optimizer, rate, shared, gradient, server)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta and W_i, or theta and W_0 + V_i."""
        return {**shared, **self.heads.whole(shared, state, problem)}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau - 1 head steps against the present theta."""
        heads, features = self.heads, problem.forward(shared).features
        descent = self.rates.descent(problem, heads, shared, state, features)
        work = guarded_steps(problem, heads.whole(shared, state, problem), features, self.steps - 1, descent)
        return heads.own(shared, work.head, problem)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a head to the present theta by steps of 1/L_i, held near W_0 beside a common head."""
        heads, features = self.heads, problem.forward(shared).features
        head, anchor = heads.whole(shared, state, problem), heads.anchor(shared, problem)
        fitted = fit_head(problem, head, features, steps=steps, decay=self.head_decay, anchor=anchor)
        return heads.own(shared, fitted, problem)

    def warn(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> str | None:
        """Name Proposition 2's bounds where a fixed rate exceeds one, as this client sees them."""
        if not self.rates.fixed(self.server_optimizer):
            return None
        start = self.personal(shared, state, problem)
        fitted = self.personal(shared, self.adapt(shared, state, problem), problem)
        return self.rates.warn(now, start, fitted, problem, self.server_optimizer)
