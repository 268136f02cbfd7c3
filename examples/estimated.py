"""How biased are chances that the server has to estimate? The mean weight of clients under Estimated, round by round.

    python examples/estimated.py --out docs/estimated.json

Draws cohorts of clients that all come with the same probability, and keeps the mean of their weights 1 / pi_i as a
share of the right one, as JSON. Prints the table of docs/method.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pflego

CHANCES = (0.5, 0.1, 0.02)
ROUNDS = (11, 51, 201, 1001)


def shares(chance: float, clients: int, seed: int) -> dict[str, float]:
    """Compute the mean estimate of 1 / pi_i before each round, divided by the true one."""
    estimated = pflego.Estimated(pflego.Binomial(chance))
    ids = range(clients)
    return {
        str(number): round(float((chance / estimated.chances(ids, number=number, seed=seed)).mean()), 4)
        for number in ROUNDS
    }


def main() -> None:
    """Draw, keep, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/estimated.json"))
    given = parser.parse_args()
    found = {f"{chance:g}": shares(chance, given.clients, given.seed) for chance in CHANCES}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"clients": given.clients, "seed": given.seed, "shares": found}
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print("| π_i | before round " + " | ".join(map(str, ROUNDS)) + " |")
    print("| --- " * (1 + len(ROUNDS)) + "|")
    for chance, by_round in found.items():
        print(f"| {chance} | " + " | ".join(f"{share:.2f}" for share in by_round.values()) + " |")


if __name__ == "__main__":
    main()
