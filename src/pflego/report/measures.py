"""A run's figures, a line each: how good, and how costly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pflego.report.words import Metric, amount, count, duration, number, significant
from pflego.runs.cost import Cost, Energy
from pflego.runs.summary import EXPLAINED, LAST, Summary


@dataclass(frozen=True)
class Measure:
    """One figure. Runs have the same ones in the same order, so that they can be set side by side."""

    label: str
    note: str
    value: float | None  # for bars, and to see who is best
    text: str
    better: int  # 1: more is better, -1: less is
    group: str = ""


def quality(summary: Summary, metric: Metric, gains: Sequence[float | None]) -> list[Measure]:
    """List measures of how good the clients' models are."""
    better = 1 if metric.higher_is_better else -1

    def figure(label: str, note: str, value: float | None) -> Measure:
        return Measure(label, note, metric.shown(value), metric.text(value, 2), better)

    known = [gain for gain in gains if gain is not None]
    mean = significant(fmean(known), 3) if known else None
    losers = sum(gain < 0 for gain in known) if known else None
    unit = f" {metric.difference}" if metric.difference else ""
    return [
        figure(f"{metric.name}, everyone", _everyone(summary, metric), summary.everyone),
        figure(
            f"{metric.name}, everyone adapted",
            f"{EXPLAINED['everyone_adapted']}; where asked for (evaluate_adapted)",
            summary.everyone_adapted,
        ),
        figure(f"{metric.name}, mean over clients", EXPLAINED["client_mean"], summary.client_mean),
        figure(f"{metric.name}, worst tenth", "mean over the worst tenth of clients", summary.worst_tenth),
        Measure(
            "spread over clients",
            "standard deviation of their figures",
            metric.shown(summary.spread),
            _with_unit(metric.shown(summary.spread), unit),
            -1,
        ),
        Measure(
            "Gini coefficient over clients",
            "of their figures: 0 all alike, near 1 one client has everything",
            None if summary.gini is None else significant(summary.gini, 3),
            "–" if summary.gini is None else f"{summary.gini:.3f}",
            -1,
        ),
        figure(
            f"{metric.name}, participants",
            f"{EXPLAINED['participants']}: mean of the last {LAST} rounds",
            summary.participants,
        ),
        Measure(
            "gain over learning alone",
            "mean over clients",
            mean,
            "–" if mean is None else f"{'+' if mean > 0 else ''}{number(mean)}{unit}",
            1,
        ),
        Measure(
            "clients that do worse than alone",
            "",
            losers,
            "–" if losers is None else f"{losers:,} of {len(known):,}",
            -1,
        ),
        Measure(
            "training loss",
            "of the last round’s participants",
            summary.loss,
            "–" if summary.loss is None else number(summary.loss),
            -1,
        ),
    ]


def _everyone(summary: Summary, metric: Metric) -> str:
    """Explain everyone's figure, with its ceiling where it has one."""
    words = f"{EXPLAINED['everyone']}; over all their test samples"
    if summary.ceiling is None:
        return words
    return f"{words}. At most {metric.text(summary.ceiling)}: {EXPLAINED['ceiling']}"


def cost(summary: Summary, measured: Cost | None) -> list[Measure]:
    """List measures of what a round costs a client, and what the run cost in all."""
    passes = f"{summary.forward_passes:g} + {summary.backward_passes:g}"
    lines = [
        (
            "passes over its data",
            "forward + backward",
            summary.forward_passes + summary.backward_passes,
            passes,
        )
    ]
    if measured is not None:
        lines += [
            (
                "arithmetic",
                f"for the client of median size, {count(measured.samples, 'sample')}",
                measured.flops,
                amount(measured.flops, "FLOP"),
            ),
            (
                "memory",
                "at one time: activations, gradients, copies of weights",
                measured.memory,
                amount(measured.memory, "B"),
            ),
            ("received", "", measured.bytes_down, amount(measured.bytes_down, "B")),
            ("sent", "", measured.bytes_up, amount(measured.bytes_up, "B")),
            ("energy", f"an estimate: {Energy()}", measured.joules(), amount(measured.joules(), "J")),
            ("time", f"on this machine, {measured.device}", measured.seconds, duration(measured.seconds)),
        ]
    whole = [
        ("received by clients", "", summary.bytes_down, amount(summary.bytes_down, "B")),
        ("sent by clients", "", summary.bytes_up, amount(summary.bytes_up, "B")),
        ("time of clients and server", "without evaluation", summary.seconds, duration(summary.seconds)),
    ]
    return [Measure(*line, better=-1, group="a client in a round") for line in lines] + [
        Measure(*line, better=-1, group="the whole run") for line in whole
    ]


def _with_unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)}{unit}"
