"""Does federating pay, and what does it cost? Twenty people, each with two digits of handwriting.

Every client trains a model of its own data, once in a federation by PFLEGO and twice alone: with as many passes
over its data, and with fifty times as many.
"""

from rich.console import Console
from rich.table import Table

import pflego
from pflego.learning.evaluation import worst_tenth
from pflego.runs.run import Run

ROUNDS = 100
METHODS = {
    "together (PFLEGO)": pflego.PFLEGO(steps=50),
    "alone, as many passes": pflego.Local(steps=1, client_lr=0.3),
    "alone, 50 times as many": pflego.Local(steps=50, client_lr=0.3),
}


def main() -> None:
    """Train the three and print what came of them."""
    federation = pflego.load("digits", clients=20, classes_per_client=2, seed=0)
    model = pflego.models.build("mlp", (64,), seed=0)
    table = Table(title=f"{federation}, {ROUNDS} rounds with 5 clients each", title_justify="left")
    for heading in ("how clients learn", "accuracy", "worst tenth of clients"):
        table.add_column(heading, justify="left" if heading.startswith("how") else "right")
    for heading in ("passes over its data, a client", "seconds of work", "MB sent"):
        table.add_column(heading, justify="right")
    runs = {}
    for name, method in METHODS.items():
        runs[name] = pflego.train(
            federation, model, method, rounds=ROUNDS, participation=5, evaluate_every=10, progress=True
        )
        table.add_row(name, *figures(runs[name]))
    console = Console()
    console.print(table)
    together, same, more = (accuracy(run) for run in runs.values())
    console.print(
        f"For one pass over its data a round, a client of the federation is right in {together:.1%} of cases; "
        f"alone, with as many passes, in {same:.1%}. Alone it takes 50 times as many to reach {more:.1%}. "
        f"The price of federating is what is sent: the backbone down and its gradient up, never data, never a head.",
        highlight=False,
    )
    page = next(iter(runs.values())).report("runs/demo.html")
    console.print(f"Client by client, in a browser: {page}", highlight=False)


def accuracy(run: Run) -> float:
    """Accuracy over all clients, after the last round."""
    return run.history[-1]["everyone_accuracy"] or 0.0


def figures(run: Run) -> list[str]:
    """A run's line in the table."""
    worst = worst_tenth([row["accuracy"] for row in run.evaluate()], higher_is_better=True) or 0.0
    visits = sum(row["participants"] or 0 for row in run.history) / len(run.federation)
    passes = visits * (run.history[-1]["forward_passes"] or 0)
    seconds = sum(row["seconds"] or 0 for row in run.history)
    sent = sum((row["bytes_up"] or 0) + (row["bytes_down"] or 0) for row in run.history)
    return [f"{accuracy(run):.1%}", f"{worst:.1%}", f"{passes:.0f}", f"{seconds:.1f}", f"{sent / 1e6:.1f}"]


if __name__ == "__main__":
    main()
