"""Clients' models tried on data: each alone, or many in one pass. No part of a client's work, so nothing is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pflego.learning.evaluation import Score
from pflego.learning.weighted import plain
from pflego.weights import Weights

if TYPE_CHECKING:
    from pflego.learning.problem import Problem

NOTHING = Score(0, None, 0.0)  # of a client without test data


def score_of(problem: Problem, weights: Weights, x: Tensor, y: Tensor) -> Score:
    """Try one client's model on samples."""
    if x.shape[0] == 0:
        return NOTHING
    features, targets = problem.seen(weights, x, y)
    return _score(problem, weights, features, targets)


@torch.no_grad()
def scores_together(problems: Sequence[Problem], models: Sequence[Weights]) -> list[Score]:
    """Try several clients' models on their test data: in one pass, where all have the same backbone."""
    first, names = problems[0], [*problems[0].model.names, *problems[0].model.statistics]
    if len(problems) == 1 or any(model[name] is not models[0][name] for model in models for name in names):
        return [problem.test(model) for problem, model in zip(problems, models, strict=True)]
    tested = [place for place, problem in enumerate(problems) if problem.client.y_test.shape[0]]
    scores = [NOTHING] * len(problems)
    if not tested:
        return scores
    inputs = first.in_slices(torch.cat([problems[place].client.x_test for place in tested]))
    features = torch.cat([first.model.phi(models[0], x) for x in inputs])
    parts = torch.split(features, [problems[place].client.y_test.shape[0] for place in tested])
    alike = defaultdict(list)  # heads of as many outputs
    for place, part in zip(tested, parts, strict=True):
        alike[problems[place].outputs].append((place, part))
    for several in alike.values():
        own = [problems[place] for place, _ in several]
        z = [problems[place].head.outputs(models[place], part) for place, part in several]
        for (place, _), score in zip(several, _scores(own, z), strict=True):
            scores[place] = score
    return scores


def _score(problem: Problem, weights: Weights, features: Tensor, targets: Tensor) -> Score:
    with torch.no_grad():
        z, task = problem.head.outputs(weights, features), plain(problem.task)
        loss = float(task.loss(z, targets)) if task.known(targets) else nan
        return Score(z.shape[0], loss if isfinite(loss) else None, float(task.scores(z, targets).sum()))


def _scores(problems: Sequence[Problem], z: Sequence[Tensor]) -> list[Score]:
    """Score the outputs of clients, all (samples, K): a call for all of them, and sums over each one's samples."""
    task = plain(problems[0].task)
    outputs, targets = torch.cat(list(z)), torch.cat([p.targets_of(p.client.y_test) for p in problems])
    losses, known = task.losses(outputs, targets)
    table = torch.stack([losses.double(), known.double(), task.scores(outputs, targets).double()])
    counts = [one.shape[0] for one in z]
    begins = np.concatenate([[0], np.cumsum(counts[:-1])]).astype(np.int64)
    sums = np.add.reduceat(table.cpu().numpy(), begins, axis=1)  # (3, clients)
    return [
        Score(count, loss / seen if seen and isfinite(loss) else None, score)
        for count, (loss, seen, score) in zip(counts, sums.T.tolist(), strict=True)
    ]
