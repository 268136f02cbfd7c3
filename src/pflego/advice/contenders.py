"""Who competes: learning alone, one model for everybody, heads of one's own. What a round of each costs a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pflego.algorithms.base import Algorithm
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.local import Local
from pflego.algorithms.pflego import PFLEGO
from pflego.federation.roster import Federation
from pflego.learning.heads import HeadInit, LinearHead
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.learning.theory import best_rate
from pflego.report.words import significant
from pflego.runs.cost import Cost, measure

ALONE = ("alone", "alone-longer")
ONE_MODEL = "one-model"
OWN_HEADS = "own-heads"
COMMON_HEAD = "common-head"
PERSONAL = (OWN_HEADS, COMMON_HEAD)
FEDERATED = (ONE_MODEL, *PERSONAL)

_OF_BEST_RATE = (0.3, 1.0, 0.1)  # rates of plain gradient descent that are tried, in parts of 1/L
_SERVER_RATES = {False: (0.003, 0.01), True: (0.002, 0.006)}  # of PFLEGO, by whether it has a common head
_ASKED = 9  # clients that are asked for L


@dataclass(frozen=True)
class Contender:
    """A way to learn, and the rates at which it is tried."""

    name: str
    words: str
    variants: tuple[Algorithm, ...]
    passes: int  # through the backbone and back, a client and round

    @property
    def dear(self) -> bool:
        """Whether a round costs so much that rates are not tried at full length."""
        return self.passes > 1


def contenders(model: Model, federation: Federation, *, steps: int) -> list[Contender]:
    """List the contenders. Beside heads that are not linear there is no common head.

    Beside a small head that is trained together with it a backbone learns slowly. So in classification all linear heads
    start centred but PFLEGO's own ones, which are fitted first.
    """
    best = _usual_rate(model, federation)
    rates = [significant(part * best, 2) for part in _OF_BEST_RATE]
    linear = isinstance(model.head(federation.outputs), LinearHead)
    init: HeadInit = "centred" if linear and federation.classes is not None else "zeros"
    alone = [(ALONE[0], "alone, as many passes", 1)]
    if steps > 1:
        alone.append((ALONE[1], f"alone, {steps} times as many", steps))
    found = []
    for name, words, passes in alone:
        own = tuple(Local(steps=passes, client_lr=rate, head_init=init) for rate in rates)
        found.append(Contender(name, words, own, passes))
    shared = tuple(FedAvg(steps=steps, client_lr=rate, labels="global", head_init=init) for rate in rates)
    found.append(Contender(ONE_MODEL, "one model (FedAvg)", shared, steps))
    for name, words, common in [
        (OWN_HEADS, "own heads (PFLEGO)", False),
        (COMMON_HEAD, "own heads and a common one (PFLEGO)", True),
    ]:
        start = init if common else "zeros"
        variants = tuple(
            PFLEGO(steps=steps, server_lr=rate, common_head=common, head_init=start)
            for rate in _SERVER_RATES[common]
        )
        found += [Contender(name, words, variants, 1)] if linear or not common else []
    return found


def costs(
    competing: Sequence[Contender], federation: Federation, model: Model, *, device: str | torch.device
) -> dict[str, Cost]:
    """Measure a round of the client of median size. Where every step is alike, one is measured and multiplied."""
    found = {}
    for contender in competing:
        method, times = contender.variants[0], contender.passes
        if isinstance(method, Local | FedAvg):
            method = replace(method, steps=1)
        cost = measure(federation, model, method, device=device)
        found[contender.name] = replace(
            cost,
            flops=times * cost.flops,
            forward_passes=times * cost.forward_passes,
            backward_passes=times * cost.backward_passes,
            seconds=times * cost.seconds,
        )
    return found


def _usual_rate(model: Model, federation: Federation) -> float:
    """1/L of a head on the untrained backbone's features, the median over some clients: the scale for other rates."""
    problems = Problems(federation, model, labels="global")
    weights = model.weights()
    found = []
    for position in range(min(_ASKED, len(federation))):
        problem = problems[position]
        features = problem.forward(weights).features
        found.append(best_rate(problem.head_smoothness(problem.new_head("zeros", 0), features)))
    return median(found)
