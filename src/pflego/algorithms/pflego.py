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

Beyond the paper, client_lr="auto" is beta = 1/L_i, the rate Proposition 2 allows client i in this round, which
also caps the head's last step; and with a common head the outputs are (W_0 + V_i) phi, where the server trains
W_0, a row for every class of the federation, together with theta, and V_i is personal. The step is then an SGD
step on {theta, W_0, V_1, ..., V_I}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import torch
from torch import Tensor

from pflego.algorithms.base import Algorithm, Reply, Round, Update
from pflego.algorithms.newcomer import fit_head
from pflego.algorithms.optimizers import check_optimizer, optimizer_step
from pflego.errors import UserError, check_choice, check_not_negative, check_positive, check_rate
from pflego.heads import HEAD, Descent, HeadGradient, HeadInit, LinearHead, check_head_init
from pflego.heads.descent import RULES, Rule
from pflego.model import Model
from pflego.problem import ForwardPass, Problem
from pflego.randomness import torch_generator
from pflego.theory import best_rate, client_bound, server_bound
from pflego.weights import Weights, step, weighted_sum

_DEFAULTS = {"server_lr": (0.003, 0.002), "head_decay": (0.0, 0.1)}  # with plain heads, with a common one
_SMOOTHNESS = "smoothness"  # what a client adds to its message where the server's rate depends on it
_ITERATIONS = 5  # of the power method on the backbone: each costs a pass both ways
_FALLBACKS = 2  # how often a head that went uphill is tried again with a tenth of the rate


@dataclass(frozen=True)
class _HeadWork:
    """What a client knows before the last step on its head."""

    head: Weights  # after tau - 1 steps
    joint: HeadGradient  # where they end
    descent: Descent
    limit: float  # the most the last step may be
    fallbacks: int


@dataclass(frozen=True, kw_only=True)
class PFLEGO(Algorithm):
    """Personalised federated learning with exact gradient-based optimisation.

    Parameters
    ----------
    steps
        tau, head steps a round, the last of them the joint one.
    client_lr
        beta, the rate of the first tau - 1 steps. "auto": 1/L_i for every client and round, which also caps the
        head's last step.
    server_lr
        rho, the rate of the joint step; if not said, 0.003, or 0.002 beside a common head. "auto", for
        server_optimizer="sgd" alone: r/I 1/L with the largest smoothness constant the round's clients measure, at
        five more passes each way.
    server_optimizer
        "sgd" (the algorithm as written), "adam" (as in the paper's experiments), or any of torch.optim.
    head_step
        "paper": the head's last step is rho I/r; "exact": rho I/r alpha_i, one SGD step on the whole loss.
    head_init
        How heads start, or the common one: "zeros", "uniform" (the paper's U[0, 1)), "centred" (that less its mean
        over the outputs; the best start of a common head), "layer" (as nn.Linear starts), or a function
        (rows, columns, generator) -> Tensor.
    head_optimizer
        "gd", "momentum" or "adam" for the tau - 1 steps, afresh every round. The last two are held to the paper's
        condition: where they would end above the loss they began with, they are tried again with a tenth of the
        rate, twice, and then given up for the old head. The history counts such clients as fallbacks.
    momentum
        mu of "momentum".
    common_head
        Split each head into a part shared by everybody, trained at the server, and a personal rest.
    head_decay
        lambda, adds lambda/2 |W_i|^2 to client i's loss, or lambda/2 |V_i|^2 beside a common head; if not said, 0, or
        0.1 beside a common head.
    """

    steps: int = 50
    client_lr: float | Literal["auto"] = "auto"
    server_lr: float | Literal["auto"] = None  # type: ignore[assignment]  # _DEFAULTS
    server_optimizer: str = "adam"
    head_step: Literal["paper", "exact"] = "paper"
    head_init: HeadInit = "zeros"
    head_optimizer: Rule = "gd"
    momentum: float = 0.9
    common_head: bool = False
    head_decay: float = None  # type: ignore[assignment]  # _DEFAULTS

    def __post_init__(self) -> None:
        for name, (plain, common) in _DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, common if self.common_head else plain)
        check_positive("steps", self.steps, whole=True)
        check_rate("client_lr", self.client_lr)
        check_rate("server_lr", self.server_lr)
        check_optimizer(self.server_optimizer)
        check_choice("head_step", self.head_step, ["paper", "exact"])
        check_head_init(self.head_init)
        check_choice("head_optimizer", self.head_optimizer, RULES)
        check_positive("momentum", self.momentum)
        check_not_negative("head_decay", self.head_decay)
        if self.server_lr == "auto" and self.server_optimizer != "sgd":
            raise UserError(
                f"server_lr='auto' is for server_optimizer='sgd': give {self.server_optimizer} a number"
            )
        if self.client_lr == "auto" and self.head_optimizer == "adam":
            raise UserError(
                "client_lr='auto' is no rate for Adam, whose steps do not grow with the gradient: give one"
            )

    @property
    def linear(self) -> bool:
        """A sum is all the server makes of gradients; of smoothness constants it takes the largest."""
        return self.server_lr != "auto"

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0, and W_0 if there is a common head."""
        if not self.common_head:
            return model.weights()
        if not isinstance(head := model.head(outputs), LinearHead):
            raise UserError("common_head=True needs linear heads")
        return {
            **model.weights(),
            **head.init(self.head_init, torch_generator(seed, "common head"), model.weight_dtype),
        }

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or V_i = 0 beside a common head."""
        return problem.new_head("zeros" if self.common_head else self.head_init, seed)

    def client_update(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau - 1 steps on the head, then the joint gradient: keep the head's part, send theta's."""
        forward = problem.forward(shared)
        work = self._head_work(shared, state, forward.features, problem)
        message = forward.backward(work.joint.features)
        if self.common_head:
            message[HEAD] = self._among_everybodys(shared, [(1, work.joint, problem)])
        if self.server_lr == "auto":
            largest = problem.backbone_smoothness({**shared, **work.head}, _ITERATIONS)
            if self.common_head and work.limit:
                largest = max(largest, 1 / work.limit)  # the server's step moves W_0 too
            message[_SMOOTHNESS] = torch.tensor(largest)
            rate = 1 / largest if largest else inf
        else:
            rate = self.server_lr * round.scale
        return replace(self._last_step(round, shared, work, rate, forward.features, problem), message=message)

    def together(
        self, round: Round, shared: Weights, states: Sequence[Weights], problems: Sequence[Problem]
    ) -> tuple[list[Update], Weights] | None:
        """The same for several clients, with one pass each way over all their data."""
        if self.server_lr == "auto":
            return None
        forward = ForwardPass(problems, shared)
        sizes = [problem.samples for problem in problems]
        features = torch.split(forward.features, sizes)
        work = [self._head_work(shared, *client) for client in zip(states, features, problems, strict=True)]
        shares = [size / sum(sizes) for size in sizes]
        message = forward.backward(
            torch.cat([w.joint.features * share for w, share in zip(work, shares, strict=True)])
        )
        if self.common_head:
            parts = zip(shares, (w.joint for w in work), problems, strict=True)
            message[HEAD] = self._among_everybodys(shared, parts)
        rate = self.server_lr * round.scale
        updates = [
            self._last_step(round, shared, w, rate, phi, problem)
            for w, phi, problem in zip(work, features, problems, strict=True)
        ]
        return updates, message

    def server_update(
        self, round: Round, shared: Weights, server: Weights, replies: Sequence[Reply]
    ) -> tuple[Weights, Weights]:
        """Take one step along I/r sum_i alpha_i g_i."""
        shares = round.shares([reply.samples for reply in replies])
        gradient = weighted_sum(zip(shares, (reply.message for reply in replies), strict=True))
        rate = self.server_lr
        if rate == "auto":
            gradient.pop(_SMOOTHNESS)
            largest = max(float(reply.message[_SMOOTHNESS]) for reply in replies)
            rate = best_rate(largest * round.scale)
        return optimizer_step(self.server_optimizer, rate, shared, gradient, server)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta and W_i, or theta and W_0 + V_i."""
        return {**shared, **self._whole_head(shared, state, problem)}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """tau - 1 head steps against the present theta."""
        head, features = self._whole_head(shared, state, problem), problem.forward(shared).features
        descent, _ = self._descent(shared, head, features, problem)
        head, _ = self._head_steps(head, features, problem, descent)
        return self._own_part(shared, head, problem)

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """A head fitted to the present theta by steps of 1/L_i, held near W_0 beside a common head."""
        head = self._whole_head(shared, state, problem)
        fitted = fit_head(
            problem,
            head,
            problem.forward(shared).features,
            steps=steps,
            decay=self.head_decay,
            anchor=self._anchor(shared, problem),
        )
        return self._own_part(shared, fitted, problem)

    def warn(self, round: Round, shared: Weights, state: Weights, problem: Problem) -> str | None:
        """Name Proposition 2's bounds where a fixed rate exceeds one, as this client sees them."""
        fixed_client = self.client_lr != "auto" and self.head_optimizer == "gd"
        fixed_server = self.server_lr != "auto" and self.server_optimizer == "sgd"
        if not (fixed_client or fixed_server):
            return None
        head, features = self._whole_head(shared, state, problem), problem.forward(shared).features
        bounds = {}
        if fixed_client:
            bounds["client_lr"] = client_bound(problem.head_smoothness(head, features))
        if fixed_server:
            fitted = self._head_steps(
                head, features, problem, self._descent(shared, head, features, problem)[0]
            )[0]
            with suppress(RuntimeError):  # a backbone that cannot be differentiated twice trains all the same
                largest = problem.backbone_smoothness({**shared, **fitted}, _ITERATIONS)
                bounds["server_lr"] = server_bound(largest, expected=round.expected, clients=round.clients)
        words = [
            f"{name}={getattr(self, name):g} is above {bound:.3g}, the bound of Proposition 2 for client "
            f"{problem.client.id!r} at the start, and may go uphill; {name}='auto' stays below it"
            for name, bound in bounds.items()
            if getattr(self, name) >= bound
        ]
        return "; ".join(words) or None

    def _head_work(self, shared: Weights, state: Weights, features: Tensor, problem: Problem) -> _HeadWork:
        """tau - 1 steps, and the joint gradient where they end."""
        head = self._whole_head(shared, state, problem)
        descent, limit = self._descent(shared, head, features, problem)
        head, fallbacks = self._head_steps(head, features, problem, descent)
        return _HeadWork(head, problem.head_gradient(head, features), descent, limit, fallbacks)

    def _last_step(
        self,
        round: Round,
        shared: Weights,
        work: _HeadWork,
        rate: float,
        features: Tensor,
        problem: Problem,
    ) -> Update:
        """The head's part of the joint step."""
        if self.head_step == "exact":
            rate *= round.alpha(problem.samples)
        slope = work.joint.head
        if self.head_decay:
            slope = weighted_sum([(1, slope), (1, work.descent.pull(work.head))])
        head = step(work.head, slope, min(rate, work.limit))
        loss = problem.head_loss(head, features)
        return Update(self._own_part(shared, head, problem), {}, loss=loss, fallbacks=work.fallbacks)

    def _among_everybodys(
        self, shared: Weights, parts: Iterable[tuple[float, HeadGradient, Problem]]
    ) -> Tensor:
        """The gradients of heads as one of W_0, by the rows they have there."""
        total = torch.zeros_like(shared[HEAD])
        for share, joint, problem in parts:
            total.index_add_(0, problem.rows, joint.head[HEAD], alpha=share)
        return total

    def _descent(
        self, shared: Weights, head: Weights, features: Tensor, problem: Problem
    ) -> tuple[Descent, float]:
        """How the head goes downhill in this round, and the most its last step may be."""
        rate, limit = self.client_lr, inf
        if "auto" in (self.client_lr, self.server_lr):
            limit = best_rate(problem.head_smoothness(head, features) + self.head_decay)
        if rate == "auto":
            rate = limit
        anchor = self._anchor(shared, problem)
        return Descent(rate, self.head_optimizer, self.momentum, self.head_decay, anchor), limit

    def _head_steps(
        self, head: Weights, features: Tensor, problem: Problem, descent: Descent
    ) -> tuple[Weights, int]:
        """tau - 1 steps. Gives the head, and 1 if it had to fall back."""
        stepped = problem.head_steps(head, features, self.steps - 1, descent)
        if self.head_optimizer == "gd":
            return stepped, 0
        before = problem.head_loss(head, features)
        for fallback in range(_FALLBACKS + 1):
            if problem.head_loss(stepped, features) <= before:
                return stepped, min(fallback, 1)
            if fallback < _FALLBACKS:
                descent = replace(descent, rate=descent.rate / 10)
                stepped = problem.head_steps(head, features, self.steps - 1, descent)
        return head, 1

    def _anchor(self, shared: Weights, problem: Problem) -> Weights | None:
        """What a decay pulls the head to: the client's rows of W_0, or nothing."""
        return {HEAD: shared[HEAD][problem.rows]} if self.common_head else None

    def _whole_head(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        return {HEAD: shared[HEAD][problem.rows] + state[HEAD]} if self.common_head else state

    def _own_part(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        return {HEAD: head[HEAD] - shared[HEAD][problem.rows]} if self.common_head else head
