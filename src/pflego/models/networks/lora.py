"""LoRA through peft: a network's weights stay as they are, and small matrices beside them are trained.

A layer W x becomes W x + alpha/r B A x, with A (r, inputs) drawn at random and B (outputs, r) zero at first. Theta is
the A and B of all layers: nothing else is trained, sent or kept by round.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from pflego.errors import MissingExtraError, ModelError, calling
from pflego.learning.parts import belongs, part_names


def with_lora(
    backbone: nn.Module,
    rank: int,
    *,
    alpha: int | None = None,
    targets: str | Sequence[str] | None = None,
) -> nn.Module:
    """Freeze a backbone and put adapters beside its layers: all dense ones, or convolutions where there are none."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise MissingExtraError("for LoRA: pip install 'pflego[lora]'") from error
    dense = [name for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear)]
    convolutions = [
        n for n, layer in backbone.named_modules() if isinstance(layer, nn.Conv2d) and layer.groups == 1
    ]
    chosen = dense or convolutions
    for part in part_names(targets, "lora_targets"):
        if not any(belongs(name, part) for name in [*dense, *convolutions]):
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in [*dense, *convolutions]))
            raise ModelError(
                f"lora_targets: the backbone has no dense layer or convolution called {part!r}; their names end in "
                f"{', '.join(known) or 'nothing: there are none'}"
            )
    if targets:
        parts = part_names(targets, "lora_targets")
        chosen = [name for name in [*dense, *convolutions] if any(belongs(name, part) for part in parts)]
    if not chosen or "" in chosen:
        raise ModelError(
            "lora: the backbone has no dense layer or convolution within it that adapters could stand beside"
        )
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank if alpha is None else alpha, target_modules=chosen, bias="none"
    )
    with calling("lora: peft refuses this backbone", ModelError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a backbone that is no model of transformers
        made: nn.Module = inject_adapter_in_model(config, backbone)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return made.eval()
