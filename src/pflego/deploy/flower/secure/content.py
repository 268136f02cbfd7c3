"""What goes into a secure sum: a contribution as a row of numbers, and figures beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import torch

from pflego.codec import Reader, digest
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.messages import Moment, read_round
from pflego.deploy.flower.secure.fixed_point import Floats
from pflego.deploy.flower.secure.noise import draw_share
from pflego.exchange.metrics import How, Metric, Metrics, largest, total
from pflego.exchange.round import Round
from pflego.exchange.transforms import Clip
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.weights import Weights, norm

CLIPPED = "clipped"  # the metric: clients whose contribution was shortened
PASSES = ("forward_passes", "backward_passes")
SCORE = 3  # figures of a test result
_MARGIN = 1e-6  # under noise a contribution is shorter by this share, so that no rounding lengthens it beyond the clip


def row_of(
    contribution: Weights, *, clip: float, weight: float, now: Round, client: ClientId, deviation: float = 0.0
) -> Floats:
    """Clip a contribution, multiply it by its weight, add noise, and lay it out by the order of its names.

    This is all that leaves of it.

    deviation: of this client's share of the noise; 0: none.
    """
    limit = clip * (1 - _MARGIN) if deviation else clip
    clipped = Clip(limit)(contribution, now, client)
    rows = [clipped[name].detach().cpu().double().reshape(-1).numpy() for name in sorted(clipped)]
    row = weight * np.concatenate([np.zeros(0), *rows])
    return row + draw_share(len(row), deviation) if deviation else row


def contribution_of(row: Floats, like: Weights) -> Weights:
    """Give a sum as tensors by the names and shapes of a contribution."""
    found, done = {}, 0
    for name in sorted(like):
        tensor = like[name]
        part = torch.from_numpy(row[done : done + tensor.numel()].copy()).view(tensor.shape)
        found[name] = part.to(torch.result_type(tensor, 1.0))
        done += tensor.numel()
    return {name: found[name] for name in like}


def summable(metrics: Mapping[str, How]) -> dict[str, How]:
    """Choose the metrics that a sum can tell; of the largest of all it cannot, and only passes are given as a mean."""
    return {name: how for name, how in metrics.items() if how != "largest" or name in PASSES}


def figures_of(metrics: Metrics, names: Sequence[str]) -> Floats:
    """Give two figures for every metric, weight times value and the weight; zeros for what was not measured."""
    measured = [metrics.get(name, Metric(0.0, "sum", 0.0)) for name in names]
    return np.array(
        [number for metric in measured for number in (metric.total, metric.weight)], dtype=np.float64
    )


def metrics_of(figures: Floats, known: Mapping[str, How]) -> dict[str, Metric]:
    """Give the metrics of all clients together."""
    sums = dict(zip(known, figures.reshape(-1, 2).tolist(), strict=True))
    return {
        name: largest(value / (weight or 1.0)) if name in PASSES else Metric(value, known[name], weight)
        for name, (value, weight) in sums.items()
    }


def with_clipped(metrics: Metrics, contribution: Weights, *, clip: float) -> dict[str, Metric]:
    """Add to a client's metrics whether its contribution was shortened."""
    return {**metrics, CLIPPED: total(float(norm(contribution) > clip))}


def figures_of_score(score: Score) -> Floats:
    """Give a test result as figures."""
    return np.array([score.samples, (score.loss or 0.0) * score.samples, score.score], dtype=np.float64)


def score_of(figures: Floats) -> Score:
    """Give the test result of all clients together."""
    samples, loss, score = figures.tolist()
    count = round(samples)
    return Score(count, loss / count if count else None, score)


def question_of(received: Weights, when: Round | Moment, common: Common, names: Sequence[str] = ()) -> str:
    """Digest what all clients of a sum are asked for: the same for everybody, but for what the roster says of each."""
    facts = asdict(when)
    if isinstance(when, Round):
        sent = json.loads(json.dumps(facts))  # as it is on the other side
        facts = asdict(read_round(Reader(sent))) | {"alpha": None, "scale": None}
    return digest(received, json.dumps([facts, asdict(common), list(names)], sort_keys=True))
