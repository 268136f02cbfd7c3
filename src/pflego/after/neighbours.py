"""Nearest neighbours beside a client's model, after training with any method (kNN-Per, Marfoq et al., 2022).

    p(x) = lambda sum_j s_j t_j + (1 - lambda) link(z(x)),      s_j = e^(-d_j / M) / sum_l e^(-d_l / M)

over the k training samples j of the client whose features are nearest to phi(x): d_j is the squared distance of the
two, t_j the target of j, z the outputs of the client's own model, M the number of features. Nothing is trained, and
nothing leaves the client: it keeps the features of its own samples.

Every client chooses k and lambda by itself. Some of its training samples, drawn by the seed, are looked up among the
others; the pair with the most right answers (in regression the least error) is taken, of several the one with the
least loss. The model was trained on these samples too, while their neighbours are others: the choice leans towards a
model that has learned its samples by heart. Test data have no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor

from pflego.engines.local import LocalEngine
from pflego.engines.parallel import map_in_threads
from pflego.errors import SettingError
from pflego.learning.evaluation import Row, Score, table
from pflego.learning.problem import Problem
from pflego.learning.task import Classification, Task
from pflego.learning.weighted import labels_in, plain
from pflego.randomness import torch_generator
from pflego.runs.run import Run
from pflego.weights import Weights

_AT_A_TIME = 1024  # samples that are looked up together


@dataclass(frozen=True)
class Search:
    """What clients choose from.

    Parameters
    ----------
    neighbours
        Values of k.
    shares
        Values of lambda, from 0 to 1. 0 is the model alone, 1 its neighbours alone, for whom a class that none of them
        has is impossible.
    held_out
        The share of a client's training samples that the choice is made on.
    """

    neighbours: Sequence[int] = (5, 10)
    shares: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    held_out: float = 0.25

    def __post_init__(self) -> None:
        if not self.neighbours or min(self.neighbours) < 1:
            raise SettingError(f"neighbours must be whole numbers from 1 on, not {self.neighbours!r}")
        if not self.shares or not all(0 <= share <= 1 for share in self.shares):
            raise SettingError(f"shares must be numbers from 0 to 1, not {self.shares!r}")
        if not 0 < self.held_out < 1:
            raise SettingError(f"held_out must be a share between 0 and 1, not {self.held_out!r}")


@dataclass(frozen=True)
class Choice:
    """k and lambda of one client."""

    neighbours: int
    share: float


def evaluate(run: Run, search: Search = Search(), *, adapt: bool = False) -> list[Row]:
    """Try every client's model with its neighbours on the client's own test data, one row per client.

    >>> import pflego
    >>> federation = pflego.load("digits", clients=10, classes_per_client=5)
    >>> run = pflego.train(federation, pflego.models.build("mlp", (64,)), pflego.FedAvg(steps=10), rounds=3)
    >>> rows = evaluate(run)
    >>> sum(row["accuracy"] for row in rows) > sum(row["accuracy"] for row in run.evaluate())
    True

    Parameters
    ----------
    run
        Of any method.
    search
        What clients choose k and lambda from.
    adapt
        Let each client first take the local steps that a participant takes before it is judged.
    """
    return table(run.federation.ids, scores(run, search, adapt=adapt), run.federation.task)


def scores(run: Run, search: Search = Search(), *, adapt: bool = False) -> list[Score]:
    """Give every client's test result with neighbours, in the order of the federation."""
    engine = LocalEngine(run.problems, run.algorithm, run.states)

    def score(position: int) -> Score:
        problem = run.problems[position]
        weights = engine.personal(run.shared, problem, adapt=adapt)
        memory = Memory.of(problem, weights)
        return memory.test(problem, weights, memory.choose(search, run.plan.seed))

    everybody = range(len(run.federation))
    return map_in_threads(score, everybody, size=run.problems.size(everybody), device=run.problems.device)


@dataclass(frozen=True)
class Memory:
    """What a client remembers of its training samples."""

    client: object
    task: Task
    features: Tensor  # (samples, M)
    targets: Tensor  # (samples, outputs)
    outputs: Tensor  # z of the client's model, (samples, outputs)

    @classmethod
    def of(cls, problem: Problem, weights: Weights) -> Memory:
        """Pass a client's samples through its model once."""
        features = problem.features(weights)
        outputs = problem.head.outputs(weights, features)
        labels = labels_in(problem.task, problem.targets)
        return cls(problem.client.id, plain(problem.task), features, labels, outputs)

    def choose(self, search: Search, seed: int) -> Choice:
        """Choose k and lambda; without two samples there is nothing to choose by, and the model is alone."""
        samples = len(self.features)
        held = min(max(1, round(search.held_out * samples)), samples - 1)
        if held < 1:
            return Choice(1, 0.0)
        generator = torch_generator(seed, "held out of the neighbours", client=self.client)
        order = torch.randperm(samples, generator=generator).to(self.features.device)
        tried, kept = order[:held], order[held:]
        there = Memory(self.client, self.task, self.features[kept], self.targets[kept], self.outputs[kept])
        best: tuple[tuple[float, float], Choice] | None = None
        for k in search.neighbours:
            near = there.near(self.features[tried], k)
            for share in search.shares:
                z = _mixed(self.task, near, self.outputs[tried], share)
                right = float(self.task.scores(z, self.targets[tried]).sum())
                loss = float(self.task.loss(z, self.targets[tried]))
                cost = (-right if self.task.higher_is_better else right, loss)
                if best is None or cost < best[0]:
                    best = cost, Choice(k, share)
        assert best is not None
        return best[1]

    def near(self, features: Tensor, k: int) -> Tensor:
        """Give sum_j s_j t_j over the k nearest of every sample, (samples, outputs)."""
        return torch.cat([self._near(part, k) for part in torch.split(features, _AT_A_TIME)])

    def _near(self, features: Tensor, k: int) -> Tensor:
        own = self.features.to(self.targets)
        distances = torch.cdist(features.to(own), own).square()  # (samples, remembered)
        nearest = distances.topk(min(k, len(own)), dim=1, largest=False)
        weights = torch.softmax(-nearest.values / own.shape[1], dim=1)
        return torch.einsum("nk,nko->no", weights, self.targets[nearest.indices])

    def test(self, problem: Problem, weights: Weights, choice: Choice) -> Score:
        """Look at the result on the client's test data."""
        if len(problem.client.x_test) == 0:
            return Score(0, None, 0.0)
        features, targets = problem.test_features(weights)
        outputs = problem.head.outputs(weights, features)
        z = _mixed(self.task, self.near(features, choice.neighbours), outputs, choice.share)
        loss = float(self.task.loss(z, targets)) if self.task.known(targets) else nan
        return Score(len(z), loss if isfinite(loss) else None, float(self.task.scores(z, targets).sum()))


def _mixed(task: Task, near: Tensor, outputs: Tensor, share: float) -> Tensor:
    """Give outputs z' whose link(z') is the mixture: of probabilities their logarithms, of numbers themselves."""
    alone = task.residual(outputs, torch.zeros_like(outputs))  # link(z)
    mixture = torch.lerp(alone, near.to(alone), share)
    if not isinstance(task, Classification):
        return mixture
    return mixture.clamp(min=torch.finfo(mixture.dtype).tiny).log()
