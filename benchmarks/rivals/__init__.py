"""A FedAvg round in other frameworks, each in an environment of its own that is set up when it is first asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

RIVALS = {
    "fedjax": [
        "fedjax==0.0.17",
        "jax==0.4.30",
        "jaxlib==0.4.30",
        "dm-haiku==0.0.12",
        "optax==0.2.3",
        "chex==0.1.86",
        "numpy==1.26.4",
        "scipy==1.13.1",
    ],
    "pfl": ["pfl==0.6.0", "torch"],
}
"""What pip installs for each; the rest it finds, within constraints.txt."""

WAYS = {"fedjax": ["jit", "pmap"], "pfl": ["threads", "processes"]}
"""How each can use several cores."""


class Unavailable(Exception):  # noqa: N818
    """A rival that cannot be set up or run here: no network, a Python it does not support."""


def seconds_a_round(
    name: str,
    *,
    clients: int,
    samples: int,
    classes: int,
    batch: int,
    epochs: int,
    rounds: int,
    folder: Path = ROOT / ".bench",
) -> list[float]:
    """Seconds of each of `rounds` rounds of FedAvg, client work and aggregation, after one that is not timed.

    A rival runs in each of its `WAYS`; the one with the least median counts.

    Parameters
    ----------
    name
        One of `RIVALS`.
    clients, samples, classes
        An MLP 784-200-`classes`, and clients with so many samples each; all take part.
    batch, epochs
        Samples of a gradient step, and how often a client goes through its own.
    rounds
        How many are timed.
    folder
        Where the environments are kept.

    Raises
    ------
    Unavailable
        If it cannot be set up or run, or if its round is not FedAvg's.
    """
    federation = [f"--clients={clients}", f"--samples={samples}", f"--classes={classes}"]
    options = [*federation, f"--batch={batch}", f"--epochs={epochs}", f"--rounds={rounds}"]
    python = _python(name, folder.resolve())
    script = ["-m", f"benchmarks.rivals.{name}_round", *options]
    outputs = [_run(python, *script, f"--way={way}") for way in WAYS[name]]
    return min((json.loads(output.splitlines()[-1]) for output in outputs), key=median)


def _python(name: str, folder: Path) -> Path:
    """The interpreter of a rival's environment, set up if it is not there or not of these versions."""
    home = folder / name
    python, ready = home / "bin" / "python", home / ".ready"
    versions = "\n".join([sys.version, *RIVALS[name], CONSTRAINTS.read_text()])
    if not ready.is_file() or ready.read_text() != versions:
        ready.unlink(missing_ok=True)
        _run(Path(sys.executable), "-m", "venv", "--clear", str(home))
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(python, *pip, "--constraint", str(CONSTRAINTS), *RIVALS[name])
        ready.write_text(versions)
    return python


def _run(python: Path, *arguments: str) -> str:
    """Give what it prints, or say with what it failed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-10:]
        raise Unavailable("\n".join([" ".join([python.name, *arguments]), *last]))
    return done.stdout
