"""All results as one page: ours beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from statistics import fmean

from pflego.errors import UserError
from pflego.files import write_atomically
from pflego.paper import PRESETS, methods, preset, published
from pflego.paper.cells import VARIANTS, Record, longer
from pflego.report.plots import Curve, Panel, draw
from pflego.runs.cost import Cost, Energy

_DEGREES = {
    "high": "high (2 classes per client)",
    "medium": "medium (half of the classes)",
    "none": "none (all)",
}
Curved = list[tuple[int, float]]  # rounds and figures
_CURVES = (
    "A point of a curve is the mean of the ten rounds up to it, or of those of them that were kept. "
    "Rivals' lines are broken."
)
_LEAK = "With the paper's split, which has rotations of one drawing on both sides, unless it says otherwise."


def write(folder: Path, out: Path) -> int:
    """Write the page, its figures beside it as JSON and its curves as a picture; give how many results there are."""
    records = read(folder)
    if not records:
        raise UserError(
            f"{folder} has no results: run pflego paper table1 --out {folder} first, or another table"
        )
    kept = [replace(record, curves=_kept(record.curves)) for record in records]
    figures = [asdict(record) for record in kept]
    write_atomically(out.with_suffix(".json"), (json.dumps(figures, indent=None) + "\n").encode())
    write_atomically(out, page(kept, out).encode())
    return len(records)


def read(folder: Path) -> list[Record]:
    """Read what experiments have left in a folder, in the paper's order."""
    found = [Record.read(path) for name in PRESETS for path in folder.glob(f"{name}/*.json")]
    names = [*dict.fromkeys(m for name in PRESETS for m in methods(name)), *VARIANTS]
    return sorted(
        found, key=lambda r: (PRESETS.index(r.preset), names.index(r.method), _by_size(r.changes), r.seed)
    )


def _from_zero(records: Sequence[Record]) -> str:
    """Name the data sets on which a common head was run from zero, not centred as it now starts."""
    common = [r for r in records if r.method == "pflego-common" and r.settings["head_init"] == "zeros"]
    sets = list(dict.fromkeys(_data(r) for r in common))
    return f" On {' and '.join(sets)} the common head started at zero, elsewhere centred." if sets else ""


def _by_size(changes: Mapping[str, object]) -> list[tuple[str, float, str]]:
    """Return a sort key of settings by which 20 comes before 100, and words after numbers."""
    return [
        (name, value if isinstance(value, int | float) else inf, str(value))
        for name, value in sorted(changes.items())
    ]


def page(records: Sequence[Record], out: Path) -> str:
    """Write the page as Markdown."""
    plain = [
        r
        for r in records
        if not set(r.changes) - {"rounds"} and r.cost is None and not longer(r.settings, r.preset)
    ]
    timed = [r for r in records if r.cost is not None]
    varied = [r for r in records if r not in plain and r not in timed]
    made = sorted({" ".join(f"{key} {value}," for key, value in r.made.items()).rstrip(",") for r in records})
    lines = [
        "# The paper's experiments, run again",
        "",
        f"Written by `pflego paper results` from {len(records)} runs ({'; '.join(made)}); "
        f"[{out.stem}.json]({out.stem}.json) has every figure, and the curves.",
        "A figure is the test accuracy of a round's participants, in per cent, the mean of the last ten rounds, as in "
        "the paper's tables; after the slash that of everyone, all clients with the last weights; in brackets the "
        "paper's. Where several seeds were run, their mean. Bold: further from the paper than its own interval. A cell "
        "that was run for fewer rounds, or with fewer clients, than the paper's says so, and is not compared.",
        "`pflego-auto` and `pflego-common` are not in the paper: rates from its theory, and a common head."
        + _from_zero(plain),
        "FedAvg, FedProx and FedBabu number a client's classes anew (local labels): unadapted, as everyone's figure "
        "has them, they can at best tell the rank of a class among a client's own, 77.8 % for 2 of 10 evenly drawn "
        "classes and 61.3 % for 5 of 10 ([algorithms.md](algorithms.md#what-an-output-stands-for)).",
        "",
    ]
    for data in dict.fromkeys(_data(r) for r in plain):
        lines += [f"## {data}", ""]
        own = [r for r in plain if _data(r) == data]
        if data == "omniglot":
            lines += [_LEAK, ""]
        lines += [*_part_of(data, own), *_accuracies(own), ""]
    if plain:
        lines += [_CURVES, "", *_picture(_panels(plain), "curves", "over the rounds", out), ""]
    if dear := _of_unequal_cost(plain):
        lines += [
            "Over the passes through the backbone that a client makes if it takes part in every round:",
            "",
        ]
        lines += [*_picture(_panels(dear, over_passes=True), "passes", "over a client's passes", out), ""]
    if timed:
        lines += ["## Seconds per round", "", *_seconds(timed), ""]
    if varied:
        lines += ["## One thing varied", "", *_variations(varied), ""]
    missing = {
        name: [m for m in methods(name) if not any(r.preset == name and r.method == m for r in plain)]
        for name in PRESETS
    }
    if number := sum(map(len, missing.values())):
        lines += ["## Not run", "", f"{number} of the paper's 92 cells:", ""]
        lines += [f"- {name}: {', '.join(absent)}" for name, absent in missing.items() if absent]
    return "\n".join(lines).rstrip() + "\n"


def _part_of(data: str, records: Sequence[Record]) -> list[str]:
    """Say so where the data are not the whole set."""
    whole = published().data_sets.get(data, {}).get("train", 0)
    most = max(r.samples for r in records if r.scale == 1) if any(r.scale == 1 for r in records) else whole
    if data == "omniglot" or most >= whole:
        return []
    return [
        f"The data are a part of the set, {most:,} of {whole:,} training images, so the figures cannot be held against "
        f"the paper's one by one.",
        "",
    ]


def _accuracies(records: Sequence[Record]) -> list[str]:
    columns = list(dict.fromkeys(r.preset for r in records))
    headings = [_DEGREES.get(name.rpartition("-")[2], name) for name in columns]
    lines = [f"| | {' | '.join(headings)} |", f"| --- | {' | '.join('---:' for _ in columns)} |"]
    for method in dict.fromkeys(r.method for r in records):
        cells = [
            _cell([r for r in records if r.method == method and r.preset == name], name, method)
            for name in columns
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    rounds = sorted({_rounds(r) for r in records if not _reduced(r)})
    whole = [f"T = {', '.join(map(str, rounds))} where it says nothing else."] if rounds else []
    return [*lines, "", " ".join([*whole, "One seed, unless there are more."])]


def _cell(records: Sequence[Record], name: str, method: str) -> str:
    if not records:
        return "–"
    fullest = max((r.scale, _rounds(r)) for r in records)
    records = [r for r in records if (r.scale, _rounds(r)) == fullest]
    ours = fmean(r.participants for r in records)
    text = f"{ours:.2f} / {fmean(r.everyone for r in records):.2f}"
    if len(records) > 1:
        text += f", {len(records)} seeds"
    reduced = _reduced(records[0])
    paper = published().accuracy.get(name, {}).get(method)
    if paper is not None:
        far = abs(ours - paper.mean) > paper.interval and not reduced
        text = f"{f'**{text}**' if far else text} ({paper.mean:.2f} ± {paper.interval:.2f})"
    return f"{text}; {reduced}" if reduced else text


def _rounds(record: Record) -> int:
    return int(str(record.settings["rounds"]))


def _reduced(record: Record) -> str:
    """Say what a run has less of than the paper's; empty, if nothing."""
    rounds = int(str(preset(record.preset, "pflego")["rounds"]))
    less = [f"T = {_rounds(record)}"] if _rounds(record) < rounds else []
    return ", ".join([*less, f"{record.scale:g} of the clients"] if record.scale < 1 else less)


def _seconds(records: Sequence[Record]) -> list[str]:
    lines = [
        "| | seconds here | rounds | paper | passes | GFLOP per client | MB of memory per client | joules per client |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in records:
        cost = Cost(**(r.cost or {}))
        paper = published().seconds.get(r.preset, {}).get(r.method)
        lines.append(
            f"| {r.method} | {r.seconds_a_round:.2f} | {_rounds(r)} | {'–' if paper is None else paper} "
            f"| {cost.forward_passes:.4g} + {cost.backward_passes:.4g} | {cost.flops / 1e9:.1f} "
            f"| {cost.memory / 1e6:.0f} | {cost.joules():.1f} |"
        )
    first = records[0]
    return [
        *lines, "",
        f"{first.preset}, {first.settings['participation']} clients per round of the paper's size, the mean over that "
        f"many rounds; passes, operations and memory of the client of median size. Joules are an estimate: {Energy()}.",
    ]  # fmt: skip


def _variations(records: Sequence[Record]) -> list[str]:
    lines = [
        "| experiment | method | changed | rounds | clients | seed | participants / everyone | loss |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in records:
        changed = ", ".join(f"{key} {value}" for key, value in r.changes.items() if key != "rounds") or "–"
        clients = f"{r.scale:g} of the paper's" if r.scale != 1 else "all"
        lines.append(
            f"| {r.preset} | {r.method} | {changed} | {r.settings['rounds']} | {clients} | {r.seed} "
            f"| {r.participants:.2f} / {r.everyone:.2f} | {r.loss:.4f} |"
        )
    return lines


def _picture(panels: Sequence[Panel], name: str, over: str, out: Path) -> list[str]:
    columns = 2 if len(panels) in (2, 4) else 3
    path = draw(panels, out.with_name(f"{out.stem}-{name}.png"), columns=columns)
    return [f"![Test accuracy of the participants {over}]({path.name})"]


def _of_unequal_cost(records: Sequence[Record]) -> list[Record]:
    """Keep the records of presets whose methods do not all cost the same."""
    passes: dict[str, set[float]] = {}
    for r in records:
        passes.setdefault(r.preset, set()).add(r.passes)
    return [r for r in records if len(passes[r.preset]) > 1]


def _panels(records: Sequence[Record], *, over_passes: bool = False) -> list[Panel]:
    seed = min(r.seed for r in records)

    def curve(record: Record) -> Curve:
        a_round = record.passes if over_passes else 1
        rounds, values = zip(*record.curves["participants"], strict=True)
        style = "-" if record.method.startswith("pflego") else "--"
        return Curve(record.method, [t * a_round for t in rounds], [100 * v for v in values], style)

    return [
        Panel(
            name,
            [curve(r) for r in records if r.preset == name and r.seed == seed],
            "passes" if over_passes else "round",
            "participants, %",
            scale="log x" if over_passes else "linear",
        )
        for name in dict.fromkeys(r.preset for r in records)
    ]


def _kept(curves: Mapping[str, Curved]) -> dict[str, Curved]:
    """Keep of long curves every tenth round; of the participants', who differ from round to round, the mean of ten."""
    means = {**curves, "participants": _means(curves["participants"])}
    return {name: _thin(curve) for name, curve in means.items()}


def _means(curve: Curved) -> Curved:
    """Give at each round the mean of those of the last ten rounds that the curve has."""
    return [
        (t, round(fmean(value for past, value in curve[max(0, i - 9) : i + 1] if past > t - 10), 5))
        for i, (t, _) in enumerate(curve)
    ]


def _thin(curve: Curved) -> Curved:
    return [
        (t, v) for i, (t, v) in enumerate(curve) if len(curve) <= 20 or t % 10 == 0 or i == len(curve) - 1
    ]


def _data(record: Record) -> str:
    return record.preset if record.preset == "omniglot" else record.preset.rpartition("-")[0]
