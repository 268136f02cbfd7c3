"""Accuracy against epsilon: what differential privacy costs a method that shares a gradient, and one that shares all.

    python examples/privacy.py --data digits --clients 20 --rounds 5 --epsilons 8 --clips 0.1 --seeds 1
    PFLEGO_DATA=... python examples/privacy.py --data mnist,fashion-mnist --clients 100,1000 --chance 0.2,0.1 \
        --out docs/privacy.json --picture docs/privacy.png

PFLEGO, plain and with a common head, and FedAvg get the same number of clips and rates to choose from, on a part of the
training data held out: pairs of both at the second of the epsilons, clips again at the others, and rates again without
noise. With the best of them each is then trained and judged on test data: everyone after the local steps of its method.
Beside that, heads that are fitted to the first backbone, which costs no privacy at all. The second command makes all of
docs/privacy.json, one federation after the other; what the file has already is not done again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TypeAlias, TypedDict

import torch
from torch import nn

import pflego
from pflego.data.validation import hold_out
from pflego.exchange.accountant import noise_for, sampling_of
from pflego.report.plots import picture
from results_file import ResultsFile

RATES = {
    "PFLEGO": (0.003, 0.01, 0.03),
    "PFLEGO, common head": (0.003, 0.01, 0.03),
    "FedAvg": (0.03, 0.1, 0.3),
}
UNCLIPPED = 1e6
ALONE = "heads on the first backbone"

Pair: TypeAlias = tuple[float, float]  # clip and rate


class Row(TypedDict):
    """What one run came to."""

    data: str
    clients: int
    method: str
    epsilon: float | None  # None: without noise
    clip: float
    rate: float
    seed: int
    chosen_by: bool  # whether it was judged on held-out data
    accuracy: float


def method(name: str, rate: float) -> pflego.Algorithm:
    """Make a method of a rate: the server's, or of FedAvg the clients'."""
    if name == "FedAvg":
        return pflego.FedAvg(steps=5, client_lr=rate, fine_tune=20, fine_tune_part="head")
    return pflego.PFLEGO(steps=20, client_lr="auto", server_lr=rate, common_head=name != "PFLEGO")


def federation_of(given: argparse.Namespace, seed: int) -> pflego.Federation:
    """Load clients of at most so many samples: more clients are then more data, and not the same divided further."""
    samples = given.samples
    whole = pflego.load(
        given.data,
        clients=given.clients,
        classes_per_client=given.classes_per_client,
        seed=seed,
        data_dir=given.data_dir,
    )
    return pflego.Federation(
        [
            pflego.Client(
                c.id, c.x_train[:samples].flatten(1), c.y_train[:samples], c.x_test.flatten(1), c.y_test
            )
            for c in whole
            if len(c.x_train)
        ]
    )


def train(given: argparse.Namespace, federation: pflego.Federation, asked: Row) -> float:
    """Train once; give everyone's accuracy after the local steps of the method."""
    torch.manual_seed(asked["seed"])
    layer = nn.Linear(federation[0].x_train.shape[1], given.hidden)
    model = pflego.Model(nn.Sequential(layer, nn.ReLU()), features=given.hidden)
    participation = pflego.Binomial(given.chance)
    noise, delta = 0.0, 1 / (10 * len(federation))
    if asked["epsilon"] is not None:
        sampling = sampling_of(participation, federation.ids)
        noise = noise_for(sampling, epsilon=asked["epsilon"], delta=delta, rounds=given.rounds)
    run = pflego.train(
        federation,
        model,
        method("PFLEGO" if asked["method"] == ALONE else asked["method"], asked["rate"]),
        rounds=given.rounds,
        participation=participation,
        weighting="equal",
        privacy=pflego.ClientPrivacy(clip=asked["clip"], noise=noise, delta=delta),
        seed=asked["seed"],
        evaluate_every=0,
        evaluate_adapted=True,
        progress=False,
    )
    return float(run.history[-1]["everyone_adapted_accuracy"] or 0.0)


class Found(ResultsFile[Row]):
    """The rows of a file, to which those that are missing are added."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given.out)
        self.given = given

    def get(
        self, name: str, epsilon: float | None, clip: float, rate: float, seed: int, *, choosing: bool
    ) -> float:
        """Give the accuracy of a run, which is made if it was not yet."""
        asked = Row(
            data=self.given.data,
            clients=self.given.clients,
            method=name,
            epsilon=epsilon,
            clip=clip,
            rate=rate,
            seed=seed,
            chosen_by=choosing,
            accuracy=0.0,
        )
        for row in self.rows:
            if Row({**row, "accuracy": 0.0}) == asked:
                return row["accuracy"]
        federation = federation_of(self.given, seed)
        if choosing:
            federation = hold_out(federation, share=0.3, seed=seed)
        done = Row({**asked, "accuracy": round(train(self.given, federation, asked), 5)})
        print(self.add(done), flush=True)
        return done["accuracy"]

    def best(self, name: str, epsilon: float | None, clips: Sequence[float], rates: Sequence[float]) -> Pair:
        """Choose the clip and the rate that are best on data held out."""
        tried = {
            (clip, rate): self.get(name, epsilon, clip, rate, 100, choosing=True)
            for clip, rate in product(clips, rates)
        }
        return max(tried, key=lambda pair: tried[pair])

    def drop_others(self, chosen: Mapping[str, Mapping[float | None, Pair]]) -> None:
        """Keep, of what was judged on test data in this federation, what was chosen."""
        here = self.given.data, self.given.clients
        self.rows = [
            row
            for row in self.rows
            if row["chosen_by"]
            or (row["data"], row["clients"]) != here
            or row["method"] == ALONE
            or chosen[row["method"]].get(row["epsilon"]) == (row["clip"], row["rate"])
        ]
        self.write()


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against epsilon, a panel per data set and number of clients."""
    tested = [row for row in rows if not row["chosen_by"]]
    panels = list(dict.fromkeys((row["data"], row["clients"]) for row in tested))
    with picture(path, len(panels), columns=3 if len(panels) % 2 else 2) as (figure, axes):
        for axis, (data, clients) in zip(axes, panels, strict=True):
            own = [row for row in tested if (row["data"], row["clients"]) == (data, clients)]
            for number, name in enumerate([*RATES, ALONE]):
                points = {
                    epsilon: fmean(
                        row["accuracy"] for row in own if row["method"] == name and row["epsilon"] == epsilon
                    )
                    for epsilon in dict.fromkeys(row["epsilon"] for row in own if row["method"] == name)
                }
                if name == ALONE and points:
                    axis.axhline(points[None], color="grey", linestyle=":", label=name)
                    continue
                known = sorted((e, a) for e, a in points.items() if e is not None)
                axis.plot(*zip(*known, strict=True), "o-", color=f"C{number}", label=name) if known else None
                if None in points:
                    axis.axhline(points[None], color=f"C{number}", linestyle="--", linewidth=0.9, alpha=0.7)
            axis.set(title=f"{data}, {clients:,} clients", xlabel="epsilon", ylabel="accuracy", xscale="log")
            ticks = sorted({row["epsilon"] for row in own if row["epsilon"] is not None})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks([], minor=True)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)


def study(given: argparse.Namespace) -> list[Row]:
    """Choose clips and rates of one federation, train with them, and give all rows of the file."""
    epsilons = [float(word) for word in given.epsilons.split(",")]
    clips = [float(word) for word in given.clips.split(",")]
    found = Found(given)
    chosen: dict[str, dict[float | None, Pair]] = {}
    middle = epsilons[:2][-1]
    for name, rates in RATES.items():
        clip, rate = found.best(name, middle, clips, rates)
        chosen[name] = {
            epsilon: found.best(name, epsilon, clips, [rate]) for epsilon in epsilons if epsilon != middle
        }
        chosen[name] |= {middle: (clip, rate), None: found.best(name, None, [UNCLIPPED], rates)}
    for seed in range(given.seeds):
        for name, pairs in chosen.items():
            for epsilon, (clip, rate) in pairs.items():
                found.get(name, epsilon, clip, rate, seed, choosing=False)
        found.get(ALONE, None, UNCLIPPED, 1e-12, seed, choosing=False)
    found.drop_others(chosen)
    return found.rows


def main() -> None:
    """Study one federation after the other, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits", help="one data set, or several")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--clients", default="20", help="how many, or several numbers")
    parser.add_argument("--classes-per-client", type=int, default=5)
    parser.add_argument("--samples", type=int, default=60, help="of a client, for training, at most")
    parser.add_argument("--hidden", type=int, default=32, help="units of the shared layer")
    parser.add_argument("--chance", default="0.2", help="to take part in a round, one per number of clients")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--epsilons", default="1,2,4,8")
    parser.add_argument("--clips", default="0.03,0.1,0.3,1,3")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--picture", type=Path, default=None)
    given = parser.parse_args()
    sizes = [int(word) for word in given.clients.split(",")]
    chances = [float(word) for word in given.chance.split(",")]
    if len(sizes) != len(chances):
        parser.error("--chance needs as many numbers as --clients")
    for (clients, chance), data in product(zip(sizes, chances, strict=True), given.data.split(",")):
        one = {**vars(given), "data": data, "clients": clients, "chance": chance}
        rows = study(argparse.Namespace(**one))
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
