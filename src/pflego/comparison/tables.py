"""What a comparison came to as tables: quality, how it is spread over clients, and cost; best first, grouped by kind.

With several seeds a method's figure is a mean ± standard deviation, and its distance from the best method has an
interval: a paired t-test over the seeds, in which all methods met the same federation and cohorts. The level of 5 % is
shared by all methods that are tested (Holm's rule).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, stdev
from typing import get_args

from scipy import stats

from pflego.algorithms.base import Family
from pflego.comparison.compare import Entry
from pflego.comparison.protocols import Protocol
from pflego.runs.cost import Energy
from pflego.runs.summary import EXPLAINED, ranked_by

_FIGURES = ("everyone_adapted", "everyone", "ceiling", "participants")
_OVER_CLIENTS = {"client_mean": "mean", "spread": "spread", "worst_tenth": "worst tenth"}
_MANY = 6  # methods that are worth grouping
_LEVEL = 0.05
KINDS: dict[Family, str] = {
    "one model": "one model for everybody",
    "fine-tuned": "one model, fine-tuned by each client",
    "split": "a shared part and a personal part",
    "mixed": "a personal model near a shared one, or mixed with it",
    "similar": "models made of those of similar clients",
    "alone": "each alone",
    "other": "others",
}
assert set(KINDS) == set(get_args(Family))


@dataclass(frozen=True)
class Sheet:
    """A table: rows of cells, a name first, in groups; a group without a title stands for all."""

    title: str
    columns: Sequence[str]
    groups: Mapping[str, Sequence[Sequence[str]]]
    notes: Sequence[str] = field(default_factory=list)
    rows: str = "method"  # what rows are the names of


def sheets(entries: Sequence[Entry], protocol: Protocol | None = None) -> list[Sheet]:
    """Make the tables of a comparison, with the figures of those who made its protocol, if it has one."""
    metric = entries[0].summary.metric
    scale, unit = (100, ", %") if metric == "accuracy" else (1, "")
    figures = [name for name in _FIGURES if any(getattr(e.summary, name) is not None for e in entries)]
    ranked = by_method(entries)
    best = next(iter(ranked))
    seeds = len(ranked[best])
    behind = behind_the_best(entries) if seeds > 1 else {}
    names = {
        name: f"{name} =" if name in behind and behind[name].level and name != best else name
        for name in ranked
    }
    quality = {
        name: [
            *(mean_and_spread([getattr(e.summary, key) for e in own], scale) for key in figures),
            *([behind[name].cell(scale) if name != best else "–"] if behind else []),
            *([_published(protocol, name)] if protocol else []),
            mean_and_spread([e.summary.loss for e in own], digits=4),
        ]
        for name, own in ranked.items()
    }
    clients = {
        name: [
            *(mean_and_spread([getattr(e.summary, key) for e in own], scale) for key in _OVER_CLIENTS),
            mean_and_spread([e.summary.gini for e in own], digits=3),
        ]
        for name, own in ranked.items()
    }
    cost = {
        name: [
            f"{own[0].cost.forward_passes:.4g} + {own[0].cost.backward_passes:.4g}",
            mean_and_spread([e.cost.flops / 1e9 for e in own], digits=3),
            mean_and_spread([e.cost.memory / 1e6 for e in own], digits=1),
            mean_and_spread([(e.cost.bytes_up + e.cost.bytes_down) / 1e6 for e in own]),
            mean_and_spread([e.cost.joules() for e in own]),
            mean_and_spread([e.cost.seconds for e in own], digits=4),
            mean_and_spread([e.summary.seconds for e in own], digits=1),
        ]
        for name, own in ranked.items()
    }
    ranked_figure = ranked_by([entry.summary for entry in entries])
    notes = [f"Ranked by {ranked_figure.replace('_', ' ')}."]
    notes += [f"{name.replace('_', ' ')}: {EXPLAINED[name]}" for name in figures]
    if behind:
        notes.append(
            f"behind: the best's figure less this one's, mean and 95 % interval over {seeds} seeds; =: may be chance"
        )
    else:
        notes.append("One seed: differences may be chance. --seeds 5 tells.")
    notes += protocol.notes if protocol else []
    headings = [
        *(name.replace("_", " ") for name in figures),
        *(["behind"] if behind else []),
        *(["published"] if protocol else []),
        "loss",
    ]

    def sheet(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]], *notes: str) -> Sheet:
        return Sheet(title, columns, _grouped(rows, ranked, names), notes)

    spent = "forward + backward passes; sent both ways; joules are an estimate: "
    paid = ["passes", "GFLOP", "MB of memory", "MB sent", "joules", "seconds", "seconds of the run"]
    return [
        sheet(f"{metric}{unit}", headings, quality, *notes),
        sheet(f"{metric}{unit} of everyone, over clients", [*_OVER_CLIENTS.values(), "Gini"], clients),
        sheet("what a round costs a client of median size", paid, cost, f"{spent}{Energy()}"),
    ]


def by_method(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Map the names of methods to their entries, in the order of the figure that is fair to all, the best first."""
    key = ranked_by([entry.summary for entry in entries])
    better = 1 if entries[0].summary.higher_is_better else -1

    def rank(name: str) -> float:
        figures = [f for e in found[name] if (f := getattr(e.summary, key)) is not None]
        return -better * fmean(figures) if figures else inf

    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.name, []).append(entry)
    return {name: found[name] for name in sorted(found, key=rank)}


@dataclass(frozen=True)
class Behind:
    """How far a method is behind the best one, over seeds."""

    mean: float
    half: float  # the interval's half width
    level: bool  # whether the difference may be chance

    def cell(self, scale: float) -> str:
        """Write it down."""
        return f"{self.mean * scale:.2f} ± {self.half * scale:.2f}"


def behind_the_best(entries: Sequence[Entry]) -> dict[str, Behind]:
    """Compare every method with the best one, seed by seed; a figure that is missing leaves its seed out."""
    key, ranked = ranked_by([entry.summary for entry in entries]), by_method(entries)
    sign = 1 if entries[0].summary.higher_is_better else -1
    figures = {name: {e.seed: getattr(e.summary, key) for e in own} for name, own in ranked.items()}
    best = figures[next(iter(ranked))]
    found, chances = {}, {}
    for name, own in figures.items():
        pairs = [(best[s], f) for s, f in own.items() if f is not None and best.get(s) is not None]
        gaps = [sign * (ahead - here) for ahead, here in pairs]
        if len(gaps) < 2:
            continue
        width = float(stats.t.ppf(1 - _LEVEL / 2, len(gaps) - 1)) * stdev(gaps) / len(gaps) ** 0.5
        found[name] = (fmean(gaps), width)
        chances[name] = _chance(gaps)
    told_apart = _holm({name: chance for name, chance in chances.items() if figures[name] is not best})
    return {name: Behind(mean, width, name not in told_apart) for name, (mean, width) in found.items()}


def _chance(gaps: Sequence[float]) -> float:
    """Give the p-value of a paired t-test; equal gaps that are not zero leave nothing to chance."""
    if stdev(gaps) == 0:
        return 1.0 if gaps[0] == 0 else 0.0
    return float(stats.ttest_1samp(gaps, 0.0).pvalue)


def _holm(chances: Mapping[str, float]) -> set[str]:
    """Name those whose difference is no chance, the level shared by all.

    >>> sorted(_holm({"a": 0.001, "b": 0.02, "c": 0.04, "d": 0.6}))
    ['a']
    """
    apart: set[str] = set()
    for done, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        if chances[name] > _LEVEL / (len(chances) - done):
            break
        apart.add(name)
    return apart


def _grouped(
    rows: Mapping[str, Sequence[str]], ranked: Mapping[str, Sequence[Entry]], names: Mapping[str, str]
) -> dict[str, list[list[str]]]:
    """Put many methods into groups by kind, the kind of the best method first."""
    families = {name: own[0].family for name, own in ranked.items()}
    grouped = len(rows) >= _MANY and len(set(families.values())) > 1
    groups: dict[str, list[list[str]]] = {}
    for name, cells in rows.items():
        groups.setdefault(KINDS[families[name]] if grouped else "", []).append([names[name], *cells])
    return groups


def _published(protocol: Protocol, name: str) -> str:
    figure = protocol.published.get(name)
    return "–" if figure is None else f"{figure:.2f}"


def mean_and_spread(values: Sequence[float | None], scale: float = 1, digits: int = 2) -> str:
    """Write a mean ± standard deviation over seeds; of one seed, its figure.

    >>> mean_and_spread([0.5, 0.7, None], scale=100), mean_and_spread([])
    ('60.00 ± 14.14', '–')
    """
    known = [value * scale for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.{digits}f}" + (f" ± {stdev(known):.{digits}f}" if len(known) > 1 else "")


def as_markdown(made: Sequence[Sheet]) -> str:
    """Write tables as Markdown."""
    parts = []
    for sheet in made:
        lines = [f"**{sheet.title}**", "", f"| {sheet.rows} | {' | '.join(sheet.columns)} |"]
        lines.append("| --- |" + " ---: |" * len(sheet.columns))
        for title, rows in sheet.groups.items():
            if title:
                lines.append(f"| *{title}* |" + " |" * len(sheet.columns))
            lines += [f"| {' | '.join(row)} |" for row in rows]
        parts.append("\n".join([*lines, "", *(f"{note}  " for note in sheet.notes)]).rstrip())
    return "\n\n".join(parts) + "\n"


def as_latex(made: Sequence[Sheet]) -> str:
    """Write tables as LaTeX, for booktabs."""
    parts = []
    for sheet in made:
        width = len(sheet.columns) + 1
        lines = [rf"% {sheet.title}", rf"\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", r"\toprule"]
        lines += [" & ".join(map(_latex, [sheet.rows, *sheet.columns])) + r" \\", r"\midrule"]
        for title, rows in sheet.groups.items():
            if title:
                lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_latex(title)}}}}} \\")
            lines += [" & ".join(map(_latex, row)) + r" \\" for row in rows]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {n}" for n in sheet.notes)]))
    return "\n\n".join(parts) + "\n"


def as_csv(entries: Sequence[Entry]) -> str:
    """Write every figure of every method and seed, unrounded, one line each."""
    rows: list[dict[str, object]] = []
    for entry in entries:
        row = entry.row()
        cost = {f"round_{key}": value for key, value in vars(entry.cost).items()}
        rate = {} if entry.rate is None else {"chosen": f"{entry.rate.name}={entry.rate.value}"}
        left_out = ("cost", "curves", "rate")
        rows.append({k: v for k, v in row.items() if k not in left_out} | cost | rate)
    return lines_of(rows)


def lines_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows as CSV; what a row does not have stays blank."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _latex(text: str) -> str:
    r"""Escape what LaTeX would read as a command.

    >>> print(_latex("mean_x & 5 %"), _latex("1.0 ± 0.1"))
    mean\_x \& 5 \% 1.0 $\pm$ 0.1
    """
    escaped = "".join(f"\\{c}" if c in "&%$#_{}" else c for c in text)
    return escaped.replace("±", r"$\pm$").replace("–", "--")
