"""Every client: how good, on how much, of what, and where it is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pflego.data.schema import Schema, schema_of
from pflego.federation.remote import NotHereError
from pflego.federation.roster import Client, Federation
from pflego.report.alone import Alone
from pflego.report.words import Metric, significant
from pflego.runs.run import Run
from pflego.runs.summary import Evaluation

SHOWN = 2000  # clients on the page; of more, this many that lie evenly between the first and the last
EXAMINED = 300  # clients whose answers are looked at one by one; of more, those with the worst figures
_ROUNDS = 100  # of a client's own curve
_PAIRS = 200  # answers of one client in a regression
_BINS = 40

Counts: TypeAlias = list[tuple[int, int]]  # (class, samples)


@dataclass(frozen=True)
class Answers:
    """What a client's model says of its test samples."""

    confusion: (
        list[tuple[int, int, int]] | None
    )  # (class, predicted class, samples); -1: an output of no class
    pairs: list[tuple[float, float]] | None  # in regression: (target, prediction)


@dataclass(frozen=True)
class Histogram:
    """How a figure is spread over all clients, also those not shown one by one."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class Clients:
    """The clients on the page, one column per fact, all in the same order. What is not known is None."""

    ids: list[str]
    figures: list[float | None] | None
    samples: list[int]  # for training
    tests: list[int] | None
    rounds: list[int] | None  # taken part in
    alone: list[float | None] | None
    classes: list[Counts] | None  # held in training
    curve_rounds: list[int]
    curves: list[list[float | None]]  # a client's figure in these rounds
    answers: dict[int, Answers]  # by place in these columns
    histogram: Histogram | None


def shown(clients: int) -> list[int]:
    """List the positions of the clients on the page.

    >>> shown(3), len(shown(1_000_000))
    ([0, 1, 2], 2000)
    """
    return _evenly(clients, SHOWN)


def describe(
    run: Run,
    positions: Sequence[int],
    evaluation: Evaluation | None,
    visits: Sequence[int] | None,
    alone: Alone,
) -> Clients:
    """Say what is known of some clients."""
    federation, metric = run.federation, Metric.of(run.federation.task)
    figures = None if evaluation is None else [metric.shown(evaluation.figures[p]) for p in positions]
    tests, classes = _holdings(federation, positions)
    rounds = sorted(run.evaluations)
    rounds = [rounds[k] for k in _evenly(len(rounds), _ROUNDS)]
    return Clients(
        ids=[str(federation.ids[p]) for p in positions],
        figures=figures,
        samples=[int(federation.sizes[p]) for p in positions],
        tests=tests,
        rounds=None if visits is None else [visits[p] for p in positions],
        alone=None if alone.figures is None else [metric.shown(figure) for figure in alone.figures],
        classes=classes,
        curve_rounds=rounds,
        curves=[[metric.shown(run.evaluations[t][p]) for t in rounds] for p in positions] if rounds else [],
        answers={} if tests is None or figures is None else _answers(run, positions, tests, figures),
        histogram=None
        if evaluation is None or len(positions) == len(federation)
        else _histogram(evaluation, metric),
    )


def class_names(run: Run) -> dict[int, str]:
    """Map the federation's class ids to names."""
    federation = run.federation
    try:
        schema = schema_of(federation)
    except NotHereError:
        return {number: str(number) for number in federation.classes or []}
    return {number: schema.class_name(number) for number in federation.classes or []}


def _holdings(
    federation: Federation, positions: Sequence[int]
) -> tuple[list[int] | None, list[Counts] | None]:
    """Count clients' test samples, and their training samples per class. One client is loaded at a time."""
    tests, classes = [], []
    for position in positions:
        try:
            client = federation[position]
        except NotHereError:
            return None, None
        tests.append(len(client.x_test))
        classes.append(sorted(Counter(client.y_train.tolist()).items()) if federation.classes else [])
    return tests, classes if federation.classes else None


def _answers(
    run: Run, positions: Sequence[int], tests: Sequence[int], figures: Sequence[float | None]
) -> dict[int, Answers]:
    """Let the models answer: everybody's, or where there are many, those that are worst."""
    tested = [k for k, number in enumerate(tests) if number]
    sign = 1 if run.federation.task.higher_is_better else -1
    worth = [-np.inf if figure is None else sign * figure for figure in figures]
    tested.sort(key=lambda k: worth[k])
    if not tested:
        return {}
    schema = schema_of(run.federation)
    return {k: _of_client(run, run.federation[positions[k]], schema) for k in sorted(tested[:EXAMINED])}


def _of_client(run: Run, client: Client, schema: Schema) -> Answers:
    predicted = run.personal_model(client.id).predict(client.x_test)
    if run.federation.classes is not None:
        both = zip(client.y_test.tolist(), predicted.tolist(), strict=True)
        return Answers([(true, said, n) for (true, said), n in sorted(Counter(both).items())], None)
    targets, outputs = (
        np.asarray(schema.in_units(t.double().reshape(-1).numpy()), dtype=np.float64)
        for t in (client.y_test, predicted)
    )
    places = _evenly(len(targets), _PAIRS)
    return Answers(
        None,
        [(significant(float(targets[k]), 5), significant(float(outputs[k]), 5)) for k in places],
    )


def _histogram(evaluation: Evaluation, metric: Metric) -> Histogram | None:
    known = [figure * metric.scale for figure in evaluation.figures if figure is not None]
    if not known:
        return None
    counts, edges = np.histogram(known, bins=_BINS)
    return Histogram([significant(float(edge), 5) for edge in edges], counts.tolist())


def _evenly(number: int, most: int) -> list[int]:
    """List positions that lie evenly between the first and the last, all of them if they are few."""
    return sorted({int(k) for k in np.linspace(0, number - 1, min(number, most))}) if number else []
