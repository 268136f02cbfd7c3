"""Gradient descent on a client's whole model: FedAvg, FedProx, FedPer and FedRep.

    v <- momentum v + grad l_B(w) + decay w + mu (w - anchor),    w <- w - beta v

l_B is the loss on all samples, or on a mini-batch B of them. Every step is a pass each way through the same graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from pflego_light.arrays import HEAD, Weights
from pflego_light.head import Bound, Descent
from pflego_light.problem import Places, Problem
from pflego_light.round import Round
from pflego_light.update import Update
from pflego_light.welcome import fit_head


@dataclass(frozen=True)
class LocalSteps:
    """What a client does, by the settings of a kit."""

    settings: Mapping[str, Any]

    @property
    def _shares_head(self) -> bool:
        return self.settings["name"] in ("fedavg", "fedprox")

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or nothing where the head is shared."""
        return {} if self._shares_head else {HEAD: problem.new_head(self.settings["head_init"], seed)}

    def update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """Take the round's steps; send how far what is shared went, keep the rest."""
        weights = self.adapt(shared, state, problem)
        moved = {name: weights[name] - w for name, w in shared.items()}
        own = {name: w for name, w in weights.items() if name not in shared}
        return Update(own, moved, self.personal(shared, weights, problem))

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take the steps of a round."""
        own, weights = self.settings, {**shared, **state}
        if own["name"] == "fedrep":
            weights = self._head_steps(problem, weights, self._duration - own["body_steps"])
            return self._descend(problem, weights, own["body_steps"], only=list(problem.kit.shapes))
        mu = own["mu"] if own["name"] == "fedprox" else 0.0
        return self._descend(problem, weights, self._duration, anchor=shared, mu=mu)

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the shared model, or what a client has made of it, fine-tuned if asked."""
        weights, fine_tune = {**shared, **state}, self.settings.get("fine_tune", 0)
        if not fine_tune:
            return weights
        if self.settings["fine_tune_part"] == "head":
            return self._head_steps(problem.at(), weights, fine_tune)
        return self._descend(problem.at(), weights, fine_tune)

    def welcome(self, shared: Weights, state: Weights, problem: Problem, steps: int | None) -> Weights:
        """Fit a first head to the present theta by steps of 1/L_i; a shared one is as it is."""
        if self._shares_head:
            return state
        sight = problem.sight(problem.features(shared))
        return {HEAD: fit_head(sight, state[HEAD], Bound(problem.smoothness(sight)).descent(), steps)}

    @property
    def _duration(self) -> int:
        epochs = self.settings["epochs"]
        return int(self.settings["steps"] if epochs is None else epochs)

    def _steps_of(self, problem: Problem, duration: int) -> int:
        """Count the steps of work that lasts so many steps, or epochs where those are given."""
        if self.settings["epochs"] is None:
            return duration
        size: int = self.settings["batch_size"] or problem.samples
        return duration * ceil(problem.samples / size)

    def _rate(self, problem: Problem) -> float:
        return float(
            self.settings["client_lr"] * self.settings["lr_decay"] ** max(0, problem.round_number - 1)
        )

    def _descend(
        self,
        problem: Problem,
        weights: Weights,
        duration: int,
        *,
        only: Sequence[str] | None = None,
        anchor: Weights | None = None,
        mu: float = 0.0,
    ) -> Weights:
        steps = self._steps_of(problem, duration)
        batches = problem.batches(self.settings["batch_size"], steps, "batches")
        moving = list(weights if only is None else only)
        return self._take(problem.gradient, weights, moving, batches, self._rate(problem), anchor or {}, mu)

    def _head_steps(self, problem: Problem, weights: Weights, duration: int) -> Weights:
        """Take steps on the head alone, by the features of one forward pass."""
        own, steps = self.settings, self._steps_of(problem, duration)
        if not steps:
            return weights
        features, rate = problem.features(weights), self._rate(problem)
        if own["batch_size"] is None and not own["weight_decay"]:
            descent = Descent(rate, "momentum" if own["momentum"] else "gd", own["momentum"])
            return {**weights, HEAD: descent.steps(problem.sight(features), weights[HEAD], steps)}

        def gradient(weights: Weights, batch: Places | None) -> Weights:
            sight = problem.sight(features)
            if batch is not None:
                sight = type(sight)(features[batch], problem.targets[batch], sight.softmax)
            return {HEAD: sight.slope(weights[HEAD])}

        batches = problem.batches(own["batch_size"], steps, "head batches")
        return self._take(gradient, weights, [HEAD], batches, rate, {}, 0.0)

    def _take(
        self,
        gradient: Callable[[Weights, Places | None], Weights],
        weights: Weights,
        moving: Sequence[str],
        batches: Iterable[Places | None],
        rate: float,
        anchor: Weights,
        mu: float,
    ) -> Weights:
        """Take a step for each batch in the weights that move; the others stay."""
        decay, momentum = np.float32(self.settings["weight_decay"]), np.float32(self.settings["momentum"])
        weights, velocity = dict(weights), dict[str, Any]()
        for batch in batches:
            found = gradient(weights, batch)
            for name in moving:
                move = found[name]
                if decay:
                    move = move + decay * weights[name]
                if mu and name in anchor:
                    move = move + np.float32(mu) * (weights[name] - anchor[name])
                if momentum:
                    move = velocity[name] = move + momentum * velocity[name] if name in velocity else move
                weights[name] = weights[name] - np.float32(rate) * move
        return weights
