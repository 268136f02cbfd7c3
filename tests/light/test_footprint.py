"""A light client is NumPy and onnxruntime: nothing of torch, nothing of pflego."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.after.kit import write_kit
from tests.support.sites import SHAPE, arrays

pytestmark = pytest.mark.usefixtures("onnx_operators")

SOURCE = Path(__file__).parents[2] / "light" / "src"

# plays a round, and prints the libraries that were loaded for it
ROUND = """
import json, runpy, sys
sys.argv = ["pflego-light", "check", *sys.argv[1:]]
runpy.run_module("pflego_light", run_name="__main__")
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def light(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python with pflego-light on its path, and with no pflego there."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    np.savez(folder / "own.npz", **arrays(0))  # type: ignore[arg-type]
    model = pflego.models.build("mlp", SHAPE, seed=5)
    return write_kit(folder / "kit", model, pflego.PFLEGO(steps=5), torch.zeros(4, *SHAPE), seed=5).folder


def test_a_round_loads_neither_torch_nor_pflego(kit: Path) -> None:
    done = light(ROUND, kit, "--data", kit.parent / "own.npz")
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert {"numpy", "onnxruntime", "pflego_light"} <= set(loaded)
    assert not {"torch", "pflego", "flwr", "safetensors", "scipy", "sklearn", "numba"} & set(loaded)
    assert "bytes of weights leave in a round: 1.weight, 1.bias" in done.stdout


def test_its_source_asks_for_nothing_else() -> None:
    allowed = {"numpy", "onnxruntime", "pflego_light", "flwr", "httpx", "click", *sys.stdlib_module_names}
    for file in (SOURCE / "pflego_light").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_a_worker_on_flower_loads_neither(kit: Path) -> None:
    program = "import sys, pflego_light.flower.worker; print({'torch', 'pflego'} & set(sys.modules))"
    done = light(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


def test_what_is_wrong_is_one_line_and_status_2(kit: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.zeros((3, 4), np.float32), y_train=np.zeros(3, int))
    done = light(ROUND, kit, "--data", tmp_path / "own.npz")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    damaged = tmp_path / "kit"
    damaged.mkdir()
    for file in kit.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "backward.onnx").write_bytes(b"something else")
    done = light(ROUND, damaged, "--data", kit.parent / "own.npz")
    assert done.returncode == 2
    assert "backward" in done.stderr
