"""Equal work: how far does each method come with the same seconds of one core, and with how many passes and bytes?

    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/equal_work.py --out docs/equal-work.json
    PFLEGO_DATA=... OMP_NUM_THREADS=1 python examples/equal_work.py --data cifar10 --model cnn --participation 10 \
        --seconds 100 --points 4 --rates fixed --degrees 2,10 --out docs/equal-work-cifar10.json
    python examples/equal_work.py --data digits --clients 20 --participation 5 --seconds 2 --out runs/equal-work.json

Every method gets `--seconds` of processor time to train, and twice as many before that to choose its main rate and how
long its clients work in a round, on a fifth of the training data held out. The search has three stages of equal time:
all candidates share the first, the best third the second, and the best of these the last, each from the start. PFLEGO's
search is over rates alone, or with mini-batches over one or five passes. Rivals take mini-batches of 32, one or five
epochs per round; FedAvg is also tried as the paper has it, with 50 steps on all samples. Methods are judged by everyone
on test data, adapted as a participant does before it is judged, after about every eighth of the training (`--points`);
evaluations cost nobody anything. Among the rates is "auto", unless `--rates fixed`: measuring a rate of their own takes
clients with a deep network as long as a dozen epochs.

Keeps the curves as JSON, draws them beside it and prints the tables of docs/results.md. What the file holds already is
not trained again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pflego
from pflego.algorithms.base import Algorithm
from pflego.comparison.rates import candidates, main_rate
from pflego.data.validation import hold_out
from pflego.engines.local import LocalEngine
from pflego.learning.evaluation import pooled
from pflego.report.plots import Curve, Panel, draw
from pflego.runs.history import HistoryRow
from pflego.training.callbacks import Callback
from results_file import ResultsFile

SEARCH = 2  # times the seconds of the training
STAGES, KEPT, FINALISTS = 3, 1 / 3, 2  # of a search: a third goes on to the next stage, and at least two
JUDGES = 4  # in a search every fourth client is asked how good a trial was
ENOUGH = 1_000_000  # rounds that no trial has the time for
WARM_UP, TIMED, TIMES = 1, 3, 3  # rounds and repetitions, to find out what a round takes
LEAST = 2  # rounds of a training
SHARES = (0.90, 0.95, 0.99)  # of the best figure of all


def in_batches(kind: Any, *epochs: int, **settings: Any) -> list[Algorithm]:
    """Give a rival's ways to work in a round: by mini-batches of 32."""
    return [kind(epochs=number, batch_size=32, **settings) for number in epochs]


CONTENDERS: dict[str, list[Algorithm]] = {
    "PFLEGO": [pflego.PFLEGO()],
    "PFLEGO, clients at 1/L": [pflego.PFLEGO(client_lr="auto")],
    "PFLEGO, common head": [pflego.PFLEGO(common_head=True)],
    "PFLEGO, common head, mini-batches": [
        pflego.PFLEGO(common_head=True, batch_size=32, passes=number) for number in (1, 5)
    ],
    "PFLEGO, common head, solved": [pflego.PFLEGO(common_head=True, head_optimizer="solve")],
    "FedAvg": in_batches(pflego.FedAvg, 1, 5),
    "FedAvg, 50 full steps": [pflego.FedAvg(steps=50)],
    "FedAdam": in_batches(pflego.FedOpt, 1, 5, client_lr=0.1),  # "auto" would double its work
    "FedAdam, clients at 0.03": in_batches(pflego.FedOpt, 1, 5, client_lr=0.03),
    "FedBabu": in_batches(pflego.FedBabu, 1, 5),
    "FedPer": in_batches(pflego.FedPer, 1, 5),
    "FedRep": in_batches(pflego.FedRep, 2, 6),  # the last epoch is the backbone's
    "Ditto": in_batches(pflego.Ditto, 1, 5),
    "Local": in_batches(pflego.Local, 1, 5),
}


@dataclass(frozen=True)
class Result:
    """How far one method came in one federation."""

    data: str
    model: str
    participation: int  # clients per round
    degree: int  # classes per client
    method: str
    seconds: float  # of processor time to train
    seed: int
    chosen: dict[str, Any]
    tried: list[tuple[dict[str, Any], int, float | None]]  # settings, rounds, figure; None: it diverged
    seconds_a_round: float
    points: list[dict[str, float]]

    @property
    def best(self) -> float:
        """The highest figure on its way."""
        return max(point["adapted"] for point in self.points)

    def work(self, unit: str, figure: float) -> float | None:
        """Give the work after which a figure was reached; None if it never was."""
        return next((point[unit] for point in self.points if point["adapted"] >= figure), None)


@dataclass(frozen=True)
class Study:
    """One federation, in which every method does the same work."""

    federation: pflego.Federation
    model: pflego.Model
    participation: int
    seconds: float
    seed: int
    points: int = 8  # of a curve, or a few less
    measured: bool = True  # whether clients may measure a rate of their own

    def train(
        self,
        algorithm: Algorithm,
        rounds: int,
        *,
        evaluate_every: int | None,
        callbacks: Sequence[Callback] = (),
    ) -> pflego.Run:
        """Train without a word."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which rates go uphill is what is to be found out
            return pflego.train(
                self.federation,
                self.model,
                algorithm,
                rounds=rounds,
                participation=self.participation,
                seed=self.seed,
                evaluate_every=evaluate_every,
                evaluate_adapted=evaluate_every is not None,
                callbacks=callbacks,
                progress=False,
            )

    def seconds_a_round(self, algorithm: Algorithm) -> float:
        """Measure the processor time of a round, without evaluations; of several times the median."""

        def spent(rounds: int) -> float:
            began = time.process_time()
            self.train(algorithm, rounds, evaluate_every=None)
            return time.process_time() - began

        return median((spent(WARM_UP + TIMED) - spent(WARM_UP)) / TIMED for _ in range(TIMES))

    def search(
        self, ways: list[Algorithm]
    ) -> tuple[Algorithm, list[tuple[dict[str, Any], int, float | None]]]:
        """Try every way to work at every rate, the better ones for longer; return the best of the last stage."""
        trials = [
            replace(way, **{name: rate})
            for way in ways
            if (name := main_rate(way))
            for rate in candidates(getattr(way, name))
            if self.measured or rate != "auto"
        ]
        validation = replace(self, federation=hold_out(self.federation, seed=self.seed))
        tried: list[tuple[dict[str, Any], int, float | None]] = []
        for _ in range(STAGES):
            figures = []
            for trial in trials:
                run = validation.for_a_while(trial, SEARCH * self.seconds / STAGES / len(trials))
                figures.append(judged(run))
                tried.append((words(trial), len(run.history), figures[-1]))
            ranked = sorted(zip(figures, trials, strict=True), key=lambda one: one[0] or 0.0, reverse=True)
            trials = [trial for _, trial in ranked[: max(FINALISTS, ceil(KEPT * len(trials)))]]
        return trials[0], tried

    def for_a_while(self, algorithm: Algorithm, seconds: float) -> pflego.Run:
        """Train until the processor time is used up, but for a round at least."""
        limit = TimeLimit(seconds)
        with suppress(TimeIsUp):
            self.train(algorithm, ENOUGH, evaluate_every=None, callbacks=[limit])
        return limit.run

    def follow(self, algorithm: Algorithm, pace: float) -> list[dict[str, float]]:
        """Train for the time there is, and give how far it had come on the way."""
        rounds = max(LEAST, round(self.seconds / pace))
        points, passes, sent = [], 0.0, 0.0
        for row in self.train(algorithm, rounds, evaluate_every=ceil(rounds / self.points)).history:
            passes += (row["forward_passes"] or 0) + (row["backward_passes"] or 0)
            sent += (row["bytes_up"] or 0) + (row["bytes_down"] or 0)
            if row.get("everyone_adapted_accuracy") is not None:
                points.append(
                    {
                        "round": row["round"] or 0,
                        "seconds": round((row["round"] or 0) * pace, 2),
                        "passes": round(passes, 1),
                        "megabytes": round(sent / 1e6, 2),
                        "everyone": round(100 * (row["everyone_accuracy"] or 0), 2),
                        "adapted": round(100 * (row["everyone_adapted_accuracy"] or 0), 2),
                    }
                )
        return points


class TimeIsUp(Exception):  # noqa: N818 - nothing went wrong
    """Ends a training."""


class TimeLimit(Callback):
    """Ends a training after the round in which its processor time is used up."""

    run: pflego.Run

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_start(self, run: pflego.Run) -> None:
        """Look at the clock."""
        self.began = time.process_time()

    def on_round(self, run: pflego.Run, row: HistoryRow) -> None:
        """Look at the clock again."""
        self.run = run
        if time.process_time() - self.began >= self.seconds:
            raise TimeIsUp


def judged(run: pflego.Run) -> float | None:
    """Give the accuracy of some clients after the steps a participant takes before it is judged; None: not finite."""
    engine = LocalEngine(run.problems, run.algorithm, run.states)
    judges = range(0, len(run.federation), JUDGES)
    return pooled(engine.scores(run.shared, adapt=True, only=judges), run.federation.task)


def words(algorithm: Algorithm) -> dict[str, Any]:
    """Name what a search chose between."""
    settings = algorithm.settings()
    chosen = ("epochs", "passes", main_rate(algorithm) or "")
    return {name: settings[name] for name in chosen if settings.get(name) is not None}


def cells(results: Iterable[Result]) -> dict[tuple[str, int], list[Result]]:
    """Gather the methods of each federation."""
    found: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        found.setdefault((result.data, result.degree), []).append(result)
    return found


def table(results: list[Result]) -> str:
    """Print everyone adapted after all the work, and in brackets rounds and what was chosen."""
    federations = cells(results)
    lines = ["| | " + " | ".join(f"{data}, {degree} classes" for data, degree in federations) + " |"]
    lines.append("| --- " * (1 + len(federations)) + "|")
    highest = {place: max(one.points[-1]["adapted"] for one in own) for place, own in federations.items()}
    for method in CONTENDERS:
        row = []
        for place, own in federations.items():
            result = next((one for one in own if one.method == method), None)
            if result is None:
                row.append("–")
                continue
            figure = result.points[-1]["adapted"]
            chosen = ", ".join(f"{name} {value}" for name, value in result.chosen.items())
            figures = f"**{figure:.2f}**" if figure == highest[place] else f"{figure:.2f}"
            row.append(f"{figures} ({result.points[-1]['round']:.0f}; {chosen})")
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def work_table(results: list[Result]) -> str:
    """Print what it takes to come to a share of the best figure of all: seconds / passes / megabytes."""
    lines = ["| federation | method | " + " | ".join(f"{share:.0%} of the best" for share in SHARES) + " |"]
    lines.append("| --- " * (2 + len(SHARES)) + "|")
    for (data, degree), own in cells(results).items():
        best = max(result.best for result in own)
        for result in sorted(own, key=lambda one: list(CONTENDERS).index(one.method)):
            row = []
            for share in SHARES:
                work = [result.work(unit, share * best) for unit in ("seconds", "passes", "megabytes")]
                row.append("–" if work[0] is None else " / ".join(f"{amount:,.0f}" for amount in work))
            lines.append(f"| {data}, {degree} classes | {result.method} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def picture(results: list[Result], path: Path) -> None:
    """Draw everyone adapted against seconds, passes and bytes, one row of panels per federation."""
    units: list[tuple[str, str, Literal["linear", "log x"]]] = [
        ("seconds", "seconds of one core", "linear"),
        ("passes", "passes of a client that always takes part", "log x"),
        ("megabytes", "MB up and down", "log x"),
    ]
    panels = []
    for (data, degree), own in cells(results).items():
        lowest = min(point["adapted"] for result in own for point in result.points)
        last = min(result.points[-1]["adapted"] for result in own)  # nobody ends outside of the picture
        floor = max(lowest - 0.2, min(last - 1, max(result.best for result in own) - 12))
        for unit, word, scale in units:
            curves = [
                Curve(
                    result.method,
                    [point[unit] for point in result.points],
                    [point["adapted"] for point in result.points],
                    "-" if result.method.startswith("PFLEGO") else "--",
                )
                for result in sorted(own, key=lambda one: list(CONTENDERS).index(one.method))
                if unit != "megabytes" or result.method != "Local"
            ]
            title = f"{data}, {degree} classes per client"
            panels.append(Panel(title, curves, word, "everyone adapted, %", scale, lowest=floor))
    draw(panels, path)


def main() -> None:
    """Train what is not known yet; keep, draw and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--degrees", default="2,5,10", help="classes per client")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of processor time to train, per method and federation"
    )
    parser.add_argument("--methods", default=";".join(CONTENDERS), help="separated by semicolons")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--points", type=int, default=8, help="of a curve, or a few less")
    parser.add_argument("--rates", choices=("fixed", "any"), default="any", help='fixed: without "auto"')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/equal-work.json"))
    given = parser.parse_args()
    found: ResultsFile[dict[str, Any]] = ResultsFile(
        given.out, "data", "model", "participation", "degree", "method", "seconds", "seed"
    )
    for data in given.data.split(","):
        for degree in map(int, given.degrees.split(",")):
            federation = pflego.load(data, clients=given.clients, classes_per_client=degree, seed=given.seed)
            model = pflego.models.build(given.model, tuple(federation[0].x_train.shape[1:]), seed=given.seed)
            measured = given.rates == "any"
            study = Study(
                federation, model, given.participation, given.seconds, given.seed, given.points, measured
            )
            for method in given.methods.split(";"):
                run = (data, given.model, given.participation, degree, method, given.seconds, given.seed)
                if run in found:
                    continue
                best, tried = study.search(CONTENDERS[method])
                pace = study.seconds_a_round(best)
                chosen = words(best)
                points = study.follow(best, pace)
                result = Result(*run, chosen, tried, round(pace, 4), points)
                found.add(asdict(result))
                print(data, degree, method, chosen, points[-1], flush=True)
    results = [Result(**row) for row in found]
    picture(results, given.out.with_suffix(".png"))
    print(table(results), work_table(results), sep="\n\n")


if __name__ == "__main__":
    main()
