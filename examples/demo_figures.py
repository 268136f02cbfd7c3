"""What the demo shows: figures of its two acts as tables, a picture and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table
from scipy.special import stdtrit

import pflego
from pads import DRAWINGS, PEOPLE, PER_SIGN
from pflego.learning.evaluation import worst_tenth
from pflego.report.plots import picture

OWN_HEADS, ONE_MODEL, FINE_TUNED, ALONE = (
    "own heads (PFLEGO)",
    "one model (FedAvg)",
    "  fine-tuned at home",
    "alone",
)
ROWS = (OWN_HEADS, ONE_MODEL, FINE_TUNED, ALONE)


@dataclass(frozen=True)
class Figures:
    """What a way to learn came to, and what it cost."""

    people: list[float]  # everybody's accuracy
    passes: float  # forward over their own drawings that a person made, in all
    megabytes: float  # sent in all, both ways
    seconds: float  # of clients' and server's work in all

    @classmethod
    def of(cls, run: pflego.Run) -> Figures:
        """Try everybody's model on drawings that nobody trained on, and add up what it cost."""
        visits = sum(row["participants"] or 0 for row in run.history) / len(run.federation)
        fine_tuning = getattr(run.algorithm, "fine_tune", 0)
        return cls(
            people=[row["accuracy"] or 0.0 for row in run.evaluate()],
            passes=visits * (run.history[-1]["forward_passes"] or 0) + fine_tuning,
            megabytes=sum((row["bytes_up"] or 0) + (row["bytes_down"] or 0) for row in run.history) / 1e6,
            seconds=sum(row["seconds"] or 0 for row in run.history),
        )

    @property
    def accuracy(self) -> float:
        """The mean over people, who all are tested on as many drawings."""
        return fmean(self.people)

    @property
    def worst(self) -> float:
        """The mean over the worst tenth of them."""
        return worst_tenth(self.people, higher_is_better=True) or 0.0


@dataclass(frozen=True)
class Outcome:
    """Both acts with one seed."""

    seed: int
    members: dict[str, Figures]
    newcomers: dict[str, dict[int, list[float]]]  # accuracy of each, by drawings per sign


def half_width(values: Sequence[float]) -> float:
    """Compute how far a 95 % interval of the mean reaches to either side, by Student's t.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)  # 4.303 of 1 / sqrt(3)
    2.484
    """
    if len(values) < 2:
        return 0.0
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))


def percent(values: Sequence[float], digits: int = 1) -> str:
    """Print a mean and its interval, in per cent."""
    return f"{100 * fmean(values):.{digits}f} ± {100 * half_width(values):.{digits}f}"


def gains(outcomes: Sequence[Outcome], rival: str) -> list[float]:
    """List what own heads gain over a rival: for each person, or where there are several federations, in each."""
    if len(outcomes) > 1:
        return [one.members[OWN_HEADS].accuracy - one.members[rival].accuracy for one in outcomes]
    ours, theirs = outcomes[0].members[OWN_HEADS].people, outcomes[0].members[rival].people
    return [mine - other for mine, other in zip(ours, theirs, strict=True)]


def of_newcomers(outcomes: Sequence[Outcome], name: str, drawings: int) -> list[float]:
    """List accuracies: of each newcomer, or where there are several federations, the mean in each."""
    found = [one.newcomers[name][drawings] for one in outcomes]
    return found[0] if len(found) == 1 else [fmean(accuracies) for accuracies in found]


def first_table(outcomes: Sequence[Outcome]) -> Table:
    """Show what members came to, and what it cost them."""
    units = f"{PEOPLE} people" if len(outcomes) == 1 else f"{len(outcomes)} federations"
    table = Table(
        padding=(0, 0, 0, 1),
        title=f"{PEOPLE} people, {DRAWINGS} drawings each (±: 95 % interval over {units})",
        title_justify="left",
    )
    table.add_column("how they learn", no_wrap=True)
    table.add_column("accuracy %", justify="right")
    table.add_column("own heads gain", justify="right", no_wrap=True)
    for heading in ("worst tenth", "passes", "MB sent", "work, s"):
        table.add_column(heading, justify="right")
    for name in ROWS:
        own = [one.members[name] for one in outcomes]
        table.add_row(
            name,
            f"{100 * fmean(f.accuracy for f in own):.1f}",
            "" if name == OWN_HEADS else percent(gains(outcomes, name)),
            f"{100 * fmean(f.worst for f in own):.1f}",
            f"{fmean(f.passes for f in own):.0f}",
            f"{fmean(f.megabytes for f in own):.0f}",
            f"{fmean(f.seconds for f in own):.1f}",
        )
    return table


def second_table(outcomes: Sequence[Outcome]) -> Table:
    """Show what newcomers came to."""
    table = Table(title="Somebody new, by drawings of each sign: accuracy in %", title_justify="left")
    table.add_column("how they learn", no_wrap=True)
    for count in PER_SIGN:
        table.add_column(str(count), justify="right")
    for name in ROWS:
        table.add_row(name, *(percent(of_newcomers(outcomes, name, count), 0) for count in PER_SIGN))
    return table


def draw(outcomes: Sequence[Outcome], path: Path) -> Path:
    """Draw newcomers' accuracy over the number of their drawings, with 95 % intervals.

    One model as it is does not learn from them: it stands in the legend, since its line would be far below.
    """
    unchanged = fmean(of_newcomers(outcomes, ONE_MODEL, PER_SIGN[0]))
    with picture(path, 1) as (figure, [axis]):
        for name in (OWN_HEADS, FINE_TUNED, ALONE):
            values = [of_newcomers(outcomes, name, count) for count in PER_SIGN]
            axis.errorbar(
                PER_SIGN,
                [100 * fmean(own) for own in values],
                [100 * half_width(own) for own in values],
                label="one model, fine-tuned" if name == FINE_TUNED else name,
                marker=".",
                capsize=2,
                linewidth=1.4,
            )
        axis.plot([], [], " ", label=f"one model as it is: {100 * unchanged:.0f} %")
        axis.set(title="Somebody new", xlabel="drawings of each sign", ylabel="accuracy, %", xscale="log")
        axis.set_xticks(PER_SIGN, [str(count) for count in PER_SIGN])
        axis.set_xticks([], minor=True)
        figure.legend(loc="outside right upper", frameon=False)
    return path
