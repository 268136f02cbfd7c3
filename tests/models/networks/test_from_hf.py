"""Networks of transformers, at random and from folders: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pflego import models
from pflego.errors import MissingExtraError, ModelError
from pflego.learning.model import Model
from tests.support.extras import later

transformers = later("transformers", reason="the extra hf is not installed")
SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hf")
    torch.manual_seed(5)
    configs = {
        "vit": transformers.ViTConfig(**SMALL, image_size=16, patch_size=8),
        "bert": transformers.BertConfig(**SMALL, vocab_size=50),
        "resnet": transformers.ResNetConfig(
            embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"
        ),
    }
    for name, config in configs.items():
        transformers.AutoModel.from_config(config).save_pretrained(made / name)
    return made


def features(model: Model, x: Tensor) -> Tensor:
    model.check(x)
    with torch.no_grad():
        return model.phi(model.weights(), model.prepare(x))


def test_a_vision_transformer_gives_its_class_token_and_is_cut_between_its_layers(folder: Path) -> None:
    model = models.build(f"hf:{folder / 'vit'}", (16, 16, 3), trained="layers.2, layernorm")
    x = torch.rand(3, 16, 16, 3)
    theirs = transformers.AutoModel.from_pretrained(folder / "vit").eval()
    mean, deviation = (
        torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    with torch.no_grad():
        wanted = theirs(pixel_values=(x.permute(0, 3, 1, 2) - mean) / deviation).last_hidden_state[:, 0]
    assert torch.allclose(features(model, x), wanted, rtol=0, atol=1e-5)
    assert model.features == 16
    assert model.trunk is not None
    assert all(name.startswith(("layers.2.", "layernorm.")) for name in model.names)


def test_weights_that_are_stored_by_columns_are_weights(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoModel.from_pretrained(folder / "bert").state_dict()
    turned = {name: w.t().contiguous().t() if w.dim() == 2 else w for name, w in theirs.items()}
    torch.save(turned, tmp_path / "turned.pth")
    ours, again = (
        models.build(f"hf:{folder / 'bert'}", (7,), pretrained=given) for given in (None, str(tmp_path))
    )
    assert ours.fingerprint() == again.fingerprint()


def test_a_residual_network_gives_the_mean_over_positions_and_takes_any_size(folder: Path) -> None:
    model = models.build(f"hf:{folder / 'resnet'}", (20, 20), image_size=32, frozen="embedder")
    assert features(model, torch.rand(3, 20, 20)).shape == (3, 8)
    assert model.trunk is not None


def test_text_is_the_mean_over_its_tokens_without_the_filling(folder: Path) -> None:
    model = models.build(f"hf:{folder / 'bert'}", (6,))
    x = torch.tensor([[5, 6, 7, 0, 0, 0], [5, 6, 7, 8, 9, 4], [0, 0, 0, 0, 0, 0]])
    found = features(model, x)
    theirs = transformers.AutoModel.from_pretrained(folder / "bert").eval()
    with torch.no_grad():
        wanted = theirs(input_ids=x[:1, :3]).last_hidden_state.mean(dim=1)
    assert torch.allclose(found[:1], wanted, rtol=0, atol=1e-5)
    assert found.isfinite().all()
    assert not [name for name in model.names if "pooler" in name]


def test_at_random_weights_are_a_function_of_the_seed_and_a_folder_without_weights_says_so(
    folder: Path, tmp_path: Path
) -> None:
    transformers.ViTConfig(**SMALL, image_size=16, patch_size=8).save_pretrained(tmp_path / "bare")
    name = f"hf:{tmp_path / 'bare'}"
    one, same, other = (models.build(name, (16, 16), pretrained="no", seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    with pytest.raises(ModelError):
        models.build(name, (16, 16))
    begun = models.build(name, (16, 16), pretrained=str(folder / "vit"))
    assert begun.fingerprint() == models.build(f"hf:{folder / 'vit'}", (16, 16)).fingerprint()


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("vit", (16,), None),
        ("vit", (16, 16, 5), None),
        ("vit", (16, 16), 24),  # its positions are for 16 x 16
        ("bert", (6, 6), None),
        ("bert", (6,), 32),
        ("nowhere", (6,), None),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    name: str, shape: tuple[int, ...], size: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError) as refused:
        models.build(f"hf:{folder / name}", shape, image_size=size, pretrained="no")
    assert "\n" not in str(refused.value)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="hf"):
        models.build("hf:vit", (16, 16), pretrained="no")
