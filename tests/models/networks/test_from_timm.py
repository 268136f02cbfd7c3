"""Networks of timm, with weights at random: nothing is downloaded."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pflego import models
from pflego.errors import MissingExtraError, ModelError, SettingError


@pytest.fixture(scope="module")
def timm() -> Any:
    """Give timm, where it can be loaded: torchvision, which it needs, must be built for this torch."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be loaded here: {str(error).splitlines()[0]}")
    return timm


@pytest.mark.parametrize(
    ("name", "size", "trained"),
    [
        ("resnet10t", 32, "layer4"),
        ("vit_tiny_patch16_224", 32, "blocks.11, norm"),
        ("convnext_atto", 32, "stages.3, top"),
        ("mobilenetv3_small_050", 32, "conv_head"),
    ],
)
def test_features_are_timms_and_the_network_is_cut_where_it_is_trained(
    timm: Any, name: str, size: int, trained: str
) -> None:
    model = models.build(f"timm:{name}", (20, 20), pretrained="no", image_size=size, trained=trained, seed=1)
    x = torch.rand(2, 20, 20)
    model.check(x)
    pictures, *parts = model.backbone.children()
    again = timm.create_model(name, num_classes=0, **({"img_size": size} if "vit" in name else {})).eval()
    own = [p for part in parts for p in part.state_dict().values()]
    again.load_state_dict(dict(zip(again.state_dict(), own, strict=True)))
    with torch.no_grad():
        assert torch.equal(model.phi(model.weights(), x), again(pictures(x)))
    assert model.trunk is not None
    assert model.trunk.rest.names == model.names


def test_a_network_that_is_no_chain_stays_whole(timm: Any) -> None:
    model = models.build("timm:deit_tiny_distilled_patch16_224", (16, 16), pretrained="no", frozen="all")
    assert [name for name, _ in model.backbone.named_children()] == ["pictures", "network"]
    assert model.trunk is not None


def test_weights_come_from_a_file_with_timms_names_and_its_head_is_left_out(
    timm: Any, tmp_path: Path
) -> None:
    whole = timm.create_model("resnet10t", num_classes=7)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    model = models.build("timm:resnet10t", (20, 20, 3), pretrained=str(tmp_path), image_size=32)
    assert torch.equal(
        dict(model.backbone.named_parameters())["layer1.0.conv1.weight"], whole.layer1[0].conv1.weight
    )


def test_unknown_networks_and_wrong_samples_are_refused(timm: Any) -> None:
    with pytest.raises(SettingError):
        models.build("timm:resnet81", (20, 20, 3), pretrained="no")
    for shape in ((20,), (20, 20, 4)):
        with pytest.raises(ModelError):
            models.build("timm:resnet10t", shape, pretrained="no")


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match="timm"):
        models.build("timm:resnet18", (20, 20, 3))


def test_a_timm_that_does_not_load_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "timm":
                raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModelError, match="torchvision") as refused:
        models.build("timm:resnet18", (20, 20, 3))
    assert "\n" not in str(refused.value)
    assert isinstance(sys.modules.get("timm", types.ModuleType("x")), types.ModuleType)
