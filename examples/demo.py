"""Does federating pay, and what does it cost? Twenty people with a pen pad, in two acts.

Each has drawn ten signs, forty drawings in all, and bound every sign to an action of their own choice. What a sign
looks like is common knowledge; what it stands for is personal. So they share a backbone, and each keeps a head. Two of
the twenty are online at a time.

    python examples/demo.py                                   # both acts
    python examples/demo.py --seeds 5 --json docs/demo.json   # five federations: was it luck?
    python examples/demo.py --search                          # how the rates below were chosen

pads.py deals out the drawings, demo_figures.py makes tables and pictures.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from rich.console import Console

import pflego
from demo_figures import (
    ALONE,
    FINE_TUNED,
    ONE_MODEL,
    OWN_HEADS,
    ROWS,
    Figures,
    Outcome,
    draw,
    first_table,
    gains,
    percent,
    second_table,
)
from pads import PER_SIGN, Pads
from pflego.comparison.rates import candidates, main_rate
from pflego.data.validation import hold_out
from pflego.engines.local import LocalEngine
from pflego.report import write_report
from results_file import write_rows

ONLINE = 2
# rates and numbers of rounds, chosen on held-out training data: python examples/demo.py --search
METHODS: dict[str, pflego.Algorithm] = {
    OWN_HEADS: pflego.PFLEGO(steps=50, server_lr=0.009),
    ONE_MODEL: pflego.FedAvg(steps=10, client_lr=1.0),
    ALONE: pflego.Local(steps=10, client_lr=0.09),
}
ROUNDS = {OWN_HEADS: 300, ONE_MODEL: 60, ALONE: 300}
FINE_TUNE = 200  # steps on a copy of the shared model, at home
STEPS_ALONE = 600  # of a newcomer without a federation; a member takes 300

console = Console(highlight=False)


def train(federation: pflego.Federation, method: pflego.Algorithm, *, seed: int, rounds: int) -> pflego.Run:
    """Train by one method: the first weights and who is online when are the same for all of them."""
    return pflego.train(
        federation,
        pflego.models.build("mlp", (64,), seed=seed),
        method,
        rounds=rounds,
        participation=ONLINE,
        seed=seed,
        evaluate_every=max(1, rounds // 10),
        progress=True,
    )


def fine_tuned(run: pflego.Run, steps: int = FINE_TUNE) -> pflego.Run:
    """Let everybody fine-tune the shared model on their own samples before they use it."""
    method = replace(run.algorithm, fine_tune=steps)  # type: ignore[call-arg]  # FedAvg has it
    return replace(run, algorithm=method, engine=LocalEngine(run.problems, method, run.states))


def first_act(federation: pflego.Federation, *, seed: int, most: int) -> dict[str, pflego.Run]:
    """Let the twenty learn: with heads of their own, with one model, fine-tuned or not, and alone."""
    runs = {
        name: train(federation, method, seed=seed, rounds=min(most, ROUNDS[name]))
        for name, method in METHODS.items()
    }
    return {**runs, FINE_TUNED: fine_tuned(runs[ONE_MODEL])}


def second_act(pads: Pads, runs: Mapping[str, pflego.Run], count: int) -> dict[str, dict[int, list[float]]]:
    """Let people in who were not there, with a handful of drawings; what the others have trained does not move."""
    accuracies: dict[str, dict[int, list[float]]] = {name: {n: [] for n in PER_SIGN} for name in ROWS}
    for number in range(count):
        for drawings, client in pads.newcomer(f"newcomer {number}").items():
            for name, run in runs.items():
                joined = run.join(client, steps=STEPS_ALONE if name == ALONE else None, alone=0)
                accuracies[name][drawings].append(joined.score.value(run.federation.task) or 0.0)
    return accuracies


def say(outcomes: list[Outcome], seconds: float) -> None:
    """Print what came of both acts, and what it means."""

    def right(name: str) -> str:
        return f"{100 * fmean(one.members[name].accuracy for one in outcomes):.1f} %"

    few, many = (outcomes[0].members[name].passes for name in (OWN_HEADS, ALONE))
    console.print(first_table(outcomes))
    console.print(
        f"Together, each with a head of their own, people are right in {right(OWN_HEADS)} of cases. Alone, with "
        f"{many / few:.0f} times the passes, in {right(ALONE)}: own heads gain {percent(gains(outcomes, ALONE))} "
        f"points. One model for all knows nobody's shortcuts ({right(ONE_MODEL)}); fine-tuned at home it comes to "
        f"{right(FINE_TUNED)}: own heads gain {percent(gains(outcomes, FINE_TUNED))}. The price is what is sent: the "
        "backbone down and its gradient up, never a drawing, never a head.\n"
        "It would not pay where everybody has plenty of drawings, say 20 of each sign, and learns as well alone; nor "
        "where signs mean the same to all, and one model does.\n"
    )
    console.print(second_table(outcomes))
    console.print(
        f"Somebody new gets a head for the backbone as it is, in {1000 * seconds:.0f} ms, and nobody else has to do "
        "anything.\n"
    )


def invite(page: Path, chart: Path) -> None:
    """Say where to look, and what to try next."""
    pflego_command = "pflego" if shutil.which("pflego") else f"{sys.executable} -m pflego"
    pads = "--data digits --clients 20 --partition iid --shift labels --participation 2"
    console.print(
        f"Client by client, in a browser: {page.resolve()}\nNewcomers as a picture: {chart.resolve()}\n"
    )
    console.print("Three commands to try next:")
    for command in (
        f"run {pads} --leave-out 7 --rounds 50 --out runs/pads",
        "join runs/pads --client 7",
        "report runs/pads --out runs/pads.html",
    ):
        console.print(f"  {pflego_command} {command}", soft_wrap=True)


def search(most: int) -> None:
    """Try rates, and of one model numbers of rounds, on a quarter of the training data of three other federations."""
    seeds = (1000, 1001, 1002)
    for name, method in METHODS.items():
        rate = main_rate(method) or ""
        numbers = (most // 10, most // 5, most // 3, most) if name == ONE_MODEL else (most,)
        for value, rounds in product(candidates(getattr(method, rate)), numbers):
            accuracies = []
            for seed in seeds:
                federation = hold_out(Pads.of(seed).federation(), share=0.25, by_class=False)
                run = train(federation, replace(method, **{rate: value}), seed=seed, rounds=rounds)
                accuracies.append(Figures.of(fine_tuned(run) if name == ONE_MODEL else run).accuracy)
            console.print(f"{name}: {rate} {value}, {rounds} rounds: {percent(accuracies)} %")


def main() -> None:
    """Play the demo, once or with several seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many federations")
    parser.add_argument("--rounds", type=int, default=300, help="at most")
    parser.add_argument("--newcomers", type=int, default=5, help="in each federation")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for page and picture")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--search", action="store_true", help="try rates, and nothing else")
    given = parser.parse_args()
    if given.search:
        search(given.rounds)
        return
    outcomes = []
    for seed in range(given.seeds):
        pads = Pads.of(seed)
        runs = first_act(pads.federation(), seed=seed, most=given.rounds)
        members = {name: Figures.of(run) for name, run in runs.items()}
        outcomes.append(Outcome(seed, members, second_act(pads, runs, given.newcomers)))
    began = time.perf_counter()
    runs[OWN_HEADS].join(pads.newcomer("another")[5], alone=0)
    say(outcomes, time.perf_counter() - began)
    if given.json:
        write_rows(given.json, [asdict(one) for one in outcomes])
    invite(
        write_report([runs[name] for name in METHODS], given.out / "demo.html", alone=False),
        draw(outcomes, given.out / "newcomers.png"),
    )


if __name__ == "__main__":
    main()
