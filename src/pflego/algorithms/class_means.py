"""The mean features of every class over a federation, which clients' features are pulled to.

    sent        S_ic = sum of phi(x) over the samples of class c / N_i,    n_ic = their number / N_i
    server      P_c = sum_i a_i S_ic / sum_i a_i n_ic

With a_i = N_i / N every sample counts the same, with a_i = 1/I every client; a class that nobody who answered has
keeps the mean it had. A regression is all one class. Where samples have weights, they count by these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pflego.learning.model import Model
from pflego.learning.problem import FeatureTerm, Problem
from pflego.learning.weighted import average, labels_in
from pflego.weights import Weights

MEANS = "class/means"  # shared: P, (classes, M)
KNOWN = "class/known"  # shared: 1 for classes that have a mean, 0 for others
SUMS = "class/sums"  # sent: S_i, (classes, M)
SHARES = "class/shares"  # sent: n_i, (classes,)
SENT = (SUMS, SHARES)


def unknown_means(model: Model, classes: int) -> Weights:
    """Give what is shared before anybody has sent anything."""
    means = torch.zeros(classes, model.features, dtype=model.weight_dtype)
    return {MEANS: means, KNOWN: means.new_zeros(classes)}


def classes_of(problem: Problem) -> Tensor:
    """Give the class of every training sample, by its place among those of the federation."""
    if len(problem.classes) == 0:
        return torch.zeros(problem.samples, dtype=torch.long, device=problem.device)
    return problem.rows[labels_in(problem.task, problem.targets).argmax(dim=1)]


def class_sums(problem: Problem, features: Tensor, classes: int) -> Weights:
    """Give what a client sends: S_i and n_i of its training samples."""
    own, features = classes_of(problem), features.to(problem.model.weight_dtype)
    each = features.new_ones(len(own))
    if (weights := problem.weights) is not None:
        each = weights.to(features)
        features = features * each[:, None]
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, own, features)
    counts = features.new_zeros(classes).index_add_(0, own, each)
    return {SUMS: sums / problem.samples, SHARES: counts / problem.samples}


def updated(shared: Weights, aggregate: Weights) -> Weights:
    """Give the new means, from the old ones and combined sums."""
    shares = aggregate[SHARES]
    seen = shares > 0
    means = aggregate[SUMS] / shares.where(seen, 1)[:, None]
    return {
        MEANS: torch.where(seen[:, None], means.to(shared[MEANS]), shared[MEANS]),
        KNOWN: torch.maximum(shared[KNOWN], seen.to(shared[KNOWN])),
    }


def pull(shared: Weights, problem: Problem, strength: float) -> FeatureTerm | None:
    """Give strength/M |phi(x) - P_c|^2, a mean over samples, in which those of unknown classes have no part.

    None where there is nothing to pull to.
    """
    own, weights = classes_of(problem), problem.weights
    goals, known = shared[MEANS][own], shared[KNOWN][own]  # (samples, M), (samples,)
    if not strength or not known.any():
        return None

    def term(features: Tensor, places: Tensor) -> Tensor:
        distances = (features - goals[places]).square().mean(dim=1)
        return strength * average(known[places] * distances, weights if weights is None else weights[places])

    return term
