"""PFLEGO, Algorithm 1 of the paper, on a client. Round t, head W_i:

    tau - 1 times   W_i   <- W_i - beta grad_W l_i(W_i, theta)
    once            g_i   =  grad_theta l_i(W_i, theta),  sent to the server
                    W_i   <- W_i - rho I/r grad_W l_i(W_i, theta)

theta does not move inside a round, so the features of one forward pass serve all tau steps. Beside a common head the
outputs are (W_0 + V_i) phi, and V_i is the client's own; heads that are solved for are at their minimum, and no state
is kept. docs/kit.md has every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from pflego_light.arrays import HEAD, Floats, Weights
from pflego_light.head import Bound, Descent, Sight, best_rate
from pflego_light.problem import Problem
from pflego_light.round import Round
from pflego_light.solve import solve_head
from pflego_light.update import Update
from pflego_light.welcome import fit_head


@dataclass(frozen=True)
class Fitted:
    """What came of a head's steps."""

    head: Floats
    descent: Descent
    smoothness: float
    limit: float  # the largest rate of the last step
    fallbacks: int = 0


@dataclass(frozen=True)
class Pflego:
    """What a client does, by the settings of a kit."""

    settings: Mapping[str, Any]

    @property
    def _solves(self) -> bool:
        return bool(self.settings["head_optimizer"] == "solve")

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i, or V_i = 0 beside a common head; nothing where heads are solved for."""
        if self._solves:
            return {}
        return {
            HEAD: problem.new_head(
                "zeros" if self.settings["common_head"] else self.settings["head_init"], seed
            )
        }

    def update(self, now: Round, shared: Weights, state: Weights, problem: Problem) -> Update:
        """tau - 1 steps on the head, then the joint gradient: keep the head's part, send theta's."""
        alone = problem.some(self.settings["sample"], "samples of the head")
        problem = problem.some(self.settings["sample"], "samples of the joint step")
        forward = problem.forward(shared)
        sight = problem.sight(forward.features)
        seen = sight if alone is problem else alone.sight(alone.features(shared))
        fitted = self._fit(shared, state, problem, seen)
        at, descent = sight.gradient(fitted.head), fitted.descent
        loss, factor = None, 1.0
        if now.emphasis is not None:
            loss = descent.objective(sight, fitted.head)
            factor = now.emphasis.factor(loss)
        contribution = forward.backward(at.features if factor == 1 else at.features * np.float32(factor))
        if self.settings["common_head"]:
            total = np.zeros_like(shared[HEAD])
            total[problem.rows] = at.head * np.float32(factor)
            contribution[HEAD] = total
        rate = self.settings["server_lr"] * now.scale * factor
        rate *= now.alpha if self.settings["head_step"] == "exact" else 1.0
        taken = min(rate, fitted.limit)
        slope = at.head + descent.pull(fitted.head) if descent.decay else at.head
        head = fitted.head - np.float32(taken) * slope
        whole = problem.samples == len(problem.data.x_train)
        return Update(
            self._kept(shared, head, problem),
            contribution,
            {**shared, HEAD: head},
            metrics={"fallbacks": (fitted.fallbacks, "sum", 1.0), **self._bound(fitted, taken)},
            loss=sight.loss(head) if whole else None,
            joint_loss=loss,
        )

    def personal(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """theta and W_i, or W_0 + V_i, or the head that is solved for."""
        if self._solves:
            sight = problem.sight(problem.features(shared))
            return {**shared, HEAD: self._fit(shared, state, problem, sight).head}
        return {**shared, HEAD: self._whole(shared, state, problem)}

    def adapt(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Take tau - 1 steps against the present theta."""
        if self._solves:
            return {}
        fitted = self._fit(shared, state, problem, problem.sight(problem.features(shared)))
        return self._kept(shared, fitted.head, problem)

    def welcome(self, shared: Weights, state: Weights, problem: Problem, steps: int | None) -> Weights:
        """Fit a first head to the present theta by steps of 1/L_i, held near W_0 beside a common head."""
        if self._solves:
            return {}
        decay, anchor = float(self.settings["head_decay"]), self._anchor(shared, problem)
        sight = problem.sight(problem.features(shared))
        descent = Bound(problem.smoothness(sight)).descent(decay, anchor)
        head = fit_head(sight, self._whole(shared, state, problem), descent, steps)
        return self._kept(shared, head, problem)

    def _fit(self, shared: Weights, state: Weights, problem: Problem, sight: Sight) -> Fitted:
        own, anchor = self.settings, self._anchor(shared, problem)
        decay = float(own["head_decay"])
        if self._solves:
            return Fitted(
                solve_head(sight, decay, anchor), Descent(0.0, decay=decay, anchor=anchor), 0.0, 0.0
            )
        rate, measured = own["client_lr"], isinstance(own["client_lr"], str)
        bound = problem.bound(sight) if rate == "centred" else Bound(problem.smoothness(sight))
        smoothness = bound.largest + decay
        descent = bound.descent(decay, anchor)
        descent = replace(
            descent,
            rate=descent.rate if measured else rate,
            rule=own["head_optimizer"],
            momentum=own["momentum"],
        )
        head, fallbacks = descent.guarded_steps(sight, self._whole(shared, state, problem), own["steps"] - 1)
        limit = best_rate(smoothness) if measured and own["head_step"] != "exact" else inf
        return Fitted(head, descent, smoothness, limit, fallbacks)

    def _bound(self, fitted: Fitted, last: float) -> dict[str, tuple[float, str, float]]:
        """Compare rates with 2/L, below which every step goes downhill."""
        own, rates = self.settings, [last]
        if (
            not isinstance(own["client_lr"], str)
            and own["head_optimizer"] in ("gd", "solve")
            and own["steps"] > 1
        ):
            rates.append(own["client_lr"])
        ratio = max(rates) * fitted.smoothness / 2
        return {"above_bound": (float(ratio >= 1), "sum", 1.0), "rate_over_bound": (ratio, "largest", 1.0)}

    def _anchor(self, shared: Weights, problem: Problem) -> Floats | None:
        return shared[HEAD][problem.rows] if self.settings["common_head"] else None

    def _whole(self, shared: Weights, state: Weights, problem: Problem) -> Floats:
        anchor = self._anchor(shared, problem)
        return state[HEAD] if anchor is None else anchor + state[HEAD]

    def _kept(self, shared: Weights, head: Floats, problem: Problem) -> Weights:
        if self._solves:
            return {}
        anchor = self._anchor(shared, problem)
        return {HEAD: head if anchor is None else head - anchor}
