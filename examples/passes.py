"""Rounds, passes or bytes: which does a federation have least of? PFLEGO(passes=k) between the paper's step and FedAvg.

    python examples/passes.py --data digits --clients 20 --participation 5 --rounds 20
    python examples/passes.py --data mnist --data-dir ... --degrees 2,5,10 --rounds 40 --out passes.json

Trains k = 1, 2, 5, 10, 20 with a common head, and FedAvg, FedPer and FedRep with as many passes (--rival-steps), for
every degree of personalisation. Prints, and writes as JSON, how far each had come after every tenth of the rounds: the
accuracy of everyone, the passes that a participant made (forward and backward) and the bytes that went up.

Of k > 1 both of the server's rules are tried: "mean" adds the mean of the clients' moves, "adam" is Adam on them.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import pflego
from pflego.algorithms.base import Algorithm

HEAD_STEPS = 10  # of a pass, besides the joint one


def contenders(passes: list[int], rival_steps: list[int], rate: float) -> dict[str, Algorithm]:
    """Name every method that is tried."""
    found: dict[str, Algorithm] = {}
    for k in passes:
        if k == 1:
            found["k = 1"] = pflego.PFLEGO(common_head=True)
            continue
        found[f"k = {k}, mean"] = pflego.PFLEGO(
            common_head=True, steps=HEAD_STEPS + 1, passes=k, server_optimizer="sgd", server_lr=1.0
        )
        found[f"k = {k}, adam"] = pflego.PFLEGO(
            common_head=True, steps=HEAD_STEPS + 1, passes=k, server_lr=0.005
        )
    for steps in rival_steps:
        found[f"FedAvg, {steps} steps"] = pflego.FedAvg(
            steps=steps, client_lr=rate, labels="global", head_init="centred"
        )
        found[f"FedPer, {steps} steps"] = pflego.FedPer(steps=steps, client_lr=rate, head_init="centred")
        if steps > 5:  # the last five train the backbone
            found[f"FedRep, {steps} steps"] = pflego.FedRep(steps=steps, client_lr=rate, head_init="centred")
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


def main() -> None:
    """Train all of them and say how far they came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--participation", type=int, default=20)
    parser.add_argument("--degrees", default="2,5,10", help="classes per client")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--passes", default="1,2,5,10,20")
    parser.add_argument("--rival-steps", default="10,20")
    parser.add_argument("--rate", type=float, default=0.1, help="of the rivals' steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    passes, steps, degrees = (
        [int(word) for word in text.split(",")] for text in (given.passes, given.rival_steps, given.degrees)
    )
    where = {} if given.data_dir is None else {"data_dir": given.data_dir}
    curves: dict[str, dict[str, list[dict[str, float]]]] = {}
    for degree in degrees:
        federation = pflego.load(
            given.data, clients=given.clients, classes_per_client=degree, seed=given.seed, **where
        )
        model = pflego.models.build("mlp", tuple(federation[0].x_train.shape[1:]), seed=given.seed)
        for name, algorithm in contenders(passes, steps, given.rate).items():
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
            points = curves.setdefault(f"{degree} classes per client", {})[name] = follow(run)
            last = points[-1]
            print(
                f"{degree:3} classes  {name:18} everyone {last['everyone']:6.2f}  "
                f"passes {last['passes']:6.0f}  megabytes up {last['bytes'] / 1e6:8.1f}",
                flush=True,
            )
    if given.out is not None:
        given.out.write_text(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main()
