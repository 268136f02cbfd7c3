"""A model's fingerprint tells one starting point from another, constants included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import pflego
from pflego import Model
from tests.support.reference import world


class Backbone(nn.Module):
    """Has a trained layer, a frozen one, a frozen number without a dimension, and buffers of two kinds."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.trained, self.frozen = nn.Linear(6, 4).double(), nn.Linear(4, 4).double()
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("shift", torch.linspace(0, 1, 4, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(7), persistent=False)
        self.register_buffer("none_yet", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.scale * torch.tanh(self.frozen(self.trained(x))) + self.shift
        return y


def changed(backbone: nn.Module, name: str) -> nn.Module:
    """Change one number of a parameter or buffer."""
    tensors = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    with torch.no_grad():
        tensors[name].view(-1)[-1] += 1e-9 if tensors[name].is_floating_point() else 1
    return backbone


def test_models_that_are_alike_have_the_same_fingerprint() -> None:
    assert Model(Backbone(), 4).fingerprint() == Model(Backbone(), 4).fingerprint()


@pytest.mark.parametrize(
    "name", ["trained.weight", "trained.bias", "frozen.weight", "scale", "shift", "count"]
)
def test_every_number_that_features_may_depend_on_is_in_it(name: str) -> None:
    first = Model(Backbone(), 4).fingerprint()
    assert Model(changed(Backbone(), name), 4).fingerprint() != first
    model = Model(Backbone(), 4)
    changed(model.backbone, name)
    assert model.fingerprint() != first  # of the present values, not those of when it was made


@pytest.mark.parametrize(
    "change",
    [
        lambda backbone: backbone.frozen.requires_grad_(True),
        lambda backbone: backbone.trained.bias.requires_grad_(False),
        lambda backbone: backbone.register_buffer("more", torch.zeros(1)),
        lambda backbone: backbone.register_buffer("shift", backbone.shift.float()),
        lambda backbone: backbone.register_buffer("shift", backbone.shift.reshape(1, 4)),
    ],
    ids=["thawed", "frozen", "another buffer", "another type", "another shape"],
)
def test_what_is_trained_names_types_and_shapes_are_in_it(change: Callable[[Backbone], object]) -> None:
    backbone = Backbone()
    change(backbone)
    assert Model(backbone, 4).fingerprint() != Model(Backbone(), 4).fingerprint()


def test_statistics_of_batch_norm_are_in_it() -> None:
    def backbone() -> nn.Module:
        return nn.Sequential(nn.Identity(), nn.BatchNorm1d(4)).double().eval()

    assert Model(backbone(), 4).fingerprint() == Model(backbone(), 4).fingerprint()
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert Model(changed(backbone(), name), 4).fingerprint() != Model(backbone(), 4).fingerprint(), name


def test_a_run_does_not_go_on_with_another_frozen_layer(tmp_path: Path) -> None:
    federation, algorithm = world().federation, pflego.PFLEGO(steps=2)
    pflego.train(federation, Model(Backbone(), 4), algorithm, rounds=1, out=tmp_path)
    for name in ("frozen.bias", "shift"):
        other = Model(changed(Backbone(), name), 4)
        with pytest.raises(pflego.UserError, match="the model's starting weights are not the same"):
            pflego.train(federation, other, algorithm, rounds=2, out=tmp_path, resume=True)
        with pytest.raises(pflego.FolderError, match="another model"):
            pflego.open_run(tmp_path, federation=federation, model=other)
    pflego.train(federation, Model(Backbone(), 4), algorithm, rounds=2, out=tmp_path, resume=True)
