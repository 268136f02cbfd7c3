"""Gradient descent on a client's whole model: what PFLEGO's rivals do tau times a round.

    v <- momentum v + grad l_B(w) + decay w + mu (w - anchor) + slope,    w <- w - beta v

l_B is the loss on all samples of client i, or on a mini-batch B of them; tau is `steps`, or `epochs` times the number
of batches, beta `client_lr`. Batches are a function of the seed, the round and the client.

beta="auto" is 1/(L + decay + mu) for every client and round. L is the larger of two constants: the head's L_i, which
holds wherever the head goes, and the largest curvature of l_i in all the weights that move, head and backbone
together, where the steps begin. The second alone would not do: it vanishes where a client's samples are fitted, and
there would be no end to the rate. Mini-batches are less smooth than their mean: L is then the expected smoothness of
theory.py.

In these steps a backbone is in training mode, where it has one: dropout is at work, batch norm takes each batch's
statistics and moves the running ones. Steps on the head alone see the features of evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

from torch import Tensor

from pflego.algorithms.base import Algorithm
from pflego.algorithms.stepping import Rule, steps_in, take_steps
from pflego.declaration import AutoRate, Limits, NotNegative, Whole
from pflego.learning.gram import Span
from pflego.learning.heads import Descent, Head, HeadInit, LinearHead, is_head
from pflego.learning.model import Model
from pflego.learning.modes import is_statistic
from pflego.learning.problem import FeatureTerm, Problem
from pflego.learning.theory import best_rate, expected_smoothness
from pflego.weights import Weights

_ITERATIONS = 5  # of the power method: each costs a pass both ways


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Algorithm):
    """A method whose clients take gradient steps through the backbone.

    Parameters
    ----------
    steps
        tau, gradient steps per round.
    epochs
        Passes over a client's samples per round, instead of steps: tau is that times the number of its batches.
        Whatever else is counted in steps is counted in epochs then.
    batch_size
        Samples per step, drawn anew in every epoch; all of a client's if not given.
    client_lr
        beta, the rate of the local steps. "auto": 1/L for every client and round, from the smoothness of head and
        backbone where its steps begin, for five passes each way and a forward one more; differentiated twice, these
        take convolutions as long as a dozen epochs.
    lr_decay
        beta is multiplied by it after every round. Steps outside of rounds, to fine-tune or to adapt, have the first
        rate.
    momentum
        Of the local steps, afresh in every round; 0 is plain gradient descent.
    weight_decay
        Adds weight_decay/2 |w|^2 to what the local steps descend.
    head_init
        How heads start: zeros, uniform, centred, layer or orthonormal; or a function, as in PFLEGO. If not given,
        centred where heads are linear: a head that is trained together with the backbone must not be small.
    """

    steps: Whole = 50
    epochs: Whole | None = None
    batch_size: Whole | None = None
    client_lr: AutoRate = "auto"
    lr_decay: Annotated[float, Limits(above=0, most=1)] = 1.0
    momentum: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    head_init: HeadInit | None = None

    @property
    def duration(self) -> int:
        """How long a client works in a round: epochs, where they are given, or steps."""
        return self.steps if self.epochs is None else self.epochs

    def steps_of(self, problem: Problem, duration: int) -> int:
        """Count the steps of a client's work that lasts so many steps, or epochs where those are given."""
        if self.epochs is None:
            return duration
        return duration * ceil(problem.samples / (self.batch_size or problem.samples))

    def decayed(self, round_number: int) -> float:
        """Give what is left of the first rate in a round; outside of rounds, 0, all of it."""
        return self.lr_decay ** max(0, round_number - 1)

    def gradients_counted(self, steps: int) -> float:
        """Add up how often each gradient of some steps counts: once, and again in the momentum of later ones."""
        total = times = 0.0
        for _ in range(steps):
            times = self.momentum * times + 1
            total += times
        return total

    def start_of(self, head: Head) -> HeadInit:
        """Say how a head starts: as given, or as is usual for its kind."""
        if self.head_init is not None:
            return self.head_init
        return "centred" if isinstance(head, LinearHead) else "zeros"

    def new_head(self, problem: Problem, seed: int) -> Weights:
        """Draw a client's own first head."""
        return problem.new_head(self.start_of(problem.head), seed)

    def own_part(self, model: Model, weights: Weights) -> Weights:
        """Take from a model's weights what stays with a client because the model says so."""
        return model.personal_part(weights)

    def whole(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Give the model that a client's steps begin at: the shared one, and what of it is its own."""
        return {**shared, **self.own_part(problem.model, state)}

    def descend(
        self,
        problem: Problem,
        weights: Weights,
        *,
        duration: int | None = None,
        rate: float | Literal["auto"] | None = None,
        only: Sequence[str] | None = None,
        anchor: Weights | None = None,
        mu: float = 0.0,
        slope: Weights | None = None,
        on_features: FeatureTerm | None = None,
        draw: str = "batches",
    ) -> Weights:
        """Take a round's steps, or as many as are said, on l_i(w) + decay/2 |w|^2 + mu/2 |w - anchor|^2 + <slope, w>.

        Parameters
        ----------
        duration
            In steps, or epochs where those are given.
        rate
            beta, if it is not `client_lr`.
        only
            The weights that move; all of them, if it is None.
        anchor
            What they are pulled to; those that it has not are not pulled.
        on_features
            A loss of the features that is added.
        draw
            What the batches are drawn for: the same words give the same batches in a round.
        """
        steps = self.steps_of(problem, self.duration if duration is None else duration)
        if not steps:
            return weights
        moving = list(weights if only is None else only)
        rate = self.rate_of(problem, weights, moving, mu, rate, on_features)
        if self.batch_size is None or self.batch_size >= problem.samples:
            fixed = {"anchor": anchor if mu else None, "slope": slope}
            decays = self.weight_decay > 0
            if span := Span.of(problem, weights, steps=steps, moving=moving, decays=decays, **fixed):
                rule = Rule(rate, self.momentum, self.weight_decay, anchor, mu, slope)
                return steps_in(span, weights, moving, steps, rule, on_features)
        rule = Rule(rate, self.momentum, self.weight_decay, anchor, mu, slope)
        batches, masks = problem.batches(self.batch_size, steps, draw), problem.masks(draw)
        return take_steps(
            lambda w, batch: problem.gradient(w, batch, on_features=on_features, masks=masks),
            weights,
            moving,
            batches,
            rule,
        )

    def welcome(
        self, shared: Weights, state: Weights, problem: Problem, *, steps: int | None = None
    ) -> Weights:
        """Fit a newcomer's head to the shared backbone; parts of the backbone that are personal take steps with it."""
        if not self.own_part(problem.model, state):
            return super().welcome(shared, state, problem, steps=steps)
        return self.fitted(shared, state, problem, steps)

    def fitted(self, shared: Weights, own: Weights, problem: Problem, duration: int | None = None) -> Weights:
        """Fit a client's own part of a model to the shared one, which is held as it is; nothing, where it has none."""
        if not own:
            return own
        ended = self.descend(problem, {**shared, **own}, duration=duration, only=list(own))
        return {name: ended[name] for name in own}

    def rate_of(
        self,
        problem: Problem,
        weights: Weights,
        moving: Sequence[str],
        mu: float = 0.0,
        rate: float | Literal["auto"] | None = None,
        on_features: FeatureTerm | None = None,
        model_at: Callable[[Weights], Weights] = lambda weights: weights,
    ) -> float:
        """Give beta of a client's steps that begin at these weights, in this round.

        `model_at` makes backbone and head of them, where they are something else.
        """
        rate = self.client_lr if rate is None else rate
        if rate == "auto":
            constant = _smoothness(problem, weights, moving, self.batch_size, on_features, model_at)
            rate = best_rate(constant + mu + self.weight_decay)
        return rate * self.decayed(problem.round_number)

    def head_steps(
        self,
        problem: Problem,
        weights: Weights,
        duration: int,
        *,
        rate: float | Literal["auto"] | None = None,
        features: Tensor | None = None,
    ) -> Weights:
        """Take steps on the head alone, by the features of one forward pass, unless they are known; give the head."""
        head = {name: w for name, w in weights.items() if is_head(name)}
        steps = self.steps_of(problem, duration)
        if not steps:
            return head
        features = problem.features(weights) if features is None else features
        rate = self.client_lr if rate is None else rate
        if rate == "auto":
            constant = problem.head_smoothness(head, features)
            ratio = _roughness(problem, features, constant, self.batch_size)
            rate = best_rate(constant * ratio + self.weight_decay)
        rate *= self.decayed(problem.round_number)
        if self.batch_size is None and not self.weight_decay:
            descent = Descent(rate, "momentum" if self.momentum else "gd", self.momentum)
            return problem.head_steps(head, features, steps, descent)

        def gradient(head: Weights, batch: Tensor | None) -> Weights:
            phi, targets = features, problem.targets
            if batch is not None:
                phi, targets = phi[batch], targets[batch]
            return problem.head.gradient(head, phi, targets, problem.task).head

        batches = problem.batches(self.batch_size, steps, "head batches")
        return take_steps(gradient, head, list(head), batches, Rule(rate, self.momentum, self.weight_decay))


def _smoothness(
    problem: Problem,
    weights: Weights,
    moving: Sequence[str],
    batch_size: int | None,
    on_features: FeatureTerm | None,
    model_at: Callable[[Weights], Weights],
) -> float:
    """L of the loss in the weights that move: the head's, or the curvature of all of them here if that is more."""
    model = model_at(weights)
    features = problem.features_in_steps(model)
    constant = problem.head_smoothness(model, features)
    ratio = _roughness(problem, features, constant, batch_size)
    # in one order, however the weights were kept: the power method starts at random
    start = {name: weights[name] for name in sorted(moving) if not is_statistic(name)}
    with suppress(RuntimeError):  # a backbone that cannot be differentiated twice trains all the same
        here = problem.smoothness(
            start, lambda moved: model_at({**weights, **moved}), _ITERATIONS, on_features=on_features
        )
        constant = max(constant, here)
    return constant * ratio


def _roughness(problem: Problem, features: Tensor, constant: float, batch_size: int | None) -> float:
    """Say how much less smooth a mini-batch's loss is than that of all samples, as a linear head sees it."""
    if batch_size is None or batch_size >= problem.samples or not constant:
        return 1.0
    largest = problem.task.curvature * _largest_square(features.double(), problem.weights)
    return max(1.0, expected_smoothness(constant, largest, problem.samples, batch_size) / constant)


def _largest_square(features: Tensor, weights: Tensor | None) -> float:
    """Give the largest |phi|^2 + 1 of all samples, each times its weight."""
    squares = features.square().sum(dim=1)
    return float(squares.max() + 1) if weights is None else float((weights * (squares + 1)).max())
