"""What a pretrained trunk and a personal head do: CIFAR-10 with few samples per client, four methods, three backbones.

    PFLEGO_DATA=... python examples/pretrained.py                        # some minutes on two cores
    python examples/pretrained.py --data-dir ... --backbones "frozen" --seeds 1

Fifty clients hold 50 pictures of 5 classes each. Backbones: EfficientNet-Lite0 with its ImageNet weights, all of it
frozen, so that heads alone are learned; the same with its last norm trained, 2,560 numbers; and a small network from
scratch. Each method's rate is chosen by the search of `pflego compare`. Needs the extras efficientnet and
plots. Results go to docs/pretrained.json and docs/pretrained.png; what is there already is not done again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import numpy as np

from pflego.comparison.compare import Entry, compare
from pflego.report.plots import Curve, Panel, draw
from results_file import ResultsFile

BACKBONES: dict[str, dict[str, object]] = {
    "frozen": {"model": "efficientnet-lite0", "frozen": "all"},
    "last norm trained": {"model": "efficientnet-lite0", "trained": "last.norm"},
    "from scratch": {"model": "cnn"},
}
METHODS = {
    "PFLEGO": "pflego+client_lr=auto",
    "PFLEGO, common head": "pflego+common_head=true",
    "FedAvg": "fedavg+labels=global",
    "Local": "local",
}


class Figures(TypedDict):
    """What one method came to on one backbone."""

    backbone: str
    method: str
    seed: int
    rate: str  # its main rate, and its name
    everyone: float  # per cent: with what a client has
    adapted: float  # after the local steps of each
    worst_tenth: float
    kilobytes: float  # that a client sends per round
    gigaflops: float  # of a client in a round
    trunk_gigaflops: float  # once for all rounds
    curve: list[tuple[int, float]]  # adapted, by round


def few(given: argparse.Namespace) -> Path:
    """Write the first pictures of CIFAR-10 as a set of its own, and give its folder."""
    folder = Path(given.folder) / f"cifar10-{given.samples}-{given.tests}"
    if not (folder / "cifar10.npz").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with np.load(given.data_dir / "cifar10.npz") as whole:
            np.savez(
                folder / "cifar10.npz",
                x_train=whole["x_train"][: given.samples],
                y_train=whole["y_train"][: given.samples],
                x_test=whole["x_test"][: given.tests],
                y_test=whole["y_test"][: given.tests],
            )
    return folder


def figures(backbone: str, label: str, entry: Entry, participants: int) -> Figures:
    """Sum up what a comparison gives."""
    summary = entry.summary
    return Figures(
        backbone=backbone,
        method=label,
        seed=entry.seed,
        rate="" if entry.rate is None else f"{entry.rate.name} {entry.rate.value}",
        everyone=round(100 * (summary.everyone or 0), 2),
        adapted=round(100 * (summary.everyone_adapted or 0), 2),
        worst_tenth=round(100 * (summary.worst_tenth or 0), 2),
        kilobytes=round(summary.bytes_up / summary.rounds / participants / 1e3, 2),
        gigaflops=round(entry.cost.flops / 1e9, 4),
        trunk_gigaflops=round(entry.cost.trunk_flops / 1e9, 4),
        curve=[(int(number), round(100 * value, 2)) for number, value in entry.curves["everyone_adapted"]],
    )


def run(given: argparse.Namespace, backbone: str, label: str, seed: int) -> Figures:
    """Let one method choose its rate, and train it."""
    settings = {
        "data": "cifar10",
        "data_dir": str(few(given)),
        "clients": given.clients,
        "classes_per_client": given.classes,
        "rounds": given.rounds,
        "participation": given.participation,
        "evaluate_every": given.every,
        "steps": given.steps,
        **BACKBONES[backbone],
    }
    if settings["model"] == "efficientnet-lite0":
        settings |= {"image_size": given.image_size}
    [entry] = compare(
        settings, [METHODS[label]], [seed], given.folder / backbone.replace(" ", "-"), progress=False
    )
    return figures(backbone, label, entry, given.participation)


def table(found: list[Figures]) -> list[str]:
    """Give the document's table: accuracy of everyone as it is and adapted, means over seeds."""
    lines = [
        "| backbone | method | as it is | after local steps | worst tenth, as it is | kB sent "
        "| GFLOP a round (trunk, once) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for backbone, label in dict.fromkeys((one["backbone"], one["method"]) for one in found):
        own = [one for one in found if (one["backbone"], one["method"]) == (backbone, label)]
        as_is, adapted, worst = (
            fmean(one[key] for one in own) for key in ("everyone", "adapted", "worst_tenth")
        )
        work = f"{own[0]['gigaflops']:.3g}"
        if own[0]["trunk_gigaflops"]:
            work += f" ({own[0]['trunk_gigaflops']:.3g})"
        lines.append(
            f"| {backbone} | {label} | {as_is:.1f} | {adapted:.1f} | {worst:.1f} "
            f"| {own[0]['kilobytes']:,.0f} | {work} |"
        )
    return lines


def picture(found: list[Figures], path: Path) -> None:
    """Draw accuracy over rounds, a panel per backbone, the first seed of each."""
    panels = []
    first = found[0]["seed"]
    lowest = min(value for one in found for _, value in one["curve"])
    for backbone in dict.fromkeys(one["backbone"] for one in found):
        curves = [
            Curve(one["method"], [t for t, _ in one["curve"]], [value for _, value in one["curve"]])
            for one in found
            if one["backbone"] == backbone and one["seed"] == first
        ]
        panels.append(Panel(backbone, curves, "round", "accuracy after local steps, %", lowest=lowest - 1))
    draw(panels, path)


def main() -> None:
    """Train what is not there yet; draw and print all that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("PFLEGO_DATA", ".")))
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--samples", type=int, default=2500)
    parser.add_argument("--tests", type=int, default=2500)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--participation", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--out", type=Path, default=Path("docs/pretrained.json"))
    given = parser.parse_args()
    found: ResultsFile[Figures] = ResultsFile(given.out, "backbone", "method", "seed")
    for seed in range(given.seeds):
        for backbone in given.backbones.split(","):
            for label in given.methods.split(";"):
                if (backbone, label, seed) not in found:
                    found.add(run(given, backbone, label, seed))
    print("\n".join(table(found.rows)))
    picture(found.rows, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
