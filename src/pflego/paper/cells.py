"""One number of the paper and ours beside it: a cell is an experiment of the paper, a method and a seed."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import ceil
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pflego.declaration import arguments
from pflego.errors import SettingError, unknown
from pflego.federation.roster import Federation
from pflego.files import make_folder, write_atomically
from pflego.learning.streaming import Streaming
from pflego.paper import PRESETS, methods, preset, published
from pflego.runs.cost import Cost, measure
from pflego.runs.run import Run
from pflego.runs.summary import LAST, curves_of
from pflego.settings.experiment import Experiment, load_data

# What goes beyond the paper: PFLEGO with the rates of its theory, and with a common head.
VARIANTS: dict[str, dict[str, object]] = {
    "pflego-auto": {"client_lr": "auto", "server_lr": 0.003, "head_init": "zeros"},
    "pflego-common": {
        "client_lr": "auto", "server_lr": 0.002, "head_init": "centred", "common_head": True, "head_decay": 0.1,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """An experiment of the paper with one method.

    Parameters
    ----------
    preset, method, seed
        As in settings.toml; a method may also be one of `VARIANTS`.
    changes
        Settings that differ from the preset's.
    scale
        The share of the preset's clients there are, each with all of its data, and of its participants.
    """

    preset: str
    method: str
    seed: int
    changes: Mapping[str, object] = field(default_factory=dict)
    scale: float = 1.0

    @property
    def name(self) -> str:
        """Where it is kept: different for whatever gives a different number."""
        changed = [f"{key}={value}" for key, value in sorted(self.changes.items())]
        scale = [f"scale={self.scale:g}"] if self.scale != 1 else []
        return "/".join([self.preset, ",".join([self.method, *changed, *scale, f"seed={self.seed}"])])

    def settings(self) -> dict[str, object]:
        """Return all settings, as an experiment takes them."""
        base = preset(self.preset, "pflego" if self.method in VARIANTS else self.method)
        settings = {**base, **VARIANTS.get(self.method, {}), "seed": self.seed, **self.changes}
        if self.scale != 1 and isinstance(participants := settings["participation"], int):
            settings["participation"] = max(1, round(participants * self.scale))
        return settings


@dataclass(frozen=True)
class Record:
    """What a cell came to."""

    preset: str
    method: str
    seed: int
    scale: float
    changes: dict[str, object]
    participants: float  # per cent, mean of the last rounds
    deviation: float  # of these rounds
    everyone: float  # per cent, after the last round
    loss: float
    published: tuple[float, float] | None  # the paper's mean and interval, where nothing was changed
    passes: float  # of a participant in a round, forward and backward
    seconds_a_round: float
    cost: dict[str, Any] | None  # of a client of median size, where it was measured
    curves: dict[str, list[tuple[int, float]]]
    settings: dict[str, object]
    made: dict[str, str]  # versions and machine
    samples: int  # for training, of all clients
    client_mean: float | None = (
        None  # everyone's, per cent, each client counting the same; not in older results
    )

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what a cell came to before."""
        try:
            value = json.loads(path.read_text())
            if value["published"] is not None:
                value["published"] = tuple(value["published"])
            return cls(**value)
        except (ValueError, TypeError, KeyError) as error:
            raise SettingError(
                f"{path} is no result of this version of pflego: remove it, and run its experiment again"
            ) from error

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.published is None else self.participants - self.published[0]


def check_names(presets: Sequence[str], chosen: Sequence[str]) -> None:
    """Refuse what is no preset and no method before anything runs."""
    for name in presets:
        if name not in PRESETS:
            raise unknown("preset", name, PRESETS)
    known = [*dict.fromkeys(method for name in PRESETS for method in methods(name)), *VARIANTS]
    for name in chosen:
        if name not in known:
            raise unknown("method", name, known)


def longer(settings: Mapping[str, object], name: str) -> bool:
    """Tell whether a run has more rounds than the paper's table, as those of its figures have on Omniglot."""
    return int(str(settings["rounds"])) > int(str(preset(name)["rounds"]))


def run(cell: Cell, folder: Path, *, means: Mapping[str, object], with_cost: bool, progress: bool) -> Record:
    """Train a cell, or go on with it, or read what it came to before.

    `means` are settings that make no other number of it: data_dir, memory, speedup.
    """
    kept = folder / f"{cell.name}.json"
    if kept.exists():
        record = Record.read(kept)
        if record.cost is not None or not with_cost:
            return record
    settings = {**cell.settings(), **means, "out": str(folder / cell.name)}
    experiment = Experiment.build(settings, federation=_federation(settings, cell.scale))
    cost = None
    if with_cost:  # before the rounds are timed, so that the first of them finds everything loaded
        streaming = arguments(Streaming, experiment.settings.tables["run"])
        cost = measure(experiment.federation, experiment.model, experiment.algorithm, **streaming)
    trained = experiment.train(resume=True, progress=progress)
    record = _record(cell, settings, trained, cost)
    make_folder(kept.parent)
    write_atomically(kept, (json.dumps(asdict(record)) + "\n").encode())
    return record


_loaded: dict[str, Federation] = {}  # the last one: cells of a preset come one after the other


def _federation(settings: Mapping[str, object], scale: float) -> Federation:
    names = ("data", "clients", "classes_per_client", "split", "data_dir", "seed")
    key = repr([settings.get(name) for name in names] + [scale])
    if key not in _loaded:
        whole = load_data(settings)
        if not 0 < scale <= 1:
            raise SettingError(f"scale must be above 0 and at most 1, not {scale!r}")
        few = [whole[position] for position in range(ceil(len(whole) * scale))]
        _loaded.clear()
        _loaded[key] = whole if scale == 1 else Federation(few, source={**whole.source, "scale": scale})
    return _loaded[key]


def _record(
    cell: Cell,
    settings: dict[str, object],
    run: Run,
    cost: Cost | None,
) -> Record:
    history, figures = run.history, [f for f in run.evaluations[len(run.history)] if f is not None]
    curves = {
        name: [(t, round(value, 5)) for t, value in curve]
        for name, curve in curves_of(history, "accuracy").items()
    }
    last = [100 * value for _, value in curves["participants"][-LAST:]]
    cells = published().accuracy.get(cell.preset, {})
    comparable = cell.method in cells and not set(cell.changes) - {"rounds", "split"} and cell.scale == 1
    comparable = comparable and not longer(settings, cell.preset)
    return Record(
        preset=cell.preset,
        method=cell.method,
        seed=cell.seed,
        scale=cell.scale,
        changes=dict(cell.changes),
        participants=fmean(last),
        deviation=pstdev(last),
        everyone=100 * curves["everyone"][-1][1],
        loss=curves["loss"][-1][1],
        published=(*cells[cell.method],) if comparable else None,
        passes=max((row["forward_passes"] or 0) + (row["backward_passes"] or 0) for row in history),
        seconds_a_round=sum(row["seconds"] or 0.0 for row in history) / len(history),
        cost=None if cost is None else asdict(cost),
        curves=curves,
        settings={key: value for key, value in settings.items() if key not in ("out", "data_dir")},
        made={
            "pflego": version("pflego"),
            "torch": version("torch"),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
        },
        samples=run.federation.samples,
        client_mean=100 * fmean(figures) if figures else None,
    )
