"""LoRA: only adapters are trained and sent; a run goes on with the same base alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import pflego
from pflego import models
from pflego.errors import MissingExtraError, ModelError, UserError
from tests.support.extras import later

later("peft", reason="the extra lora is not installed")


def federation() -> pflego.Federation:
    draw = np.random.default_rng(0)
    return pflego.Federation(
        [pflego.Client(i, draw.normal(size=(9, 12)), draw.integers(0, 2, 9)) for i in range(3)]
    )


def test_outputs_are_those_of_the_layer_and_its_adapters() -> None:
    """relu((W + alpha/r B A) x + b), in NumPy."""
    model = models.build("mlp", (12,), lora=3, lora_alpha=5)
    assert model.names == ("1.lora_A.default.weight", "1.lora_B.default.weight")
    generator = torch.Generator().manual_seed(1)
    given = {name: torch.randn(w.shape, generator=generator) for name, w in model.weights().items()}
    x = torch.randn(4, 12, generator=generator)
    weight, bias = (model.constants[f"1.base_layer.{name}"].double().numpy() for name in ("weight", "bias"))
    a, b = (given[name].double().numpy() for name in model.names)
    wanted = np.maximum(x.double().numpy() @ (weight + 5 / 3 * b @ a).T + bias, 0)
    assert np.allclose(model.phi(given, x).numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_at_first_adapters_change_nothing_and_the_base_is_never_shared_or_saved(tmp_path: Path) -> None:
    plain, model = models.build("mlp", (12,), seed=2), models.build("mlp", (12,), seed=2, lora=2)
    x = torch.randn(4, 12)
    assert torch.equal(plain.phi(plain.weights(), x), model.phi(model.weights(), x))
    run = pflego.train(
        federation(), model, pflego.FedAvg(steps=2, client_lr=0.1), rounds=2, out=tmp_path / "run"
    )
    assert set(run.shared) == {*model.names, "head"}
    assert not torch.equal(run.shared[model.names[1]], model.weights()[model.names[1]])
    written = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoint").rglob("*.safetensors"))
    assert written < 4 * 200 * 12  # the base's bytes
    personal = run.personal_model(0)
    assert personal.backbone.get_parameter("1.base_layer.weight").shape == (200, 12)


def test_more_is_trained_beside_the_adapters_where_it_is_named() -> None:
    model = models.build("mlp", (12,), lora=2, trained="1.base_layer.bias")
    assert model.names == ("1.base_layer.bias", "1.lora_A.default.weight", "1.lora_B.default.weight")
    assert model.source["trained"] == "1.base_layer.bias"


def test_a_network_of_convolutions_alone_gets_adapters_beside_them() -> None:
    model = models.build("omniglot-conv4", (28, 28), lora=2, lora_targets="7")
    assert model.names == ("7.lora_A.default.weight", "7.lora_B.default.weight")
    assert model.trunk is not None


@pytest.mark.parametrize(
    "options",
    [
        {"lora": 2, "lora_targets": "query"},
        {"lora": 2, "frozen": "1"},
        {"lora_targets": "1"},
        {"lora_alpha": 3},
        {"lora": 2, "trained": "nothing"},
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        models.build("mlp", (12,), **options)  # type: ignore[arg-type]


def test_a_run_is_opened_exported_and_gone_on_with_and_refuses_another_base(tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    save_file(models.build("mlp", (12,), seed=5).backbone.state_dict(), base)
    options = {"pretrained": str(base), "lora": 2}
    fed, method, out = federation(), pflego.PFLEGO(steps=3), tmp_path / "run"
    model = models.build("mlp", (12,), **options)  # type: ignore[arg-type]
    pflego.train(fed, model, method, rounds=2, out=out)
    again = pflego.open_run(out, federation=fed)
    assert again.model.names == model.names
    again.export(0, tmp_path / "exported", formats=["safetensors"])
    base.unlink()
    loaded = pflego.load_model(tmp_path / "exported")
    x = fed[0].x_train.float()
    assert torch.equal(loaded(x), again.personal_model(0)(x))
    save_file(models.build("mlp", (12,), seed=6).backbone.state_dict(), base)
    with pytest.raises(UserError):
        pflego.open_run(out, federation=fed)
    other = models.build("mlp", (12,), **options)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        pflego.train(fed, other, method, rounds=3, out=out, resume=True)
    assert pflego.train(fed, model, method, rounds=3, out=out, resume=True).history[-1]["round"] == 3


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match="lora"):
        models.build("mlp", (12,), lora=2)
