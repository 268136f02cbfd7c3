"""Methods side by side: the same federation, the same cohorts, the same seeds for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pflego.algorithms import ALGORITHMS
from pflego.cost import Cost
from pflego.errors import UserError, unknown
from pflego.experiment import Experiment, check
from pflego.files import write_atomically
from pflego.plots import Curve, Panel, draw
from pflego.run import Run
from pflego.settings import Settings
from pflego.summary import Curves, Summary, curves_of


@dataclass(frozen=True)
class Entry:
    """What one method came to with one seed."""

    seed: int
    summary: Summary
    cost: Cost  # of a round, for the client of median size
    curves: Curves

    @classmethod
    def of(cls, run: Run, seed: int) -> Entry:
        """Sum up a run."""
        curves = curves_of(run.history, run.federation.task.metric)
        return cls(seed, Summary.of(run), run.cost(), curves)

    def row(self) -> dict[str, object]:
        """Its line in comparison.json."""
        return {
            "seed": self.seed,
            **asdict(self.summary),
            "cost": asdict(self.cost),
            "curves": self.curves,
        }


def choose(names: str) -> list[str]:
    """Read a list of methods, `all` for all of them.

    >>> choose("pflego,fedavg")
    ['pflego', 'fedavg']
    """
    chosen = list(ALGORITHMS) if names == "all" else [name.strip().lower() for name in names.split(",")]
    for name in chosen:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, [*ALGORITHMS, "all"])
    return list(dict.fromkeys(chosen))


def settings_for(name: str, given: Mapping[str, object], seed: int, folder: Path) -> Settings:
    """One method's settings: what is given for all and what it knows of, overlaid with its own table.

    A settings file may have a table a method, [pflego] or [fedavg], for what differs between them.
    """
    everybodys = {field.name for kind in ALGORITHMS.values() for field in fields(kind)}
    own = {field.name for field in fields(ALGORITHMS[name])}
    settings = {k: v for k, v in given.items() if k not in ALGORITHMS and (k in own or k not in everybodys)}
    table = given.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"[{name}] must be a table of settings, not {table!r}")
    for key in table.keys() - own:  # what all methods have in common cannot differ between them
        raise unknown(f"setting of {name}", key, own)
    return {**settings, **table, "algorithm": name, "seed": seed, "out": str(folder / name / f"seed-{seed}")}


def compare(
    given: Mapping[str, object],
    names: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    progress: bool = True,
) -> list[Entry]:
    """Train every method with every seed, or go on with it; a folder a method. Writes figures and curves."""
    for name in names:
        check(settings_for(name, given, seeds[0], folder))  # what is wrong shows before anything runs
    entries = []
    for seed in seeds:
        federation = None
        for name in names:
            experiment = Experiment.build(settings_for(name, given, seed, folder), federation=federation)
            federation = experiment.federation
            entries.append(Entry.of(experiment.train(resume=True, progress=progress), seed))
    rows = [entry.row() for entry in entries]
    write_atomically(folder / "comparison.json", (json.dumps(rows, indent=1) + "\n").encode())
    return entries


def draw_curves(entries: Sequence[Entry], path: Path) -> Path:
    """Draw loss and metric over the rounds, and over a client's passes: a line a method, the first seed of each."""
    first = [entry for entry in entries if entry.seed == entries[0].seed]
    metric = entries[0].summary.metric

    def curves(key: str, of: Callable[[Entry], float] = lambda _: 1) -> list[Curve]:
        return [
            Curve(e.summary.algorithm, [t * of(e) for t, _ in e.curves[key]], [v for _, v in e.curves[key]])
            for e in first
        ]

    panels = [
        Panel("training loss, participants", curves("loss"), "round", "loss"),
        Panel("test, participants", curves("participants"), "round", metric),
        Panel("test, everyone", curves("everyone"), "round", metric),
        Panel(
            "test, participants, by cost",
            curves("participants", lambda e: e.summary.forward_passes + e.summary.backward_passes),
            "passes of a client that always takes part",
            metric,
            scale="log x",
        ),
    ]
    return draw(panels, path, columns=2)
