"""Layers that do one thing in training and another in evaluation: batch norm and dropout, and the rule for each.

    norm         statistics                        weights        in local steps a batch is normalised
    "frozen"     constants                         as any         with them
    "group"      none: GroupNorm takes its place   as any         sample by sample
    "personal"   stay with the client              stay, too      with its own mean and variance
    "averaged"   travel like weights               as any         with its own mean and variance

Dropout is at work in local steps where its layer is in training mode; masks are drawn from (seed, round, client).
Everywhere else a backbone is in evaluation mode: features are then a function of the weights, statistics among them,
and of each sample alone.

PyTorch's own layers draw from a generator that all threads share and count batches in a buffer; in local steps the
layers below stand in for them, under the same names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from pflego.errors import ModelError

Norm: TypeAlias = Literal["frozen", "group", "personal", "averaged"]
NORMS: tuple[Norm, ...] = ("frozen", "group", "personal", "averaged")
STATISTICS = ("running_mean", "running_var")

_CHANNELS = 16  # in a group, about: one of the two settings that GroupNorm's authors found best
_masks: ContextVar[torch.Generator | None] = ContextVar("masks", default=None)


def with_group_norm(backbone: nn.Module, *, channels: int = _CHANNELS) -> nn.Module:
    """Copy a backbone with GroupNorm in place of every batch norm, for samples that are treated on their own.

    Weights and biases are taken over. Groups are of equal size, at least `channels` where the layer has as many.

    >>> with_group_norm(nn.BatchNorm2d(32)).num_groups
    2
    """

    def group_norm(layer: nn.Module) -> nn.Module:
        if not isinstance(layer, _BatchNorm):
            return layer
        total = layer.num_features
        most = max(1, total // channels)
        groups = max(count for count in range(1, most + 1) if total % count == 0)
        made = nn.GroupNorm(groups, total, layer.eps, affine=layer.affine)
        if layer.affine:
            made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    return _replaced(copy.deepcopy(backbone), group_norm)


def batch_norms(backbone: nn.Module) -> dict[str, nn.Module]:
    """Map name to layer, of all that normalise with statistics over a batch."""
    return {name: layer for name, layer in backbone.named_modules() if isinstance(layer, _BatchNorm)}


def dropouts(backbone: nn.Module) -> dict[str, nn.Module]:
    """Map name to layer, of all dropout that is at work in training."""
    return {name: layer for name, layer in backbone.named_modules() if _drops(layer)}


def acts_by_mode(piece: nn.Module) -> bool:
    """Tell whether a piece of a backbone may do something else in training mode than in evaluation mode.

    Batch norm has a rule of its own. Of layers that are neither PyTorch's nor ours, and in training mode, nothing is
    known.
    """
    known = ("torch.nn.", "pflego.models.")
    return any(
        _drops(layer) or (layer.training and not type(layer).__module__.startswith(known))
        for layer in piece.modules()
    )


def unruled(layer: nn.Module, norm: Norm | None) -> str | None:
    """Say what a layer does in training mode that no rule covers, if it does."""
    if not layer.training:
        return None
    if isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0:
        return "draws at random, for which there is no rule"
    normalises = isinstance(layer, _BatchNorm) and norm is None
    if normalises or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
        return "normalises with the statistics of the batch and changes its own"
    return None


def statistics_of(norms: dict[str, nn.Module]) -> tuple[str, ...]:
    """Name the running statistics of batch norms, all of which must keep them as a moving average."""
    for name, layer in norms.items():
        if not isinstance(layer, _BatchNorm) or not layer.track_running_stats or layer.momentum is None:
            raise ModelError(
                f"the backbone's {type(layer).__name__} ({name}) must keep a moving average of its statistics: give "
                f"it track_running_stats=True and a momentum"
            )
    return tuple(f"{name}.{kind}".removeprefix(".") for name in norms for kind in STATISTICS)


def is_statistic(name: str) -> bool:
    """Tell whether a name among weights is that of a running statistic, which no gradient moves.

    >>> is_statistic("body.1.running_var"), is_statistic("body.1.weight")
    (True, False)
    """
    return name.rpartition(".")[2] in STATISTICS


def evaluation_copy(backbone: nn.Module) -> nn.Module:
    """Copy a backbone in evaluation mode; the copy shares its tensors."""
    return sharing(backbone).eval()


def training_copy(backbone: nn.Module, *, batch_statistics: bool) -> nn.Module:
    """Copy a backbone as local steps go through it; the copy shares its tensors."""

    def stand_in(layer: nn.Module) -> nn.Module:
        if isinstance(layer, _BatchNorm):
            return _BatchStatistics(layer) if batch_statistics else layer.eval()
        return _Masked(layer) if _drops(layer) else layer

    return _replaced(sharing(backbone), stand_in)


@contextmanager
def drawing(generator: torch.Generator | None) -> Iterator[None]:
    """Let dropout draw its masks from a generator in this context, of this thread; None: it lets everything pass."""
    token = _masks.set(generator)
    try:
        yield
    finally:
        _masks.reset(token)


class _BatchStatistics(nn.Module):
    """Batch norm in training mode: normalises with the batch's statistics, and moves the running ones in place.

    A single sample has no variance: the running statistics then serve, and stay.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.momentum, self.eps = layer.momentum, layer.eps
        self.register_parameter("weight", layer.weight)
        self.register_parameter("bias", layer.bias)
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        return functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            weight,
            bias,
            training=len(x) > 1,
            momentum=self.momentum or 0.0,
            eps=self.eps,
        )


class _Masked(nn.Module):
    """Dropout whose masks come from the generator of `drawing`; whole channels at once for its kinds with a number."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.p = float(getattr(layer, "p", 0.0))
        self.channels = not isinstance(layer, nn.Dropout)

    def forward(self, x: Tensor) -> Tensor:
        generator = _masks.get()
        if generator is None:
            return x
        shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if self.channels else list(x.shape)
        kept = torch.rand(shape, generator=generator, dtype=torch.float32) >= self.p
        return x * kept.to(x) / (1 - self.p) if self.p < 1 else x * 0


def _drops(layer: nn.Module) -> bool:
    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d
    return isinstance(layer, kinds) and layer.p > 0 and layer.training


def sharing(backbone: nn.Module) -> nn.Module:
    """Copy a module's layers; the copy shares its tensors."""
    tensors = [*backbone.parameters(), *backbone.buffers()]
    return copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})


def _replaced(module: nn.Module, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replace layers, wherever they stand; one that stands in several places stays one."""
    made: dict[int, nn.Module] = {}
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None:
                setattr(parent, name, made.setdefault(id(child), change(child)))
    return change(module)
