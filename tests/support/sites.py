"""A small federation, at sites and in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import UserConfig

import pflego
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.server import serve
from tests.support.grid import MemoryGrid, Node

NAMES = ["clinic", "harbour", "mill", "school", "tower"]
GUESTS = ["Shrinking", "ShrinkingTwice", "ShrinkingAsTold", "Namesake"]
SHAPE = (8,)
CONFIG: UserConfig = {
    "algorithm": "pflego", "steps": 5, "rounds": 4, "seed": 5, "evaluate_every": 2, "device": "cpu",
    "wait": 60, "reply-timeout": 60, "min-clients": len(NAMES),
}  # fmt: skip
# seconds for those who come, on a busy machine too, where the server waits for one who does not
PATIENCE = 2.0


def settle(folder: Path, names: Sequence[str]) -> dict[str, dict[str, str | Path]]:
    """Give every site a folder with its own data; map name to node config."""
    configs: dict[str, dict[str, str | Path]] = {}
    for position, name in enumerate(names):
        home = folder / name
        home.mkdir()
        np.savez(home / "own.npz", **arrays(position))  # type: ignore[arg-type]
        configs[name] = {
            "client-id": name,
            "data": home / "own.npz",
            "state": home / "state",
            "device": "cpu",
        }
    return configs


def arrays(position: int, *, classes: bool = True) -> dict[str, npt.NDArray[np.generic]]:
    """The data of one client: 20 to 36 samples of 8 numbers, of two or three of five classes."""
    generator = np.random.default_rng(position)
    own = [position % 5, (position + 1) % 5, 0][: 2 + position % 2]
    y = np.array(own)[np.arange(20 + 4 * (position % 5)) % len(own)]
    x = (generator.normal(size=(len(y), *SHAPE)) + np.eye(8)[y] * 3).astype(np.float32)
    labels = y if classes else x[:, :2] * 0.5 + 1
    return {"x_train": x[6:], "y_train": labels[6:], "x_test": x[:6], "y_test": labels[:6]}


def federation(names: Sequence[str] = NAMES, *, classes: bool = True) -> pflego.Federation:
    """All clients in one process."""
    return pflego.Federation(
        [pflego.Client(name, **arrays(i, classes=classes)) for i, name in enumerate(names)]
    )


def sites(folder: Path, names: Sequence[str] = NAMES, *, classes: bool = True) -> dict[int, Node]:
    """A node for each client, numbered against the order of their ids; their data in files of their own."""
    nodes = {}
    for position, name in enumerate(names):
        site = folder / name
        site.mkdir(parents=True)
        np.savez(site / "own.npz", **arrays(position, classes=classes))  # type: ignore[arg-type]
        config: UserConfig = {
            "client-id": name,
            "data": str(site / "own.npz"),
            "state": str(site / "state"),
            "device": "cpu",
            "allow": ", ".join(f"tests.support.guest:{guest}" for guest in GUESTS),
        }
        nodes[1000 - position] = Node(config, key=name.encode())
    return nodes


def train(nodes: dict[int, Node], out: Path, **changed: bool | float | int | str | None) -> pflego.Run:
    """Train them on Flower; None: a setting is left out."""
    given = {**CONFIG, **changed, "out": str(out)}
    grid = MemoryGrid({name: value for name, value in given.items() if value is not None}, nodes)
    return serve(grid, AppConfig.read(grid.config), poll=0.001)
