"""First weights from a file or a folder: tensors by name, and nothing that could be run."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pflego import models
from pflego.errors import ModelError
from pflego.models.networks.weights_file import load_weights, read_weights


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def written(path: Path, kind: str) -> Path:
    state = network(1).state_dict()
    if kind == "safetensors":
        save_file(state, path / "model.safetensors")
    elif kind == "folder":
        save_file({k: v for k, v in state.items() if k.startswith("0")}, path / "model-1.safetensors")
        save_file({k: v for k, v in state.items() if k.startswith("1")}, path / "model-2.safetensors")
        return path
    elif kind == "nested":
        torch.save({"state_dict": state, "epoch": 3}, path / "model.pth")
    else:
        torch.save(state, path / "model.pth")
    return next(iter(path.iterdir()))


@pytest.mark.parametrize("kind", ["safetensors", "folder", "torch", "nested"])
def test_all_kinds_give_the_same_weights(kind: str, tmp_path: Path) -> None:
    made = network(2)
    load_weights(made, written(tmp_path, kind))
    for name, tensor in network(1).state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)


class Trap:
    sprung = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


def test_a_file_with_code_in_it_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    torch.save({"0.weight": Trap()}, tmp_path / "trap.pth")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Trap()))
    for name in ("trap.pth", "plain.bin"):
        with pytest.raises(ModelError) as refused:
            load_weights(network(1), tmp_path / name)
        assert "\n" not in str(refused.value)
    assert not Trap.sprung


@pytest.mark.parametrize("content", [b"", b"nonsense" * 10])
@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
def test_a_damaged_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError):
        load_weights(network(1), tmp_path / name)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_damaged_bytes_is_read_or_refused(zipped: bool, tmp_path: Path) -> None:
    torch.save(network(1).state_dict(), file := tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    whole, generator = file.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in generator.integers(0, min(len(whole), 700), 150):
        file.write_bytes(whole[:place] + generator.bytes(1) + whole[place + 1 :])
        try:
            read_weights(file)
        except ModelError:
            refused += 1
    assert refused


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(3, 4)}, tmp_path / "few.safetensors")
    save_file({**network(1).state_dict(), "0.weight": torch.zeros(3, 5)}, tmp_path / "wide.safetensors")
    for name in ("few", "wide"):
        with pytest.raises(ModelError):
            load_weights(network(1), tmp_path / f"{name}.safetensors")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(ModelError):
            load_weights(network(1), path)


def test_backbones_of_ours_begin_with_a_file_too(tmp_path: Path) -> None:
    first = models.build("mlp", (5,), seed=3)
    save_file(first.backbone.state_dict(), tmp_path / "mlp.safetensors")
    again = models.build("mlp", (5,), seed=4, pretrained=str(tmp_path))
    assert again.fingerprint() == first.fingerprint()
    assert models.build("mlp", (5,), seed=3, pretrained="no").fingerprint() == first.fingerprint()
