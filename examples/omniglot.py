"""Omniglot, one alphabet per client, for many rounds: how far does each method come, and who lags behind?

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/omniglot.py --out docs/omniglot.json
    PFLEGO_DATA=... python examples/omniglot.py --methods PFLEGO --taus 5,20,50,100 --out docs/omniglot.json

Every fifth alphabet, its drawings as they are, without rotations, so that no drawing is on both sides of the split; two
alphabets take part in a round. Each method tries three values of its main rate for a fifth of the rounds, on a fifth of
the training data held out, up to two more where the best is the first or the last, and is trained with the best. PFLEGO
and FedRecon are also trained as they come, at their default rates. Three figures, in per cent: the participants' test
accuracy, the mean over the last tenth of the rounds; everyone's, with the heads they had when they took part last; and
everyone's once they have adapted to the backbone as it is. For PFLEGO's variants also everyone's, adapted to an average
of the backbone over the rounds; and for all of them, once everyone has gone on alone from there, with the whole model,
for another 20 epochs by mini-batches.

Keeps the curves as JSON, draws them beside it and prints the table. What the file holds already is not trained again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pflego
from pflego.algorithms.base import Algorithm
from pflego.comparison.rates import main_rate
from pflego.data.validation import hold_out
from pflego.engines.local import LocalEngine
from pflego.learning.evaluation import Score, pooled
from pflego.report.plots import Curve, Panel, draw
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.callbacks import Callback
from pflego.weights import Weights
from results_file import ResultsFile

POINTS = 10  # of a curve
TRIAL = 5  # a trial has a fifth of the rounds
KEPT = 0.9  # of the average of the backbone, from one round to the next
SERVERS, CLIENTS = (0.3, 1.0, 3.0), (0.01, 0.03, 0.1)  # parts of the server's rate; rates of clients
WIDER, MOST = 3.0, 5  # where the best is the first or the last, one more is tried beyond; so many at most

BATCHES: dict[str, Any] = {"epochs": 1, "batch_size": 32, "client_lr": 0.1}
AT_HOME = pflego.Local(**(BATCHES | {"epochs": 20}))  # at the rate that learning alone chooses
METHODS: dict[str, Algorithm] = {
    "PFLEGO": pflego.PFLEGO(),
    "PFLEGO, as it comes": pflego.PFLEGO(),
    "PFLEGO, clients at 1/L": pflego.PFLEGO(client_lr="auto"),
    "PFLEGO, clients at 0.01": pflego.PFLEGO(client_lr=0.01),
    "PFLEGO, mini-batches": pflego.PFLEGO(batch_size=32),
    "PFLEGO, common head": pflego.PFLEGO(common_head=True),
    "PFLEGO, common head, mini-batches": pflego.PFLEGO(common_head=True, batch_size=32),
    "PFLEGO, common head, centred": pflego.PFLEGO(common_head=True, client_lr="centred"),
    "PFLEGO, common head, mini-batches, centred": pflego.PFLEGO(
        common_head=True, batch_size=32, client_lr="centred"
    ),
    "PFLEGO, solved": pflego.PFLEGO(head_optimizer="solve"),
    "FedRecon": pflego.FedRecon(),
    "FedRecon, as it comes": pflego.FedRecon(),
    "FedRecon, clients at 1/L": pflego.FedRecon(client_lr="auto"),
    "FedRecon, clients at 0.01": pflego.FedRecon(client_lr=0.01),
    "FedPer": pflego.FedPer(**BATCHES),
    "FedAvg": pflego.FedAvg(**BATCHES),
    "Local": pflego.Local(**BATCHES),
}
AS_IT_COMES = "as it comes"  # at its default rates, without a search
DRAWN = (  # the others vary rates
    "PFLEGO",
    "PFLEGO, mini-batches",
    "PFLEGO, common head",
    "PFLEGO, common head, mini-batches",
    "FedRecon",
    "FedPer",
    "FedAvg",
    "Local",
)


@dataclass(frozen=True)
class Result:
    """How far one method came."""

    method: str
    tau: int
    rounds: int
    seed: int
    rate: float
    tried: list[tuple[float, float | None]]  # rate, figure on data held out; None: it diverged
    participants: float
    averaged: float | None  # everyone, adapted to an average of the backbone
    points: list[dict[str, float]]
    at_home: float | None = None  # everyone, after going on alone


class Average(Callback):
    """Keeps an average of what is shared over the rounds."""

    weights: Weights

    def on_start(self, run: Run) -> None:
        """Begin with the first weights."""
        self.weights = {name: one.clone() for name, one in run.shared.items()}

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Move towards the weights after a round."""
        for name, one in run.shared.items():
            self.weights[name].lerp_(one, 1 - KEPT)


@dataclass(frozen=True)
class Study:
    """Some alphabets, and how many of them take part in a round."""

    federation: pflego.Federation
    participation: int
    seed: int

    @classmethod
    def load(cls, every: int, participation: int, seed: int) -> Study:
        """Read every so many-th alphabet."""
        names = [str(name) for name in pflego.load("omniglot", rotations=1, seed=seed).ids]
        others = [name for number, name in enumerate(names) if number % every]
        federation = pflego.load("omniglot", rotations=1, leave_out=others, seed=seed)
        return cls(federation, participation, seed)

    def train(self, algorithm: Algorithm, rounds: int, *, every: int, average: Average | None = None) -> Run:
        """Train without a word."""
        shape = tuple(self.federation[0].x_train.shape[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which rates go uphill is what is to be found out
            return pflego.train(
                self.federation,
                pflego.models.build("omniglot-conv4", shape, seed=self.seed),
                algorithm,
                rounds=rounds,
                participation=self.participation,
                seed=self.seed,
                evaluate_every=every,
                evaluate_adapted=True,
                callbacks=[average] if average else [],
                progress=False,
            )

    def search(self, algorithm: Algorithm, rounds: int) -> tuple[Algorithm, list[tuple[float, float | None]]]:
        """Try values of the main rate, beyond the best too; return the method with the best."""
        name = main_rate(algorithm) or ""
        present = getattr(algorithm, name)
        rates = [part * present for part in SERVERS] if name == "server_lr" else list(CLIENTS)
        validation = replace(self, federation=hold_out(self.federation, seed=self.seed))
        tried: dict[float, float | None] = {}
        while len(tried) < MOST:
            for rate in rates:
                run = validation.train(replace(algorithm, **{name: rate}), rounds // TRIAL, every=0)
                tried[rate] = run.history[-1].get("everyone_adapted_accuracy")
            best = max(tried, key=lambda rate: tried[rate] or 0.0)
            if min(tried) < best < max(tried):
                break
            rates = [best * WIDER if best == max(tried) else best / WIDER]
        return replace(algorithm, **{name: best}), sorted(tried.items())

    def result(self, method: str, tau: int, rounds: int) -> Result:
        """Search, and train for all rounds."""
        algorithm = METHODS[method]
        if tau:
            algorithm = replace(algorithm, steps=tau)  # type: ignore[call-arg]  # PFLEGO and FedRecon have it
        best, tried = (algorithm, []) if method.endswith(AS_IT_COMES) else self.search(algorithm, rounds)
        average = Average()
        run = self.train(best, rounds, every=max(1, rounds // POINTS), average=average)
        last = [row["participants_accuracy"] or 0.0 for row in run.history[-max(1, rounds // POINTS) :]]
        averaged = None
        if method.startswith("PFLEGO"):
            engine = LocalEngine(run.problems, run.algorithm, run.states)
            averaged = pooled(engine.scores(average.weights, adapt=True), self.federation.task)
        return Result(
            method,
            tau,
            rounds,
            self.seed,
            getattr(best, main_rate(best) or ""),
            tried,
            round(100 * fmean(last), 2),
            percent(averaged),
            [
                {
                    "round": row["round"] or 0,
                    "everyone": round(100 * (row["everyone_accuracy"] or 0), 2),
                    "adapted": round(100 * (row["everyone_adapted_accuracy"] or 0), 2),
                }
                for row in run.history
                if row.get("everyone_adapted_accuracy") is not None
            ],
            self.at_home(run),
        )

    def at_home(self, run: Run) -> float | None:
        """Let everyone adapt and go on alone from there, with backbone and head; test what they come to."""

        def score(position: int) -> Score:
            problem = run.problems[position].at(self.seed, len(run.history) + 1)
            state = run.algorithm.adapt(run.shared, run.states[problem.client.id], problem)
            weights = run.algorithm.personal(run.shared, state, problem)
            return problem.test(AT_HOME.descend(problem, weights))

        return percent(pooled(map(score, range(len(self.federation))), self.federation.task))


def percent(share: float | None) -> float | None:
    """Give a share as it is kept; None: there is none."""
    return None if share is None else round(100 * share, 2)


def called(result: Result) -> str:
    """Name a method, and tau where that was varied."""
    return f"{result.method}, tau = {result.tau}" if result.tau else result.method


def table(results: Iterable[Result]) -> str:
    """Print what each came to, of several seeds mean and deviation."""
    lines = ["| | rates | participants | everyone | adapted | adapted to an average | then alone |"]
    lines.append("| --- " * 7 + "|")
    runs: dict[str, list[Result]] = {}
    for result in results:
        runs.setdefault(called(result), []).append(result)
    for name, own in runs.items():
        rates = ", ".join(dict.fromkeys(f"{result.rate:g}" for result in own))
        figures: list[list[float | None]] = [
            [result.participants for result in own],
            [result.points[-1]["everyone"] for result in own],
            [result.points[-1]["adapted"] for result in own],
            [result.averaged for result in own],
            [result.at_home for result in own],
        ]
        lines.append(f"| {name} | {rates} | " + " | ".join(map(mean, figures)) + " |")
    return "\n".join(lines)


def mean(figures: list[float | None]) -> str:
    """Print the mean of what there is, and the deviation."""
    known = [figure for figure in figures if figure is not None]
    deviation = f" ± {stdev(known):.1f}" if len(known) > 1 else ""
    return f"{fmean(known):.1f}{deviation}" if known else ""


def picture(results: list[Result], path: Path) -> None:
    """Draw everyone, adapted and not, over the rounds, with the first seed."""
    seed = min(result.seed for result in results)
    drawn = [one for one in results if one.method in DRAWN and not one.tau and one.seed == seed]
    panels = [
        Panel(
            title,
            [
                Curve(
                    result.method,
                    [point["round"] for point in result.points],
                    [point[figure] for point in result.points],
                    "-" if result.method.startswith("PFLEGO") else "--",
                )
                for result in sorted(drawn, key=lambda one: DRAWN.index(one.method))
            ],
            "round",
            "test accuracy, %",
        )
        for figure, title in [("adapted", "everyone, adapted"), ("everyone", "everyone, with earlier heads")]
    ]
    draw(panels, path)


def main() -> None:
    """Train what is not known yet; keep, draw and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=5, help="take every so many-th alphabet")
    parser.add_argument("--participation", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument(
        "--taus", default="0", help="steps of PFLEGO or FedRecon; 0: as many as they usually take"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/omniglot.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(given.out, "method", "tau", "rounds", "seed")
    study = Study.load(given.every, given.participation, given.seed)
    for method in given.methods.split(";"):
        for tau in map(int, given.taus.split(",")):
            if (method, tau, given.rounds, given.seed) not in found:
                result = study.result(method, tau, given.rounds)
                found.add(asdict(result))
                print(called(result), result.points[-1], flush=True)
    results = [Result(**row) for row in found]
    picture(results, given.out.with_suffix(".png"))
    print(table(results))


if __name__ == "__main__":
    main()
