"""The contest: every contender learns from a part of each client's data and is tried on the rest.

There are several splits. What has to be chosen (a rate, a round to stop after, the best of several contenders) is
chosen on the other splits than the one it is then measured on: whoever is chosen on the samples it is measured on
looks better than it is. The test data are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite

import numpy as np
import numpy.typing as npt
import torch

from pflego.advice.contenders import Contender
from pflego.advice.plan import RATES_CLIENTS, rates_rounds
from pflego.advice.statistics import Floats, Integers
from pflego.algorithms import Algorithm
from pflego.data.validation import hold_out
from pflego.engines.local import LocalEngine
from pflego.errors import UserError
from pflego.federation.roster import Client, Federation
from pflego.learning.model import Model
from pflego.learning.task import Task
from pflego.randomness import entropy
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.callbacks import Callback
from pflego.training.train import train
from pflego.weights import Weights, to

_EARLY = 5  # rounds after which shared weights are looked at
_EVALUATIONS = 8


@dataclass(frozen=True)
class Candidate:
    """A contender with a rate, stopped after a round."""

    name: str
    algorithm: Algorithm
    round: int


@dataclass(frozen=True)
class Split:
    """Every candidate's score on every sample that was held out."""

    owners: Integers  # (samples,): positions of clients
    scores: dict[Candidate, Floats]  # (samples,) each


@dataclass(frozen=True)
class Fair:
    """Scores of the best of some contenders, chosen on other splits than it is measured on."""

    owners: Integers  # (samples of all splits,)
    scores: Floats
    chosen: tuple[Candidate, ...]  # a split each


@dataclass(frozen=True)
class Contest:
    """What all contenders came to."""

    task: Task
    splits: Sequence[Split]
    early: dict[str, tuple[Algorithm, int, Weights]]  # by contender: shared weights after this many rounds
    unseen: int = 0  # held-out samples of a class that their client has no other sample of

    def figure(self, candidate: Candidate, splits: Sequence[Split] | None = None) -> float:
        """Compute a candidate's figure over some splits, all if none are named."""
        return self.task.metric_value(self._mean(candidate, splits or self.splits))

    def best(self, names: Iterable[str], splits: Sequence[Split] | None = None) -> Candidate:
        """Return the best candidate of some contenders on some splits (None: all); of equals, the longest."""
        splits = splits or self.splits
        chosen = set(names)

        def rank(candidate: Candidate) -> tuple[float, int]:
            mean = self._mean(candidate, splits)
            good = mean if self.task.higher_is_better else -mean
            return good if isfinite(good) else -inf, candidate.round

        found = max((c for c in splits[0].scores if c.name in chosen), key=rank)
        if not isfinite(self._mean(found, splits)):
            raise UserError(
                f"{found.name} came to no finite figure at any rate: check the scale of inputs and targets"
            )
        return found

    def fair(self, names: Iterable[str]) -> Fair:
        """Choose the best of some contenders, and measure it on samples it was not chosen on."""
        names = tuple(names)
        chosen = tuple(
            self.best(names, [other for other in self.splits if other is not split]) for split in self.splits
        )
        pairs = list(zip(self.splits, chosen, strict=True))
        return Fair(
            np.concatenate([split.owners for split in self.splits]),
            np.concatenate([split.scores[candidate] for split, candidate in pairs]),
            chosen,
        )

    def curve(self, candidate: Candidate) -> list[tuple[int, float]]:
        """List (round, figure) of a candidate, had it been stopped at other rounds."""
        rounds = sorted(
            c.round
            for c in self.splits[0].scores
            if (c.name, c.algorithm) == (candidate.name, candidate.algorithm)
        )
        return [
            (round_number, self.figure(replace(candidate, round=round_number))) for round_number in rounds
        ]

    @staticmethod
    def _mean(candidate: Candidate, splits: Sequence[Split]) -> float:
        return float(np.concatenate([split.scores[candidate] for split in splits]).mean())


def hold(
    federation: Federation,
    model: Model,
    competing: Sequence[Contender],
    compared: npt.NDArray[np.bool_],
    *,
    rounds: int,
    splits: int,
    seed: int,
    device: str | torch.device,
    tell: Callable[[str], None],
) -> Contest:
    """Let all contenders learn on every split, all clients in every round; only those to be compared are tried."""
    tuned = []
    comparable = [client for client, one in zip(federation, compared, strict=True) if one]
    some = Federation(comparable[:RATES_CLIENTS], schema=federation.schema)
    for contender in competing:
        if contender.dear:
            tell(f"{contender.words}: choosing a rate")
            contender = _with_best_rate(contender, _split(some, seed, 0), model, rounds, seed, device)
        tuned.append(contender)
    found: list[Split] = []
    early: dict[str, tuple[Algorithm, int, Weights]] = {}
    unseen = 0
    for number in range(1, splits + 1):
        part = _split(federation, seed, number)
        owners = np.repeat(np.arange(len(part)), [len(client.x_test) for client in part])
        tried = compared[owners]
        scores: dict[Candidate, Floats] = {}
        for contender in tuned:
            tell(f"{contender.words}: split {number} of {splits}")
            for algorithm in contender.variants:
                watch = _learn(part, model, algorithm, rounds, seed, device)
                scores |= {Candidate(contender.name, algorithm, r): s[tried] for r, s in watch.scores.items()}
                early.setdefault(contender.name, (algorithm, watch.early_round, watch.early))
        found.append(Split(owners[tried], scores))
        unseen += sum(_unseen(client) for client, one in zip(part, compared, strict=True) if one)
    return Contest(federation.task, found, early, unseen)


def evaluated(rounds: int) -> list[int]:
    """List the rounds after which a contender may stop, closer together at the beginning.

    >>> evaluated(25)
    [1, 2, 4, 7, 10, 15, 20, 25]
    """
    return sorted({ceil(rounds * (k / _EVALUATIONS) ** 2) for k in range(1, _EVALUATIONS + 1)})


class _Watch(Callback):
    """Tries everybody's model on every held-out sample, after some rounds."""

    def __init__(self, rounds: int) -> None:
        self._rounds = set(evaluated(rounds))
        self.scores: dict[int, Floats] = {}
        self.early: Weights = {}
        self.early_round = min(_EARLY, rounds)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        round_number = int(row["round"] or 0)
        if round_number in self._rounds:
            self.scores[round_number] = sample_scores(run)
        if round_number == self.early_round:
            self.early = to(run.shared, torch.device("cpu"))


@torch.no_grad()
def sample_scores(run: Run) -> Floats:
    """Compute the score of every test sample with its client's own model, in the order of the federation.

    1 or 0 for right or wrong; in regression the squared error, averaged over outputs.
    """
    engine = LocalEngine(run.problems, run.algorithm, run.states)
    task, model = run.federation.task, run.model
    found = [torch.empty(0)]
    for position in range(len(run.federation)):
        problem = run.problems[position]
        x, y = problem.client.x_test, problem.client.y_test
        if len(x) == 0:
            continue
        weights = engine.personal(run.shared, problem)
        slices = torch.split(x, problem.slice or len(x))
        features = [model.phi(weights, model.prepare(part, problem.device)) for part in slices]
        z = problem.head.outputs(weights, torch.cat(features)).cpu()
        found.append(task.scores(z, task.targets(y, problem.classes, z.dtype)))
    return np.asarray(torch.cat(found).double().numpy())


def _split(federation: Federation, seed: int, number: int) -> Federation:
    """Hold out a fifth of every client's samples; the split of number 0 is for choosing rates."""
    return hold_out(federation, seed=entropy(seed, "advice", round_number=number), by_class=False)


def _unseen(client: Client) -> int:
    """Count a client's test samples of classes it has no training sample of."""
    if client.y_test.is_floating_point():
        return 0
    return int((~torch.isin(client.y_test, client.classes)).sum())


def _learn(
    part: Federation,
    model: Model,
    algorithm: Algorithm,
    rounds: int,
    seed: int,
    device: str | torch.device,
) -> _Watch:
    watch = _Watch(rounds)
    train(
        part,
        model,
        algorithm,
        rounds=rounds,
        seed=seed,
        evaluate_every=None,
        device=device,
        callbacks=[watch],
        progress=False,
    )
    return watch


def _with_best_rate(
    contender: Contender,
    part: Federation,
    model: Model,
    rounds: int,
    seed: int,
    device: str | torch.device,
) -> Contender:
    """Keep that one of a contender's rates which does best in a short contest of its own."""
    scores: dict[Candidate, Floats] = {}
    for algorithm in contender.variants:
        watch = _learn(part, model, algorithm, rates_rounds(rounds), seed, device)
        scores |= {Candidate(contender.name, algorithm, r): s for r, s in watch.scores.items()}
    contest = Contest(part.task, [Split(np.empty(0, np.int64), scores)], {})
    return replace(contender, variants=(contest.best([contender.name]).algorithm,))
