"""The paper's tables and figures: which cells each has, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from rich.table import Table

from pflego.algorithms.registry import find_method
from pflego.algorithms.registry import methods as all_methods
from pflego.paper import PRESETS, methods, published
from pflego.paper.cells import VARIANTS, Cell, Record
from pflego.report.plots import Curve, Panel, draw
from pflego.settings.tables import known

_TITLES = {"loss": "training loss", "training": "training accuracy, participants"}
_COMPARED = ["pflego", "fedavg", "fedper"]  # the methods of the paper's curves


@dataclass(frozen=True)
class Choice:
    """Which part of an experiment is wanted; empty: all of it."""

    datasets: Sequence[str] = ()
    degrees: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (1,)
    scale: float = 1.0
    changes: dict[str, object] = field(default_factory=dict)  # rounds, split, ...

    def presets(self, among: Sequence[str] = PRESETS) -> list[str]:
        """List the presets of the chosen data sets and degrees."""
        chosen = []
        for name in among:
            data, _, degree = name.rpartition("-") if name != "omniglot" else (name, "", "")
            if (not self.datasets or data in self.datasets) and (
                not self.degrees or not degree or degree in self.degrees
            ):
                chosen.append(name)
        return chosen

    def cells(
        self, presets: Sequence[str], usual: Sequence[str] = (), **grid: Sequence[object]
    ) -> list[Cell]:
        """Make one cell per preset, method, point of the grid and seed."""
        return [
            Cell(name, method, seed, {**point, **self.changes}, self.scale)
            for name in presets
            for method in (self.methods or usual or methods(name))
            if method in VARIANTS or method in methods(name)
            for point in _points(method, grid)
            for seed in self.seeds
        ]


def _points(method: str, grid: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """List the points of a grid, without the settings that only other methods have."""
    own = known("method", find_method("pflego" if method in VARIANTS else method))
    others = {name for kind in all_methods().values() for name in known("method", kind)} - own.keys()
    axes = {name: values for name, values in grid.items() if name not in others}
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@dataclass(frozen=True)
class PaperExperiment:
    """One of the paper's tables or figures."""

    name: str
    cells: Callable[[Choice], list[Cell]]
    varied: Sequence[str] = ()  # the settings that differ between its cells
    picture: str | None = None  # which curve is drawn
    with_cost: bool = False

    def table(self, records: Sequence[Record], title: str) -> Table:
        """Tabulate one line per cell, the paper's number beside ours."""
        table = Table(title=title, title_justify="left")
        table.add_column("experiment", no_wrap=True)
        table.add_column("method", no_wrap=True)
        headings = [
            *self.varied,
            "rounds",
            "seed",
            "participants, %",
            "s.d. over rounds",
            "paper ± its interval",
            "difference",
            "everyone, %",
            "mean over clients, %",
            "loss",
        ]
        headings += ["seconds per round"]
        if self.with_cost:
            headings += ["paper's seconds", "passes", "GFLOP per client"]
        for heading in headings:
            table.add_column(heading, justify="right")
        seconds = published().seconds
        for r in records:
            row = [r.preset, r.method, *(str(r.changes[name]) for name in self.varied)]
            row += [str(r.settings["rounds"]), str(r.seed), f"{r.participants:.2f}", f"{r.deviation:.2f}"]
            row += (
                ["–", "–"]
                if r.published is None
                else [f"{r.published[0]:.2f} ± {r.published[1]:.2f}", f"{r.difference:+.2f}"]
            )
            row += [f"{r.everyone:.2f}", "–" if r.client_mean is None else f"{r.client_mean:.2f}"]
            row += [f"{r.loss:.4f}", f"{r.seconds_a_round:.2f}"]
            if self.with_cost and r.cost is not None:
                paper = seconds.get(r.preset, {}).get(r.method)
                row += [
                    "–" if paper is None else f"{paper:g}",
                    f"{r.cost['forward_passes']} + {r.cost['backward_passes']}",
                ]
                row += [f"{r.cost['flops'] / 1e9:.1f}"]
            table.add_row(*row)
        return table

    def draw(self, records: Sequence[Record], path: Path) -> Path | None:
        """Draw its curves: one panel per preset and curve, a line for the rest."""
        if self.picture is None or not records:
            return None
        first = [r for r in records if r.seed == records[0].seed]
        panels = [
            Panel(
                f"{name}: {_TITLES.get(key, f'test accuracy, {key}')}",
                [self._curve(r, key) for r in first if r.preset == name],
                "round",
                "loss" if key == "loss" else "accuracy",
            )
            for name in dict.fromkeys(r.preset for r in first)
            for key in self.picture.split()
            if any(r.curves.get(key) for r in first if r.preset == name)
        ]
        return draw(panels, path, columns=2)

    def _curve(self, record: Record, key: str) -> Curve:
        label = ", ".join([record.method, *(f"{name} {record.changes[name]}" for name in self.varied)])
        return Curve(label, [t for t, _ in record.curves[key]], [v for _, v in record.curves[key]])


_FIGURES = published().figures
_LONG = _FIGURES["omniglot"]["rounds"]  # of figure 6; table 2 is taken earlier
_OWN = [name for name in PRESETS if name != "omniglot"]

EXPERIMENTS: dict[str, PaperExperiment] = {
    experiment.name: experiment
    for experiment in [
        PaperExperiment(
            "table1",
            lambda choice: choice.cells(choice.presets(_OWN)),
        ),
        PaperExperiment(
            "omniglot",
            lambda choice: choice.cells(choice.presets(["omniglot"])),
        ),
        PaperExperiment(
            "time",
            lambda choice: choice.cells(choice.presets(["omniglot"]), rounds=[3]),
            with_cost=True,
        ),
        PaperExperiment(
            "curves",
            lambda choice: [
                *choice.cells(choice.presets(_OWN), _COMPARED),
                *choice.cells(  # all eight methods, and training accuracy beside
                    choice.presets(["omniglot"]), rounds=[_LONG], evaluate_training=[True]
                ),
            ],
            picture="loss training participants",
        ),
        PaperExperiment(
            "tau",
            lambda choice: choice.cells(
                choice.presets(["omniglot"]),
                _FIGURES["fedrecon"]["methods"],
                steps=_FIGURES["fedrecon"]["steps"],
                client_lr=[_FIGURES["fedrecon"]["client_lr"]],
                server_lr=[_FIGURES["fedrecon"]["server_lr"]],
                participation=[_FIGURES["fedrecon"]["participation"]],
                rounds=[_FIGURES["fedrecon"]["rounds"]],
            ),
            varied=("steps",), picture="participants",
        ),
        PaperExperiment(
            "participation",
            lambda choice: choice.cells(
                choice.presets(["cifar10-high"]) or choice.presets(_OWN),
                _FIGURES["participation"]["methods"],
                participation=_FIGURES["participation"]["participation"],
                client_lr=[_FIGURES["participation"]["client_lr"]],
                server_lr=[_FIGURES["participation"]["server_lr"]],
            ),
            varied=("participation",), picture="participants",
        ),
        PaperExperiment(
            "rates",
            lambda choice: [
                cell
                for presets, rounds in (
                    (choice.presets(["omniglot"]), {"rounds": [_FIGURES["rates"]["rounds"]]}),
                    ([] if choice.presets(["omniglot"]) else choice.presets(_OWN), {}),
                )
                for cell in choice.cells(
                    presets,
                    ["pflego"],
                    client_lr=[0.001, 0.01, 0.1, "auto"],
                    server_lr=_FIGURES["rates"]["server_lr"],
                    **rounds,
                )
            ],
            varied=("client_lr", "server_lr"), picture="loss",
        ),
    ]
}  # fmt: skip
