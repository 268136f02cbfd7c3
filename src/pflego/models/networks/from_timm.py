"""Networks of timm by name, without their heads: timm:resnet18, timm:vit_tiny_patch16_224."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from pflego.errors import MissingExtraError, ModelError, calling, unknown
from pflego.learning.heads import HEAD
from pflego.models.networks.chain import Named, as_chain
from pflego.models.networks.pictures import Pictures, check_pictures
from pflego.models.networks.weights_file import load_weights
from pflego.models.networks.width import width


def timm_network(
    name: str, shape: Sequence[int], pretrained: str | None, image_size: int | None
) -> tuple[nn.Module, int]:
    """Make a network with its published weights, those of a file or a folder, or at random."""
    timm = _timm()
    if not timm.is_model(name):
        known = timm.list_models()
        raise unknown("network of timm", name, get_close_matches(name, known) or known[:3])
    check_pictures(f"timm:{name}", shape)
    size = {"img_size": image_size} if image_size else {}
    publicly = pretrained is None
    with calling(f"timm:{name} cannot be made", ModelError):
        try:
            network = timm.create_model(name, pretrained=publicly, num_classes=0, **size)
        except TypeError:  # a network that takes any size has no such option
            network = timm.create_model(name, pretrained=publicly, num_classes=0)
    if pretrained not in (None, "no"):
        load_weights(network, pretrained)
    network.eval()
    configured: dict[str, Any] = network.pretrained_cfg
    height, side = (image_size, image_size) if image_size else configured.get("input_size", (3, 224, 224))[1:]
    with (
        torch.no_grad(),
        calling(f"timm:{name} cannot take pictures of {height} x {side} pixels", ModelError),
    ):
        probe = torch.rand(2, 3, height, side)
        parts = as_chain(network, _candidates(network), probe)
    parts = [
        ("top" if part == HEAD else part, module) for part, module in parts
    ]  # what is left of timm's own head
    pictures = Pictures(height, side, configured["mean"], configured["std"])
    backbone = nn.Sequential(OrderedDict([("pictures", pictures), *parts])).eval()
    return backbone, width(f"timm:{name}", backbone, shape, tokens=False)


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        raise MissingExtraError("for models of timm: pip install 'pflego[timm]'") from error
    except (ImportError, RuntimeError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"timm is installed and cannot be loaded ({reason}): torchvision, which it needs, must be built for the "
            f"torch that is installed, {torch.__version__}"
        ) from error
    return timm


def _candidates(network: nn.Module) -> Iterator[list[Named]]:
    """Give sequences that may be what a network does: most are their children in order."""
    children = list(network.named_children())
    yield children
    if hasattr(network, "patch_embed") and hasattr(network, "_pos_embed"):
        inner = ("patch_embed", "pos_drop", "patch_drop")
        others = [
            (name, child) for name, child in children if name not in inner and not name.startswith("head")
        ]
        place = next((at for at, (name, _) in enumerate(others) if name == "norm"), len(others) - 1) + 1
        yield [("embed", _Embedded(network)), *others[:place], ("pool", _Pooled(network)), *others[place:]]


class _Embedded(nn.Module):
    """The beginning of a vision transformer: patches, class token, positions."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.patch_embed = network.patch_embed
        for name in ("cls_token", "reg_token", "pos_embed"):
            if isinstance(own := getattr(network, name, None), nn.Parameter):
                self.register_parameter(name, own)
        self.prefix = 1 if getattr(network, "cls_token", None) is not None else 0

    def forward(self, x: Tensor) -> Tensor:
        """Give tokens, (n, tokens, width)."""
        x = self.patch_embed(x)
        tokens = self._parameters
        first = [
            t.expand(len(x), -1, -1) for n in ("cls_token", "reg_token") if (t := tokens.get(n)) is not None
        ]
        positions = tokens["pos_embed"]
        assert positions is not None
        if positions.shape[1] == x.shape[1]:  # of patches alone
            return torch.cat([*first, x + positions], dim=1)
        return torch.cat([*first, x], dim=1) + positions


class _Pooled(nn.Module):
    """What a vision transformer makes of its tokens."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.kind = network.global_pool
        self.prefix = network.num_prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        """Give the class token, or the mean over patches."""
        return x[:, self.prefix :].mean(dim=1) if self.kind == "avg" else x[:, 0]
