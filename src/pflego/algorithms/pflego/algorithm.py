"""PFLEGO, Algorithm 1 of the paper. Round t, client i of the cohort, head W_i:

    tau - 1 times   W_i   <- W_i - beta grad_W l_i(W_i, theta)
    once            g_i   =  grad_theta l_i(W_i, theta),  sent to the server
                    W_i   <- W_i - rho I/r grad_W l_i(W_i, theta)                    eq. (clientupdate)
    server          theta <- theta - rho I/r sum_i alpha_i g_i                       eq. (serverupdate)

theta does not move inside a round, so the features of one forward pass serve all tau steps, and one backward pass gives
g_i: all of a client's samples cost what one pass costs, and give the exact gradient of its loss, which mini-batches
would not. tau is `steps`, beta `client_lr`, rho `server_lr`. The last two lines together are one SGD step on the
federation's loss, eq. (fullloss), when the head's step carries alpha_i too, as in the paper's proof:
head_step="exact". As the paper's text has it, without alpha_i, it is head_step="paper".

Parts u_i of the backbone that are personal wait for the joint step like theta, so that features still serve all steps
of the head; g_i then covers them, and the client takes their part of the step itself, at the rate of the head's:
u_i <- u_i - rho I/r grad_u l_i. With head_step="exact" all of theta, u_i and W_i take one SGD step on eq. (fullloss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

import torch

from pflego.algorithms.base import Algorithm, Family
from pflego.algorithms.optimizers import OptimizerName, optimizer_step
from pflego.algorithms.pflego.common_head import CommonHead, OwnHead
from pflego.algorithms.pflego.mini_batches import batches_in_turn
from pflego.algorithms.pflego.rates import (
    JOINT_SAMPLES,
    Rates,
    check_decay,
    emphasised,
    moving,
    resolve_defaults,
)
from pflego.algorithms.pflego.safeguard import last_steps
from pflego.algorithms.pflego.several_passes import adapt_in_passes, passes_in_turn
from pflego.algorithms.pflego.solved import SolvedHeads
from pflego.algorithms.pflego.stepped import SteppedHeads
from pflego.algorithms.registry import method
from pflego.declaration import AutoRate, HeadRate, Limits, Positive, Strength, Whole
from pflego.errors import ModelError, SettingError
from pflego.exchange.metrics import total
from pflego.exchange.round import Round, Update
from pflego.learning.forward import ForwardPass
from pflego.learning.head_group import HeadGroup
from pflego.learning.heads import HeadInit, is_head
from pflego.learning.heads.rules import Rule
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.weights import Weights, step


@method
class PFLEGO(Algorithm):
    """Personalised federated learning with exact gradient-based optimisation.

    Parameters
    ----------
    steps
        tau, local steps per round. Of the head's, the last is the joint one.
    client_lr
        beta, the rate of the local steps. "auto": 1/L_i for every client and round. "centred": the same with the mean
        of the features taken out of L_i, and of the steps, which are longer for it and still go downhill. Both cap the
        head's last step at 1/L_i, unless that is exact. If not given, "centred", or "auto" beside a common head.
    server_lr
        rho, the rate of the server's step; if not given, 0.003, 0.002 beside a common head, or 0.01 for mini-batches.
        "auto", for server_optimizer="sgd" alone: r/I 1/L with the largest smoothness constant that clients have
        measured in earlier rounds, at up to fifty more passes each way. The first round only measures.
    server_optimizer
        The server's optimiser: sgd, adam, or any other of torch.optim. "sgd" is the algorithm as written, "adam" what
        the paper's experiments use.
    eps
        Of adam at the server, the least that a step is divided by; if not given, torch's, or 0.0003 for mini-batches,
        so that a weight that clients hardly move is moved by server_lr / eps, 33 times as much, and not by server_lr.
    head_step
        The head's last step: as in the paper's text, rho I/r, or exact, rho I/r alpha_i. With "exact" head and backbone
        together take one SGD step on the whole loss.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; zeros if not given, or centred beside a common
        head. "uniform" is the paper's U[0, 1), "centred" that less its mean over the outputs, "layer" as nn.Linear
        starts; or a function (rows, columns, generator) -> Tensor.
    head_optimizer
        The rule of the head's tau - 1 steps, afresh every round. "momentum" and "adam" are held to the paper's
        condition: see safeguard.py. The history counts clients that had to fall back as fallbacks. "solve" takes no
        steps: heads are at the minimum of the client's loss, exactly, and no state is kept; see solved.py.
    momentum
        Momentum of the local steps.
    common_head
        Split each head into a part shared by everybody, trained at the server, and a personal rest.
    head_decay
        lambda, adds lambda/2 |W_i|^2 to client i's loss, or lambda/2 |V_i|^2 beside a common head; if not given, 0.1
        beside a common head, 0.01 where own heads are solved for, which needs one, and 0 otherwise.
    passes
        k, passes over a client's data per round. With more than one, head steps and a joint step taken at home follow
        each other k times, and the sum of these steps is sent; see several_passes.py.
    batch_size
        Samples per joint step taken at home, all of a client's once per pass, in a random order; the head's tau - 1
        steps follow, and the sum of the joint ones is sent. As cheap as the paper's round and no longer exact; see
        mini_batches.py. If not given, all samples make one joint step.
    sample
        How many of a client's samples a round looks at, where it has more. Drawn twice, independently: those that the
        head's tau - 1 steps see, and those of the joint gradient, which is unbiased; for mini-batches once. If not
        given, all: exact.
    local_lr
        The rate of joint steps taken at home; if not given, 0.05 for mini-batches and "auto" for more than one pass
        over all samples: 1/L_i, measured at the first pass.
    """

    weights = "unbiased"
    abilities = frozenset({"personal parts"})

    steps: Whole = 50
    client_lr: HeadRate = None  # type: ignore[assignment]  # resolve_defaults
    server_lr: AutoRate = None  # type: ignore[assignment]  # resolve_defaults
    server_optimizer: OptimizerName = "adam"
    eps: Positive = None  # type: ignore[assignment]  # resolve_defaults
    head_step: Literal["paper", "exact"] = "paper"
    head_init: HeadInit = None  # type: ignore[assignment]  # resolve_defaults
    head_optimizer: Rule | Literal["solve"] = "gd"
    momentum: Positive = 0.9
    common_head: bool = False
    head_decay: Strength = None  # type: ignore[assignment]  # resolve_defaults
    passes: Whole = 1
    batch_size: Whole | None = None
    local_lr: Annotated[float | Literal["auto"], Limits(above=0)] = None  # type: ignore[assignment]  # resolve_defaults
    sample: Whole | None = None

    def __post_init__(self) -> None:
        resolve_defaults(self)
        super().__post_init__()
        check_decay(self)
        self.rates.check(self.server_optimizer, at_home=self.at_home, batches=self.batch_size is not None)
        if self.sample and self.passes > 1 and not self.batch_size:
            raise SettingError(
                "sample= is for one pass per round, or batch_size=: leave out passes=, or sample="
            )
        if (self.sample or self.batch_size) and self.head_optimizer == "solve":
            raise SettingError(
                "sample= and batch_size= are for heads that take steps: leave them out, or head_optimizer='solve'"
            )

    @property
    def family(self) -> Family:
        """The backbone is shared, the head is not, or not all of it."""
        return "split"

    @property
    def at_home(self) -> bool:
        """Whether clients take joint steps themselves and send how far they went, instead of one gradient."""
        return self.passes > 1 or self.batch_size is not None

    @cached_property
    def rates(self) -> Rates:
        """How far the steps go."""
        rule: Rule = "gd" if self.head_optimizer == "solve" else self.head_optimizer
        exact = self.head_step == "exact"
        return Rates(
            self.client_lr, self.server_lr, rule, self.momentum, self.head_decay, exact, self.local_lr
        )

    @cached_property
    def parts(self) -> OwnHead | CommonHead:
        """What of a head is personal, and what is shared."""
        return CommonHead(self.head_init) if self.common_head else OwnHead(self.head_init)

    @cached_property
    def heads(self) -> SteppedHeads | SolvedHeads:
        """How heads are fitted to features."""
        if self.head_optimizer == "solve":
            return SolvedHeads(self.parts, self.head_decay)
        return SteppedHeads(self.parts, self.rates, self.steps - 1)

    @property
    def follows_objectives(self) -> bool:
        """One pass over all samples gives the loss and its gradient at one point."""
        return not self.at_home and self.sample is None

    @property
    def largest(self) -> frozenset[str]:
        """Of smoothness constants the server takes the largest."""
        return frozenset(self.rates.first_shared())

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """theta_0, and W_0 if there is a common head."""
        head = self.parts.init_shared(model, outputs, seed)
        return {**model.shared_weights(), **head, **self.rates.first_shared()}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or V_i = 0 beside a common head, and u_i."""
        return {**problem.model.personal_weights(), **self.heads.init_state(problem, seed)}

    def client_update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Update a group of one client, and take the step of what is personal in its backbone."""
        theta, own, head = _divided(shared, state, problem)
        [update], gradient = self.group_update([now], theta, [head], [problem], [1.0])
        if not own:
            return replace(update, contribution=gradient)
        moved = step(own, gradient, 1.0 if self.at_home else self.rates.last(now, shared))
        return replace(
            update,
            state={**moved, **update.state},
            contribution={name: g for name, g in gradient.items() if name not in own},
            loss=None,
            model=update.model if self.at_home else None,  # after one exact step it is not the moved parts'
        )

    def group_update(
        self,
        turns: Sequence[Round],
        shared: Weights,
        states: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> tuple[list[Update], Weights]:
        """tau - 1 steps on each head, then the joint gradient: keep the heads' part, send theta's.

        Clients with personal parts of the backbone have no theta in common, and are a group of one each.
        """
        if self.batch_size is not None:
            return batches_in_turn(self, shared, states, problems, weights, self.batch_size)
        if self.passes > 1:
            return passes_in_turn(self, shared, states, problems, weights)
        heads, rates = self.heads, self.rates
        alone = [problem.some(self.sample, "samples of the head") for problem in problems]
        problems = [problem.some(self.sample, JOINT_SAMPLES) for problem in problems]
        forward = ForwardPass(problems, shared)
        group = HeadGroup(problems, forward.features)
        seen = group if self.sample is None else _features_of(alone, group, shared)  # by the heads' own steps
        work = heads.fit(shared, states, seen)
        joint = group.gradient([w.head for w in work])
        losses, factors = zip(*map(emphasised, turns, problems, work, group.parts), strict=True)
        weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
        contribution = forward.backward(group.slopes(joint, weights))
        contribution |= self.parts.contribution(shared, [j.head for j in joint], problems, weights)
        constants = [
            rates.measure(now, problem, heads, shared, w, at)
            for now, problem, w, at in zip(turns, problems, work, losses, strict=True)
        ]
        last = [rates.last(now, shared) * factor for now, factor in zip(turns, factors, strict=True)]
        ended = last_steps(group, work, [j.head for j in joint], last)
        after = group.loss(ended)
        updates = [
            Update(
                heads.kept(shared, head, problem),
                loss=loss if problem.whole else None,
                joint_loss=at,
                model=None if heads.moves_own else {**shared, **head},
                metrics={
                    "fallbacks": total(w.fallbacks),
                    **rates.metrics(w.descent, rate, steps=self.steps - 1),
                },
            )
            for problem, head, loss, at, w, rate in zip(
                problems, ended, after, losses, work, last, strict=True
            )
        ]
        return updates, contribution | rates.largest_heard(constants)

    def server_step(
        self, now: Round, shared: Weights, server: Weights, aggregate: Weights
    ) -> tuple[Weights, Weights]:
        """Make one step along I/r sum_i alpha_i g_i."""
        rate, gradient = self.rates.server(now, shared), moving(aggregate)
        stepped, server = optimizer_step(
            self.server_optimizer, rate, moving(shared), gradient, server, eps=self.eps
        )
        return {**stepped, **self.rates.largest_heard([shared, aggregate])}, server

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta, u_i and W_i, or W_0 + V_i for the last; theta is the client's own where several passes adapted it."""
        theta, _, head = _divided(shared, state, problem)
        return {**theta, **self.heads.whole(theta, head, problem)}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Fit a head to the present theta as in a round, or theta and head where that makes several full passes."""
        theta, own, head = _divided(shared, state, problem)
        if self.passes > 1 and self.batch_size is None:
            return adapt_in_passes(self, theta, head, problem)
        return {**own, **self.heads.adapt(theta, head, problem)}

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a first head to the present theta."""
        theta, own, head = _divided(shared, state, problem)
        return {**own, **self.heads.welcome(theta, head, problem, steps)}

    def check_model(self, model: Model) -> None:
        """Refuse a model that leaves the server nothing to step on, or two rules for one head."""
        super().check_model(model)
        if model.names and not model.shared_weights():
            raise ModelError(
                "all of the backbone is personal, so that nothing is shared: take Local for that"
            )
        if model.personal_head and self.common_head:
            raise ModelError('common_head=True shares a part of every head: leave "head" out of personal')

    def warn(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> str | None:
        """Name Proposition 2's bound where a fixed server_lr exceeds it, as this client sees it."""
        if self.server_lr == "auto" or self.server_optimizer != "sgd":
            return None
        fitted = self.personal(shared, self.adapt(shared, state, problem), problem)
        return self.rates.warn(now, fitted, problem)


def _features_of(alone: Sequence[Problem], group: HeadGroup, shared: Weights) -> HeadGroup:
    """Pass those samples through the backbone that are not in the group's features already."""
    known = zip(alone, group.problems, group.parts, strict=True)
    return HeadGroup(
        alone, torch.cat([phi if own is there else own.features(shared) for own, there, phi in known])
    )


def _divided(shared: Weights, state: Weights, problem: Problem) -> tuple[Weights, Weights, Weights]:
    """Give the weights that a client's features depend on, what of them is its own, and its head."""
    own = {name: w for name, w in state.items() if not is_head(name)}
    return {**shared, **own}, own, {name: w for name, w in state.items() if name not in own}
