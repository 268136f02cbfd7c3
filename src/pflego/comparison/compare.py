"""Methods side by side: the same federation, cohorts and seeds for all of them, each at a rate of its own choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.algorithms.base import Family
from pflego.algorithms.registry import find_method, methods
from pflego.comparison.rates import Chosen, Rates, choose_rate, of_the_paper
from pflego.comparison.variants import Variant
from pflego.errors import SettingError, unknown
from pflego.files import write_atomically
from pflego.report.plots import Curve, Panel, draw
from pflego.runs.cost import Cost
from pflego.runs.run import Run
from pflego.runs.summary import Curves, Summary, curves_of
from pflego.settings.experiment import Experiment, load_data
from pflego.settings.tables import Settings, known


@dataclass(frozen=True)
class Entry:
    """What one method came to with one seed."""

    name: str  # of the method, or of a variant of it
    family: Family
    seed: int
    summary: Summary
    cost: Cost  # of a round, for the client of median size
    curves: Curves
    rate: Chosen | None = None  # where its main rate was chosen by a search

    @classmethod
    def of(cls, name: str, run: Run, seed: int, rate: Chosen | None = None) -> Entry:
        """Sum up a run."""
        curves = curves_of(run.history, run.federation.task.metric)
        return cls(name, run.algorithm.family, seed, Summary.of(run), run.cost(), curves, rate)

    def row(self) -> dict[str, object]:
        """Return its line in comparison.json."""
        return {
            "name": self.name,
            "family": self.family,
            "seed": self.seed,
            **asdict(self.summary),
            "cost": asdict(self.cost),
            "curves": self.curves,
            "rate": None if self.rate is None else asdict(self.rate),
        }


def settings_for(
    name: str, given: Mapping[str, object], seed: int, folder: Path, *, others: Sequence[str] = ()
) -> Settings:
    """Give one method's settings: what is given for all and what it knows of, overlaid with its own.

    A settings file may have a table per method, [pflego] or [fedavg], for what differs between them; a variant's name
    has what is its own. "none" in either: not given, though others have it.
    """
    variant = Variant.of(name)
    kind = find_method(variant.method)
    compared = [find_method(other) for other in (*methods(), *(Variant.of(o).method for o in others))]
    everybodys = {field for other in compared for field in known("method", other)}
    own = known("method", kind)
    tables = {other.__name__.lower() for other in compared}
    settings = {k: v for k, v in given.items() if k not in tables and (k in own or k not in everybodys)}
    called = kind.__name__.lower()
    table = given.get(called, {})
    if not isinstance(table, dict):
        raise SettingError(f"[{called}] must be a table of settings, not {table!r}")
    table = {
        f"method.{key}" if f"method.{key}" in own else key: None if value == "none" else value
        for key, value in {**table, **variant.settings}.items()
    }
    for key in table.keys() - own.keys():  # what all methods have in common cannot differ between them
        raise unknown(f"setting of {called}", key, own)
    place = folder / variant.folder / f"seed-{seed}"
    own_place = {"algorithm": variant.method, "seed": seed, "out": str(place)}
    return Settings.of({"evaluate_adapted": True, **settings, **table, **own_place})


def compare(
    given: Mapping[str, object],
    names: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    rates: Rates = "search",
    progress: bool = True,
    told: Callable[[Chosen], None] = lambda chosen: None,
) -> list[Entry]:
    """Train every method with every seed, or go on with it; one folder per method. Writes figures and curves.

    rates: "search" chooses each method's main rate, with the first seed, unless it is given; "given" takes rates as
    they are; "paper" takes the methods' settings in the paper's experiment with these data. `told` hears of choices.
    """
    for name in names:
        settings_for(name, given, seeds[0], folder, others=names)  # what is wrong shows before anything runs
    entries = []
    chosen: dict[str, Chosen | None] = {}
    for seed in seeds:
        federation = None
        for name in names:
            settings = settings_for(name, given, seed, folder, others=names)
            if rates == "paper":
                settings = settings.changed(**{**of_the_paper(settings), **settings.flat})
            federation = federation or load_data(settings)
            if rates == "search" and name not in chosen:
                chosen[name] = choose_rate(
                    settings, settings.flat, federation, folder / Variant.of(name).folder, called=name
                )
                if (choice := chosen[name]) is not None:
                    told(choice)
            if (choice := chosen.get(name)) is not None:
                settings = settings.changed(**{choice.name: choice.value})
            run = Experiment.build(settings, federation=federation).train(resume=True, progress=progress)
            entries.append(Entry.of(name, run, seed, chosen.get(name)))
    rows = [entry.row() for entry in entries]
    write_atomically(folder / "comparison.json", (json.dumps(rows, indent=1) + "\n").encode())
    return entries


def draw_curves(entries: Sequence[Entry], path: Path) -> Path:
    """Draw loss and metric over the rounds, and over a client's passes: one line per method, the first seed of each."""
    first = [entry for entry in entries if entry.seed == entries[0].seed]
    metric = entries[0].summary.metric

    def curves(key: str, of: Callable[[Entry], float] = lambda _: 1) -> list[Curve]:
        return [
            Curve(e.name, [t * of(e) for t, _ in e.curves[key]], [v for _, v in e.curves[key]]) for e in first
        ]

    panels = [
        Panel("training loss, participants", curves("loss"), "round", "loss"),
        Panel("test, participants", curves("participants"), "round", metric),
        Panel("test, everyone adapted", curves("everyone_adapted"), "round", metric),
        Panel(
            "test, participants, by cost",
            curves("participants", lambda e: e.summary.forward_passes + e.summary.backward_passes),
            "passes of a client that always takes part",
            metric,
            scale="log x",
        ),
    ]
    return draw(panels, path, columns=2)
