"""Rules of aggregation against liars: what honest clients lose to a rule without an attack, and keep under one.

One method on the same federation, cohorts and seeds, once for every rule and lie. The liars of a seed are the same
clients throughout, and figures are of the others alone, also where nobody lies: each with its own model, after the
local steps that a participant takes before it is judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import fmean

from pflego.exchange.aggregation import aggregation_of, spelled
from pflego.exchange.liars import Liars, SignFlip, lie_of
from pflego.federation.draws import expected
from pflego.federation.participation import participation_of
from pflego.federation.roster import Federation
from pflego.files import write_atomically
from pflego.learning.evaluation import worst_tenth
from pflego.runs.run import Run
from pflego.settings.experiment import Experiment, load_data
from pflego.settings.tables import Settings

NOBODY = "nobody"  # the lie of nobody
LIES = ("sign", "scale", "noise", "samples+sign", "labels", "shuffle", "little")
_OF_ALL = {"evaluate_every": 0}  # everyone is tried once, in the end


@dataclass(frozen=True)
class Trial:
    """What honest clients had after a run."""

    rule: str
    lie: str  # NOBODY: there was none
    share: float  # of liars, also where they did not lie
    seed: int
    metric: str
    higher_is_better: bool
    mean: float | None  # over honest clients
    worst_tenth: float | None  # of them
    figures: dict[str, float | None]  # every honest client's own, by its id

    @classmethod
    def of(cls, run: Run, liars: Liars, lie: str) -> Trial:
        """Try the models of the honest."""
        task, seed = run.federation.task, run.plan.seed
        who = liars.who(run.federation.ids, seed=seed)
        scores = run.scores(adapt=True)
        figures = {
            str(client): scores[position].value(task)
            for position, client in enumerate(run.federation.ids)
            if position not in who
        }
        known = [figure for figure in figures.values() if figure is not None]
        return cls(
            spelled(run.plan.aggregation),
            lie,
            liars.share,
            seed,
            task.metric,
            task.higher_is_better,
            fmean(known) if known else None,
            worst_tenth(known, higher_is_better=task.higher_is_better),
            figures,
        )


def usual_rules(share: float, cohort: float) -> list[str]:
    """Name all rules, made for a share of liars among the clients of a round.

    >>> usual_rules(0.2, 20)
    ['mean', 'normbound', 'median', 'trimmed:0.2', 'geometric', 'krum:4', 'krum:4/16']
    """
    bad = ceil(share * cohort - 1e-9)
    most = max(1, int(cohort) - bad)
    trimmed = [f"trimmed:{share:g}"] if share < 0.5 else []
    several = [f"krum:{bad}/{most}"] if most > 1 else []
    return ["mean", "normbound", "median", *trimmed, "geometric", f"krum:{bad}", *several]


def attack(
    given: Mapping[str, object],
    *,
    rules: Sequence[str] | None = None,
    lies: Sequence[str] = LIES,
    share: float = 0.2,
    seeds: Sequence[int] = (0,),
    folder: Path,
    progress: bool = False,
) -> list[Trial]:
    """Train with every rule, lie and seed, or go on with it; one folder per run. Writes attack.json.

    Parameters
    ----------
    given
        Settings of all runs, as the command line calls them: data, method, rounds and so on.
    rules
        Rules of aggregation; None: all, made for this share.
    lies
        What liars do.
    share
        Which part of the clients lies.
    """
    hostile = _hostile(lies, share)
    trials = []
    for seed in seeds:
        base = {**_OF_ALL, **given, "seed": seed}
        federation = load_data(base)
        rules = _read(rules or usual_rules(share, _cohort(base, federation)))
        for rule in rules:
            for lie, liars in hostile.items():
                place = folder / _folder(rule) / _folder(lie) / f"seed-{seed}"
                own = {"aggregation": rule, "liars": None if lie == NOBODY else str(liars), "out": str(place)}
                experiment = Experiment.build({**base, **own}, federation=federation)
                trials.append(Trial.of(experiment.train(resume=True, progress=progress), liars, lie))
    rows = [asdict(trial) for trial in trials]
    write_atomically(folder / "attack.json", (json.dumps(rows, indent=1) + "\n").encode())
    return trials


def _hostile(lies: Sequence[str], share: float) -> dict[str, Liars]:
    """Map the text of a lie, spelled in one way, to those who tell it; first those who will, and do not yet."""
    tellers = [Liars(tuple(lie_of(text)), share) for text in lies]
    told = {str(liars).rpartition("@")[0]: liars for liars in tellers}
    return {NOBODY: Liars(SignFlip(), share), **told}


def _read(rules: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(spelled(aggregation_of(rule)) for rule in rules))


def _cohort(given: Mapping[str, object], federation: Federation) -> float:
    """Give how many clients a round has, on average."""
    settings = Settings.of(given)
    participation = participation_of(settings.value("participation"))
    return expected(participation, federation.ids, seed=int(str(settings.value("seed"))))


def _folder(text: str) -> str:
    return re.sub(r"[^\w.+=-]", "-", text)
