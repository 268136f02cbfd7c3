"""Methods side by side: the same federation, the same cohorts, the same seeds for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.algorithms.registry import find_method, methods, spelling
from pflego.errors import SettingError, unknown
from pflego.files import write_atomically
from pflego.report.plots import Curve, Panel, draw
from pflego.runs.cost import Cost
from pflego.runs.run import Run
from pflego.runs.summary import Curves, Summary, curves_of
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings, known


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
        """Return its line in comparison.json."""
        return {
            "seed": self.seed,
            **asdict(self.summary),
            "cost": asdict(self.cost),
            "curves": self.curves,
        }


def choose(names: str) -> list[str]:
    """Read a list of methods, `all` for all of this package.

    >>> choose("pflego,fedavg")
    ['pflego', 'fedavg']
    """
    chosen = list(methods()) if names == "all" else [name.strip() for name in names.split(",")]
    return list(dict.fromkeys(spelling(find_method(name)) for name in chosen))


def settings_for(
    name: str, given: Mapping[str, object], seed: int, folder: Path, *, others: Sequence[str] = ()
) -> Settings:
    """Give one method's settings: what is given for all and what it knows of, overlaid with its own table.

    A settings file may have a table per method, [pflego] or [fedavg], for what differs between them.
    """
    compared = [*methods(), *others]
    everybodys = {field for other in compared for field in known("method", find_method(other))}
    own = known("method", find_method(name))
    tables = {find_method(other).__name__.lower(): other for other in compared}
    settings = {k: v for k, v in given.items() if k not in tables and (k in own or k not in everybodys)}
    called = find_method(name).__name__.lower()
    table = given.get(called, {})
    if not isinstance(table, dict):
        raise SettingError(f"[{called}] must be a table of settings, not {table!r}")
    table = {f"method.{key}" if f"method.{key}" in own else key: value for key, value in table.items()}
    for key in table.keys() - own.keys():  # what all methods have in common cannot differ between them
        raise unknown(f"setting of {called}", key, own)
    place = folder / name.replace(":", "-") / f"seed-{seed}"
    return Settings.of({**settings, **table, "algorithm": name, "seed": seed, "out": str(place)})


def compare(
    given: Mapping[str, object],
    names: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    progress: bool = True,
) -> list[Entry]:
    """Train every method with every seed, or go on with it; one folder per method. Writes figures and curves."""
    for name in names:
        settings_for(name, given, seeds[0], folder, others=names)  # what is wrong shows before anything runs
    entries = []
    for seed in seeds:
        federation = None
        for name in names:
            settings = settings_for(name, given, seed, folder, others=names)
            experiment = Experiment.build(settings, federation=federation)
            federation = experiment.federation
            entries.append(Entry.of(experiment.train(resume=True, progress=progress), seed))
    rows = [entry.row() for entry in entries]
    write_atomically(folder / "comparison.json", (json.dumps(rows, indent=1) + "\n").encode())
    return entries


def draw_curves(entries: Sequence[Entry], path: Path) -> Path:
    """Draw loss and metric over the rounds, and over a client's passes: one line per method, the first seed of each."""
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
