"""What a report shows, as plain data: the page draws it, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pflego.errors import SettingError
from pflego.federation.draws import spelled
from pflego.federation.participation import Between, Binomial, Everyone, Fixed
from pflego.federation.remote import NotHereError, RemoteFederation
from pflego.federation.unequal import Independent
from pflego.report import measures
from pflego.report.alone import BASELINE, Alone, learn_alone
from pflego.report.clients import Clients, class_names, describe, shown
from pflego.report.measures import Measure
from pflego.report.presence import Presence, who_took_part
from pflego.report.words import (
    Metric,
    comparison_headline,
    count,
    headline,
    listed,
    method_name,
    names,
    significant,
)
from pflego.runs.cost import Cost
from pflego.runs.history import HistoryRow
from pflego.runs.privacy import COVERED, NOT_COVERED, Spent
from pflego.runs.record import RECORD, flat
from pflego.runs.run import Run
from pflego.runs.summary import Curves, Evaluation, Summary, curves_of, never_heard, ranked_by

_POINTS = 1500  # of a curve


@dataclass(frozen=True)
class RunContent:
    """What is shown of one run."""

    name: str
    rounds: int
    curves: Curves
    clients: Clients
    presence: Presence
    quality: list[Measure]
    cost: list[Measure]
    settings: dict[str, str]
    versions: dict[str, str]
    notes: list[str]  # what is left out
    why_not_alone: str


@dataclass(frozen=True)
class Content:
    """What is shown."""

    title: str
    headline: str
    facts: list[str]
    metric: Metric
    baseline: str
    class_names: dict[int, str]
    same_clients: bool  # in all runs
    runs: list[RunContent]


def content(runs: Sequence[Run], *, alone: bool | None = None) -> Content:
    """Say everything about a run, or about several side by side.

    alone: whether to try how clients would do alone; None: if that is quick.
    """
    if len({run.federation.task.metric for run in runs}) > 1:
        raise SettingError(
            "a regression and a classification cannot stand side by side: report them one by one"
        )
    metric, called = Metric.of(runs[0].federation.task), names(runs)
    evaluations = [Evaluation.of(run) for run in runs]
    summaries = [Summary.of(run, found) for run, found in zip(runs, evaluations, strict=True)]
    parts = [_run(*own, alone=alone) for own in zip(runs, called, evaluations, summaries, strict=True)]
    same = all(list(run.federation.ids) == list(runs[0].federation.ids) for run in runs[1:])
    if len(runs) == 1:
        said = headline(called[0], summaries[0], metric, gains(parts[0].clients, metric))
    else:
        figures = [part.clients.figures or [None] * len(part.clients.ids) for part in parts]
        said = comparison_headline(called, summaries, metric, figures if same else None)
    return Content(
        title=_title(runs),
        headline=said,
        facts=[*_facts(runs), *_ranking(summaries)],
        metric=metric,
        baseline=BASELINE,
        class_names={number: name for run in runs for number, name in class_names(run).items()},
        same_clients=same,
        runs=parts,
    )


def gains(clients: Clients, metric: Metric) -> list[float | None]:
    """Compute how much better each client does than alone."""
    if clients.figures is None or clients.alone is None:
        return []
    return [metric.gain(figure, other) for figure, other in zip(clients.figures, clients.alone, strict=True)]


def _run(
    run: Run, name: str, evaluation: Evaluation | None, summary: Summary, *, alone: bool | None
) -> RunContent:
    metric = Metric.of(run.federation.task)
    visits, presence = who_took_part(run)
    positions = shown(len(run.federation))
    tested = evaluation is not None and any(figure is not None for figure in evaluation.figures)
    learnt = learn_alone(run, positions, visits, wanted=alone) if tested else Alone(None)
    clients = describe(run, positions, evaluation, visits, learnt)
    curves = curves_of(run.history, metric.name)
    record = run.settings.get(RECORD)
    return RunContent(
        name=name,
        rounds=len(run.history),
        curves={key: _curve(curve, 1.0 if key == "loss" else metric.scale) for key, curve in curves.items()},
        clients=clients,
        presence=presence,
        quality=measures.quality(summary, metric, gains(clients, metric)),
        cost=measures.cost(summary, _cost(run)),
        settings={key: str(value) for key, value in flat(run.settings).items()},
        versions={key: str(v) for key, v in record.items()} if isinstance(record, Mapping) else {},
        notes=_notes(run, clients, evaluation, drawn=visits is not None),
        why_not_alone=learnt.why_not,
    )


def _cost(run: Run) -> Cost | None:
    """Measure what a round costs a client, where there is one."""
    try:
        return run.cost()
    except NotHereError:
        return None


def _curve(curve: Sequence[tuple[int, float]], scale: float) -> list[tuple[int, float]]:
    """Return a curve in the unit it is shown in; of a very long one every n-th point, and the last."""
    points = [(t, significant(value * scale, 5)) for t, value in curve]
    every = -(-len(points) // _POINTS) or 1
    return points[::every] + ([points[-1]] if points and (len(points) - 1) % every else [])


def _title(runs: Sequence[Run]) -> str:
    methods = list(dict.fromkeys(method_name(run) for run in runs))
    data = dict.fromkeys(Path(str(run.settings["data"].get("name", "your own data"))).stem for run in runs)
    return f"{listed(methods)} on {listed(list(data))}"


def _facts(runs: Sequence[Run]) -> list[str]:
    """List what all runs have in common: clients, data, rounds."""
    facts = [_facts_of(run) for run in runs]
    return [fact for fact in facts[0] if all(fact in others for others in facts)]


def _ranking(summaries: Sequence[Summary]) -> list[str]:
    """Say by which figure several runs are ranked, and why."""
    if len(summaries) < 2 or ranked_by(summaries) == "everyone":
        return []
    return ["ranked by everyone adapted, the figure fair to all: each client after its method’s local steps"]


def _facts_of(run: Run) -> list[str]:
    federation, rounds = run.federation, len(run.history)
    facts = [count(len(federation), "client"), count(federation.samples, "training sample")]
    facts.append("regression" if federation.classes is None else f"{len(federation.classes):,} classes")
    facts.append(count(rounds, "round"))
    if rounds < run.plan.rounds:
        facts.append(f"stopped before round {rounds + 1} of {run.plan.rounds}")
    match run.plan.participation:
        case Fixed(r):
            facts.append(f"{r:,} taking part in each")
        case Binomial(p):
            facts.append(f"each client taking part with probability {p:g}")
        case Between(low, high):
            facts.append(f"{low:,} to {high:,} taking part in each")
        case Everyone():
            facts.append("everyone taking part in each")
        case Independent():
            facts.append("each client taking part with a probability of its own")
        case other:
            facts.append(f"taking part: {spelled(other)}")
    if run.plan.population is not None and run.history:
        present = [_members(run, row) for row in run.history]
        facts.append(f"{min(present):,} to {max(present):,} members at a time")
    for key, words in {
        "joined": "clients that came or came back",
        "left": "clients that went",
        "missing": "missing replies",
        "rejected": "updates left out as not finite",
        "refused": "steps of the server left out as not finite",
        "fallbacks": "head fits that went uphill",
        "above_bound": "head fits at rates above the theory's bound",
    }.items():
        if number := sum(int(row.get(key) or 0) for row in run.history):
            facts.append(f"{words}: {number:,}")
    if silent := never_heard(run):
        facts.append(f"asked and never heard: {count(len(silent), 'client')}")
    if (spent := Spent.of(run)) is not None:
        facts.append(f"privacy of what is shared: {spent}")
    return [*facts, f"seed {run.plan.seed}"]


def _members(run: Run, row: HistoryRow) -> int:
    """Count a round's members; the history does so from the round on in which somebody came or went unannounced."""
    counted = row.get("members")
    if counted is None:
        return int(run.plan.there(int(row["round"] or 0), run.federation.ids).sum())
    return int(counted)


def _notes(run: Run, clients: Clients, evaluation: Evaluation | None, *, drawn: bool) -> list[str]:
    """Say what the page leaves out of a run."""
    all_clients, on_page, examined = len(run.federation), len(clients.ids), len(clients.answers)
    notes = []
    if isinstance(run.federation, RemoteFederation):
        notes.append("The clients’ data are not on this machine: what needs them is left out.")
    if run.plan.privacy is not None:
        notes.append(f"Privacy covers {COVERED}. It does not cover {NOT_COVERED}.")
    if evaluation is None:
        notes.append("Everyone’s models were not evaluated.")
    elif not any(figure is not None for figure in evaluation.figures):
        notes.append("Nobody has test data.")
    elif evaluation.round < len(run.history):
        notes.append(f"Everyone was last evaluated after round {evaluation.round}.")
    if on_page < all_clients:
        notes.append(
            f"Of {all_clients:,} clients, {on_page:,} that lie evenly between the first and the last are "
            "shown one by one."
        )
    if evaluation is not None and examined < sum(map(bool, clients.tests or [])):
        notes.append(f"Single answers are shown of the {examined:,} clients with the worst figures.")
    if not drawn:
        notes.append("There are too many clients to show who took part when.")
    return notes
