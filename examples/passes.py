"""Rounds, passes or bytes: which does a federation have least of? PFLEGO(passes=k) between the paper's step and FedAvg.

    python examples/passes.py --data digits --clients 20 --participation 5 --rounds 20
    PFLEGO_DATA=... python examples/passes.py --data mnist --rounds 40 --out docs/passes.json

Trains k = 1, 2, 5, 10, 20 with a common head, and FedAvg, FedPer and FedRep with several numbers of steps, each at
several rates, for every degree of personalisation. Keeps, as JSON, how far each had come after every tenth of the
rounds: everyone's accuracy, the passes that a participant made (forward and backward) and the bytes that went up; and
everyone's accuracy adapted, after the last round. What the file holds already is not trained again. Draws the frontier
beside the file and prints the tables of docs/method.md; of a rival's rates the one that was best in the end, adapted,
is shown.

Of k > 1 both of the server's rules are tried: "mean" adds the mean of the clients' moves, "Adam" is Adam on them.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import pflego
from pflego.algorithms.base import Algorithm
from pflego.report.plots import Curve, Panel, draw

HEAD_STEPS = 10  # of a pass, besides the joint one
ADAM_RATE = 0.005


@dataclass(frozen=True)
class Result:
    """How far one contender came."""

    degree: int  # classes per client
    method: str
    rate: float | None  # of a rival's steps
    everyone_adapted: float
    points: list[dict[str, float]]

    @property
    def key(self) -> tuple[int, str, float | None]:
        """What is not trained twice."""
        return self.degree, self.method, self.rate


def contenders(
    passes: list[int], local_rates: list[float | Literal["auto"]], rival_steps: list[int], rates: list[float]
) -> dict[tuple[str, float | None], Algorithm]:
    """Name every method that is tried, and its rate."""
    found: dict[tuple[str, float | None], Algorithm] = {}
    for k in passes:
        if k == 1:
            found["k = 1", None] = pflego.PFLEGO(common_head=True)
            continue
        for local in local_rates:
            several = pflego.PFLEGO(common_head=True, steps=HEAD_STEPS + 1, passes=k, local_lr=local)
            words = "" if local == "auto" else f", local rate {local:g}"
            found[f"k = {k}, mean{words}", None] = replace(several, server_optimizer="sgd", server_lr=1.0)
            found[f"k = {k}, Adam{words}", None] = replace(several, server_lr=ADAM_RATE)
    for steps in rival_steps:
        for rate in rates:
            found[f"FedAvg, {steps} steps", rate] = pflego.FedAvg(steps=steps, client_lr=rate)
            found[f"FedPer, {steps} steps", rate] = pflego.FedPer(steps=steps, client_lr=rate)
            if steps > 5:  # the last five train the backbone
                found[f"FedRep, {steps} steps", rate] = pflego.FedRep(steps=steps, client_lr=rate)
    return found


def follow(run: pflego.Run) -> list[dict[str, float]]:
    """Give round, accuracy, passes so far and bytes so far, wherever everyone was evaluated."""
    points: list[dict[str, float]] = []
    passes = sent = 0.0
    for row in run.history:
        passes += (row["forward_passes"] or 0) + (row["backward_passes"] or 0)
        sent += row["bytes_up"] or 0
        if row.get("everyone_accuracy") is not None:
            accuracy = round(100 * (row["everyone_accuracy"] or 0), 2)
            points.append({"round": row["round"] or 0, "everyone": accuracy, "passes": passes, "bytes": sent})
    return points


def adapted(run: pflego.Run) -> float:
    """Compute everyone's accuracy over all test samples after the local steps of a participant, in per cent."""
    rows = run.evaluate(adapt=True)
    samples = sum(row["samples"] for row in rows)
    right = sum(row["samples"] * (row["accuracy"] or 0) for row in rows)
    return round(100 * right / samples, 2)


def shown(results: list[Result]) -> dict[tuple[int, str], Result]:
    """Choose for every method the rate with the best figure in the end."""
    best: dict[tuple[int, str], Result] = {}
    for result in results:
        place = result.degree, result.method
        if place not in best or result.everyone_adapted > best[place].everyone_adapted:
            best[place] = result
    return best


def table(results: list[Result]) -> str:
    """Print everyone / everyone adapted after the last round, and in brackets passes and rate."""
    best = shown(results)
    degrees = sorted({result.degree for result in results})
    lines = ["| | " + " | ".join(f"{degree} classes per client" for degree in degrees) + " |"]
    lines.append("| --- " * (1 + len(degrees)) + "|")
    for method in dict.fromkeys(result.method for result in results):
        words = []
        for degree in degrees:
            if (result := best.get((degree, method))) is None:
                words.append("–")
                continue
            last = result.points[-1]
            rate = "" if result.rate is None else f", rate {result.rate:g}"
            words.append(
                f"{last['everyone']:.2f} / {result.everyone_adapted:.2f} ({last['passes']:.0f}{rate})"
            )
        lines.append(f"| {method} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def picture(results: list[Result], path: Path) -> None:
    """Draw everyone's accuracy against rounds, passes and bytes, one row of panels per degree."""
    best = shown(results)
    panels = []
    for degree in sorted({result.degree for result in results}):
        own = [result for (held, _), result in best.items() if held == degree and _is_drawn(result.method)]
        floor = max(0.0, max(result.points[-1]["everyone"] for result in own) - 15)
        for unit, word, each in (("round", "rounds", 1), ("passes", "passes", 1), ("bytes", "MB up", 1e6)):
            curves = [
                Curve(
                    result.method,
                    [point[unit] / each for point in result.points],
                    [point["everyone"] for point in result.points],
                    "-" if result.method.startswith("k") else "--",
                )
                for result in own
            ]
            scale: Literal["linear", "log x"] = "log x" if unit == "passes" else "linear"
            title = f"{degree} classes per client"
            panels.append(Panel(title, curves, word, "everyone, %", scale, lowest=floor))
    draw(panels, path)


def _is_drawn(method: str) -> bool:
    """Leave out of the picture what would only fill it: the mean as a rule, and local rates that were given."""
    return "mean" not in method and "local rate" not in method


def main() -> None:
    """Train what is not known yet; keep, draw and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument("--degrees", default="2,5,10", help="classes per client")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--passes", default="1,2,5,10,20")
    parser.add_argument("--local-rates", default="auto", help="of the joint steps at home, auto or numbers")
    parser.add_argument("--rival-steps", default="10,50")
    parser.add_argument("--rates", default="0.1,0.3,1", help="of the rivals' steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/passes.json"))
    given = parser.parse_args()
    passes, steps, degrees = (
        [int(word) for word in text.split(",") if word]
        for text in (given.passes, given.rival_steps, given.degrees)
    )
    rates = [float(word) for word in given.rates.split(",")]
    local_rates: list[float | Literal["auto"]] = [
        "auto" if word == "auto" else float(word) for word in given.local_rates.split(",")
    ]
    settings = {name: getattr(given, name) for name in ("data", "clients", "participation", "rounds", "seed")}
    results: list[Result] = []
    if given.out.exists():
        kept = json.loads(given.out.read_text())
        if kept["settings"] != settings:
            parser.error(f"{given.out} holds results of {kept['settings']}: give another --out")
        results = [Result(**row) for row in kept["results"]]
    for degree in degrees:
        federation = pflego.load(
            given.data, clients=given.clients, classes_per_client=degree, seed=given.seed
        )
        model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=given.seed)
        for (name, rate), algorithm in contenders(passes, local_rates, steps, rates).items():
            if (degree, name, rate) in {result.key for result in results}:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run = pflego.train(
                    federation,
                    model,
                    algorithm,
                    rounds=given.rounds,
                    participation=given.participation,
                    seed=given.seed,
                    evaluate_every=max(1, given.rounds // 10),
                    progress=False,
                )
            results.append(Result(degree, name, rate, adapted(run), follow(run)))
            rows = ",\n".join(json.dumps(asdict(result)) for result in results)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(f'{{"settings": {json.dumps(settings)}, "results": [\n{rows}\n]}}\n')
            print(degree, name, rate or "", results[-1].points[-1], results[-1].everyone_adapted, flush=True)
    picture(results, given.out.with_suffix(".png"))
    print(table(results))


if __name__ == "__main__":
    main()
