"""What of a head is personal: all of it, or what is left beside a part that everybody shares.

With a common head the outputs are (W_0 + V_i) phi: the server trains W_0, a row for every class of the federation,
together with theta, and V_i is personal. The joint step is then an SGD step on {theta, W_0, V_1, ..., V_I}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pflego.errors import ModelError
from pflego.learning.heads import HEAD, HeadInit, LinearHead
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.randomness import torch_generator
from pflego.weights import Weights


@dataclass(frozen=True)
class OwnHead:
    """A client's state is its head W_i."""

    start: HeadInit

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """Return nothing: no head is shared."""
        return {}

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """W_i."""
        return problem.new_head(self.start, seed)

    def whole(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """Return the head that a client's outputs come from."""
        return state

    def own(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        """Return the part of such a head that the client keeps."""
        return head

    def anchor(self, shared: Weights, problem: Problem) -> Weights | None:
        """Return the weights a decay pulls the head to; None: to zero."""
        return None

    def contribution(
        self,
        shared: Weights,
        gradients: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> Weights:
        """Return what is sent of the heads' gradients."""
        return {}


@dataclass(frozen=True)
class CommonHead(OwnHead):
    """A client's state is V_i, beside its rows of the shared W_0."""

    def init_shared(self, model: Model, outputs: int, seed: int) -> Weights:
        """W_0."""
        if not isinstance(head := model.head(outputs), LinearHead):
            raise ModelError("common_head=True needs linear heads")
        return head.init(self.start, torch_generator(seed, "common head"), model.weight_dtype)

    def init_state(self, problem: Problem, seed: int) -> Weights:
        """V_i = 0."""
        return problem.new_head("zeros", seed)

    def whole(self, shared: Weights, state: Weights, problem: Problem) -> Weights:
        """W_0 + V_i, in the client's rows."""
        return {HEAD: shared[HEAD][problem.rows] + state[HEAD]}

    def own(self, shared: Weights, head: Weights, problem: Problem) -> Weights:
        """V_i."""
        return {HEAD: head[HEAD] - shared[HEAD][problem.rows]}

    def anchor(self, shared: Weights, problem: Problem) -> Weights:
        """Return the client's rows of W_0: a decay is one of V_i."""
        return {HEAD: shared[HEAD][problem.rows]}

    def contribution(
        self,
        shared: Weights,
        gradients: Sequence[Weights],
        problems: Sequence[Problem],
        weights: Sequence[float],
    ) -> Weights:
        """Sum the weighted gradients as one of W_0, by the rows that the heads have there."""
        total = torch.zeros_like(shared[HEAD])
        for gradient, problem, weight in zip(gradients, problems, weights, strict=True):
            total.index_add_(0, problem.rows, gradient[HEAD], alpha=weight)
        return {HEAD: total}
