"""What a client without torch costs, beside one with it: `python -m benchmarks.light`.

Prints, and writes as JSON: seconds until a kit is read and its graphs are loaded, memory then and after a round, the
size of what is installed, and the seconds of a round on the paper's networks, torch's and the kit's on one thread each,
in turn. A round's seconds are those of the processor; for the rest nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

import pflego
import pflego_light as light
from pflego.after.kit import write_kit
from pflego.engines.base import Turn
from pflego.engines.local import LocalEngine
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.weights import Weights

_NETWORKS = {  # a client's samples, their shape, its classes, as in the paper
    "mlp": (600, (28, 28), 2),
    "omniglot-conv4": (20, (28, 28), 4),
    "cifar-cnn": (500, (32, 32, 3), 2),
}
_SOURCE = Path(light.__file__).parents[1]
_MEMORY = "print(int([x for x in open('/proc/self/status') if x.startswith('VmRSS')][0].split()[1]) / 1024)"
_LIGHT = f"""
import sys, time
began = time.perf_counter()
import numpy as np, pflego_light as light
kit = light.Kit.read(sys.argv[1])
kit.graphs._session("forward"), kit.graphs._session("backward")
print(time.perf_counter() - began)
{_MEMORY}
data = light.Data.read("one", sys.argv[2])
client = light.Client(kit, data, light.Federation("one", 1, len(data.x_train), data.task, data.classes, 2, 2))
shared = {{name: np.zeros(shape, np.float32) for name, shape in client.shared.items()}}
client.work(light.Round(1), shared, client.first())
{_MEMORY}
"""
_FULL = f"""
import sys, time
began = time.perf_counter()
import numpy as np, torch, pflego
from pflego.deploy.flower.desk import Desk
model = pflego.models.build("mlp", (28, 28))
print(time.perf_counter() - began)
{_MEMORY}
arrays = dict(np.load(sys.argv[2]))
pflego.train(pflego.Federation([pflego.Client(0, **arrays)]), model, pflego.PFLEGO(), rounds=1, progress=False)
{_MEMORY}
"""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.light", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=9, help="rounds of each kind, of which the median counts"
    )
    parser.add_argument(
        "--only", nargs="+", choices=_NETWORKS, default=list(_NETWORKS), help="some of the networks"
    )
    parser.add_argument("--out", type=Path, default=Path("light.json"), help="where to write the JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        rounds = {name: _round(name, Path(folder) / name, arguments.repeats) for name in arguments.only}
        first = Path(folder) / arguments.only[0]
        starts = {
            "light": _start(_LIGHT, first, arguments.repeats),
            "torch": _start(_FULL, first, arguments.repeats),
        }
    sizes = {
        "light": _installed("numpy", "onnxruntime"),
        "torch": _installed("torch", "numpy", "safetensors"),
    }
    record = {"start": starts, "installed_megabytes": sizes, "rounds": rounds}
    print(json.dumps(record, indent=1))
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def _round(name: str, folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of a round by torch and by a kit, and the kit's size."""
    samples, shape, classes = _NETWORKS[name]
    draw = np.random.default_rng(0)
    x = draw.integers(256, size=(samples, *shape), dtype=np.uint8)
    y = np.arange(samples) % classes
    model, algorithm = pflego.models.build(name, shape), pflego.PFLEGO()
    folder.mkdir()
    np.savez(folder / "own.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    kit = write_kit(folder / "kit", model, algorithm, torch.from_numpy(x[:16]))
    problems = Problems(pflego.Federation([pflego.Client(0, x, y)]), model)
    shared = algorithm.init_shared(model, classes, 0)
    states: dict[ClientId, Weights] = {0: algorithm.init_state(problems[0], 0)}
    torchs = LocalEngine(problems, algorithm, states)
    own = light.Client(
        light.Kit.read(kit.folder),
        light.Data.read(0, folder / "own.npz"),
        light.Federation("one", 1, samples, "classification", tuple(range(classes)), classes, classes),
    )
    weights = {n: t.numpy() for n, t in shared.items()}
    state = {n: t.numpy() for n, t in states[0].items()}
    ways: dict[str, Callable[[], object]] = {
        "torch": lambda: torchs.run([Turn(0, Round(1), 1.0)], shared),
        "light": lambda: own.work(light.Round(1), weights, state),
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats + 1):
        for way, play in ways.items():
            began = time.process_time()
            play()
            spent[way].append(time.process_time() - began)
    seconds = {way: median(times[1:]) for way, times in spent.items()}  # the first warms up
    size = sum(path.stat().st_size for path in kit.files)
    return {**seconds, "ratio": seconds["light"] / seconds["torch"], "kit_bytes": size, "error": kit.error}


def _start(program: str, folder: Path, repeats: int) -> dict[str, float]:
    """Seconds until a client could work, megabytes in memory then, and after a round."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{_SOURCE}:{Path(pflego.__file__).parents[1]}",
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-c", program, str(folder / "kit"), str(folder / "own.npz")]
    seen = []
    for _ in range(repeats):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        seen.append([float(line) for line in done.stdout.splitlines()[-3:]])
    seconds, megabytes, after = (median(values) for values in zip(*seen, strict=True))
    return {"seconds": seconds, "megabytes": megabytes, "megabytes_after_a_round": after}


def _installed(*names: str) -> float:
    """Megabytes of distributions and of all that they need."""
    found: dict[str, float] = {}
    rest = list(names)
    while rest:
        name = rest.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # for another system
        if one.name not in found:
            files = [Path(str(one.locate_file(file))) for file in one.files or []]
            found[one.name] = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
            rest += [_name(line) for line in one.requires or [] if "extra ==" not in line]
    return round(sum(found.values()), 1)


def _name(requirement: str) -> str:
    for end in " ;<>=!~[(":
        requirement = requirement.partition(end)[0]
    return requirement


if __name__ == "__main__":
    main()
