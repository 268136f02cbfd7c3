"""What test_simulation.py does on a Ray of its own, in a process of its own.

python -m tests.support.simulated FOLDER
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from pathlib import Path

import pflego
from tests.support.ranks import CASES, Case, error, with_a_broken_client


def main(folder: Path) -> None:
    """Train on three workers; then meet a client that cannot be read, on two."""
    ray = import_module("ray")
    ray.init(num_cpus=3, include_dashboard=False)
    run = CASES["renormalise"].train(engine="flower-simulation", out=folder / "a")
    states = {client: run.states[client] for client in run.states}
    ray.init(num_cpus=2, include_dashboard=False)
    broken = Case(pflego.PFLEGO(), federation=with_a_broken_client)
    wrong = error(lambda: broken.train(engine="flower-simulation"))
    notes = run.shared, states, run.history, run.evaluations, wrong
    (folder / "notes.pickle").write_bytes(pickle.dumps(notes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
