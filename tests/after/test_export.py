"""Exported models: the same outputs as the run's own, whatever reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pflego
from pflego.algorithms.registry import methods
from pflego.errors import FolderError
from pflego.runs.run import Run
from tests.support.cases import often
from tests.support.reference import assert_same_weights, world
from tests.support.rivals import of_kind

pytestmark = pytest.mark.usefixtures("onnx_operators")


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def federation(
    shape: tuple[int, ...], dtype: npt.DTypeLike, *, clients: int = 3, regression: bool = False
) -> pflego.Federation:
    rng = np.random.default_rng(0)
    members = []
    for number in range(clients):
        y = np.arange(12) % 3 + number
        x = (
            rng.integers(0, 256, size=(12, *shape))
            if np.dtype(dtype).kind in "ui"
            else rng.normal(size=(12, *shape))
        )
        labels = y.astype(np.float32) if regression else y
        members.append(pflego.Client(number, x.astype(dtype), labels, x[:5].astype(dtype), labels[:5]))
    return pflego.Federation(members)


class Tokens(nn.Module):
    """Takes whole numbers, as models of texts do; a frozen layer and a buffer are nobody's weights but part of it."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 5).requires_grad_(False)
        self.trained = nn.Linear(5, 6)
        self.register_buffer("scale", torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.trained(self.table(x))).mean(dim=1) * self.scale


def mlp_head(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, outputs))


CASES: dict[str, Callable[[], tuple[pflego.Federation, pflego.Model]]] = {
    "doubles into a float32 model": lambda: (federation((4,), np.float64), pflego.models.build("mlp", (4,))),
    "bytes into convolutions": lambda: (
        federation((3, 8, 8), np.uint8),
        pflego.Model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()), 4 * 36),
    ),
    "tokens, frozen parts, a head of layers": lambda: (
        federation((9,), np.int64),
        pflego.Model(Tokens(), 6, head=mlp_head),
    ),
    "a regression in float64": lambda: (
        federation((4,), np.float64, regression=True),
        pflego.Model(nn.Linear(4, 3).double(), 3),
    ),
}


@pytest.mark.parametrize("case", often(CASES, "doubles into a float32 model"))
def test_every_form_gives_the_outputs_of_the_personal_model(tmp_path: Path, case: str) -> None:
    data, model = CASES[case]()
    run = pflego.train(data, model, pflego.PFLEGO(steps=3), rounds=1)
    done = run.export(1, tmp_path)
    assert done.refused == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.json", "model.onnx", "model.pt2", "model.safetensors",
    ]  # fmt: skip
    session = onnxruntime.InferenceSession(done.files["onnx"])
    program = torch.export.load(done.files["torch"]).module()
    again = pflego.load_model(tmp_path, model=model)
    personal = run.personal_model(1)
    for samples in (1, 2, 7):
        x = data[0].x_train[:samples]
        with torch.no_grad():
            wanted = personal(x)
            assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), wanted)
            assert_close(program(x), wanted)
            assert torch.equal(again(x), wanted)
    assert_same_weights(dict(again.state_dict()), dict(personal.state_dict()))
    assert_same_weights(load_file(done.files["safetensors"]), dict(personal.state_dict()))


@pytest.mark.parametrize(("name", "shape"), [("cifar-cnn", (32, 32, 3)), ("omniglot-conv4", (28, 28))])
def test_the_papers_networks_for_images_too(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    data = federation(shape, np.uint8, clients=1)
    run = pflego.train(data, pflego.models.build(name, shape), pflego.PFLEGO(steps=3), rounds=1)
    done = run.export(0, tmp_path, formats=["safetensors", "torch"])
    x = data[0].x_train[:3]
    assert_close(torch.export.load(done.files["torch"]).module()(x), run.personal_model(0)(x))
    assert torch.equal(pflego.load_model(tmp_path)(x), run.personal_model(0)(x))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    data = pflego.load("digits", clients=4, classes_per_client=3)
    return pflego.train(data, pflego.models.build("mlp", (64,)), pflego.PFLEGO(steps=5), rounds=2)


def test_the_description_says_what_the_model_is(tmp_path: Path, digits: Run) -> None:
    digits.export(2, tmp_path, formats=["safetensors"])
    card = json.loads((tmp_path / "model.json").read_text())
    classes = digits.federation.client(2).classes.tolist()
    assert card["client"] == 2
    assert card["trained"] == {"data": "digits", "algorithm": "pflego", "rounds": 2, "seed": 0}
    assert card["backbone"] == {
        "model": "mlp", "features": 200, "dtype": "float32", "parameters": ["1.weight", "1.bias"],
    }  # fmt: skip
    assert card["head"] == {"kind": "linear", "outputs": 3, "parameters": ["weight", "bias"]}
    assert card["classes"] == [{"id": c, "name": str(c)} for c in classes]
    assert card["inputs"]["shape"] == ["samples", 64]
    assert card["schema"]["dtype"] == "float32"
    assert card["files"].keys() == {"safetensors"}
    assert card["versions"].keys() == {"pflego", "torch", "python"}


def test_a_loaded_model_predicts_classes_and_probabilities(tmp_path: Path, digits: Run) -> None:
    digits.export(2, tmp_path, formats=["safetensors"])
    x = digits.federation.client(2).x_test
    ours, theirs = pflego.load_model(tmp_path), digits.personal_model(2)
    assert ours.predict(x).tolist() == theirs.predict(x).tolist()
    assert torch.equal(ours.probabilities(x), theirs.probabilities(x))


@pytest.mark.parametrize("method", often(methods(), "pflego"))
def test_a_model_of_any_method_is_loaded_again(tmp_path: Path, method: str) -> None:
    twin = world(dtype=torch.float32)
    algorithm = of_kind(methods()[method], steps=6)
    run = pflego.train(twin.federation, twin.model, algorithm, rounds=1)
    run.export("c1", tmp_path, formats=["safetensors"])
    x = twin.federation[0].x_train
    assert torch.equal(pflego.load_model(tmp_path, model=twin.model)(x), run.personal_model("c1")(x))


def test_adapted_is_what_it_is_after_the_clients_own_steps(tmp_path: Path, digits: Run) -> None:
    digits.export(2, tmp_path, formats=["safetensors"], adapt=True)
    adapted, plain = digits.personal_model(2, adapt=True), digits.personal_model(2)
    assert not torch.equal(adapted.head.weight, plain.head.weight)  # type: ignore[arg-type]
    assert_same_weights(dict(pflego.load_model(tmp_path).state_dict()), dict(adapted.state_dict()))


def test_a_backbone_from_outside_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exported_nets.py").write_text(
        "from torch import nn\ndef small():\n    return nn.Sequential(nn.Linear(64, 7), nn.Tanh())\n"
    )
    monkeypatch.chdir(tmp_path)
    model = pflego.models.build("exported_nets:small", (64,), seed=3)
    data = pflego.load("digits", clients=5)
    run = pflego.train(data, model, pflego.PFLEGO(steps=3), rounds=1)
    run.export(0, tmp_path / "m", formats=["safetensors"])
    x = data[0].x_test
    with pytest.raises(pflego.UntrustedError, match="exported_nets:small"):
        pflego.load_model("m")
    assert torch.equal(pflego.load_model("m", trust=True)(x), run.personal_model(0)(x))


def test_a_backbone_without_a_name_is_used_as_a_program_or_asked_for(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=3), rounds=1)
    x = twin.federation[0].x_train
    run.export("c1", tmp_path / "a", formats=["safetensors", "torch"])
    with pytest.raises(pflego.UntrustedError, match=r"model\.pt2"):
        pflego.load_model(tmp_path / "a")
    model = pflego.load_model(tmp_path / "a", trust=True)
    assert_close(model(x), run.personal_model("c1")(x))
    assert model.predict(x).tolist() == run.personal_model("c1").predict(x).tolist()
    run.export("c1", tmp_path / "b", formats=["safetensors"])
    with pytest.raises(pflego.UserError, match=r"pflego.load_model\(folder, model=...\)"):
        pflego.load_model(tmp_path / "b")
    with pytest.raises(pflego.UserError, match="weights of another model than 'mlp'"):
        pflego.load_model(tmp_path / "b", model=pflego.models.build("mlp", (6,)))
    with pytest.raises(pflego.UserError, match="weights of another model"):
        pflego.load_model(tmp_path / "b", model=world(dtype=torch.float64).model)


class Fickle(nn.Module):
    """Looks at its numbers to decide what to do: nothing that a graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * 2 if float(row.sum()) > 0 else row for row in x])


def test_what_cannot_be_a_program_is_said_and_the_rest_is_written(tmp_path: Path) -> None:
    data = federation((4,), np.float32)
    run = pflego.train(data, pflego.Model(Fickle(), 4), pflego.PFLEGO(steps=3), rounds=1)
    done = run.export(0, tmp_path / "a")
    assert list(done.files) == ["safetensors"]
    assert done.refused.keys() == {"torch", "onnx"}
    assert all(why.startswith("torch.export cannot follow the model: ") for why in done.refused.values())
    card = json.loads((tmp_path / "a/model.json").read_text())
    assert card["not_written"] == done.refused
    with pytest.raises(pflego.UserError, match=r"nothing can be exported: torch\.export cannot follow"):
        run.export(0, tmp_path / "b", formats=["onnx"])
    assert not (tmp_path / "b").exists()


def test_without_the_library_onnx_is_said_to_need_it(
    tmp_path: Path, digits: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pflego.after.export.find_spec", lambda name: None)
    done = digits.export(0, tmp_path)
    assert list(done.files) == ["safetensors", "torch"]
    assert done.refused == {"onnx": "for ONNX: pip install 'pflego[export]'"}


def test_a_new_export_leaves_nothing_of_the_old_one(tmp_path: Path, digits: Run) -> None:
    digits.export(0, tmp_path, formats=["safetensors", "torch"])
    digits.export(1, tmp_path, formats=["safetensors"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    assert torch.equal(
        pflego.load_model(tmp_path).get_buffer("classes"), digits.personal_model(1).get_buffer("classes")
    )


def test_wrong_folders_and_formats_are_refused(tmp_path: Path, digits: Run) -> None:
    with pytest.raises(pflego.UserError, match="unknown format 'onxx': did you mean 'onnx'"):
        digits.export(0, tmp_path, formats=["onxx"])  # type: ignore[list-item]
    with pytest.raises(pflego.UserError, match="no client is called 9"):
        digits.export(9, tmp_path)
    with pytest.raises(pflego.FolderError, match="holds no exported model"):
        pflego.load_model(tmp_path)
    (tmp_path / "settings.toml").write_text("")
    with pytest.raises(pflego.FolderError, match="holds a run"):
        digits.export(0, tmp_path)


def test_damage_is_noticed(tmp_path: Path, digits: Run) -> None:
    digits.export(0, tmp_path, formats=["safetensors"])
    weights, card = tmp_path / "model.safetensors", tmp_path / "model.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(pflego.FolderError, match="damaged"):
        pflego.load_model(tmp_path)
    weights.unlink()
    with pytest.raises(pflego.FolderError, match="missing"):
        pflego.load_model(tmp_path)
    for text in ("{", "{}", '{"format": "pflego model 9"}'):
        card.write_text(text)
        with pytest.raises(pflego.FolderError, match=r"model\.json"):
            pflego.load_model(tmp_path)


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    run = pflego.train(
        pflego.load("digits", clients=2, classes_per_client=5),
        pflego.Model(nn.Linear(64, 2), features=2),
        pflego.PFLEGO(steps=1),
        rounds=1,
    )
    run.export(np.int64(1), tmp_path, formats=["torch"])  # type: ignore[arg-type]
    assert json.loads((tmp_path / "model.json").read_text())["client"] == 1
    whole = (tmp_path / "model.pt2").read_bytes()
    for damaged in (whole[:100], whole[: len(whole) // 2], b"", b"PK" + bytes(200)):
        (tmp_path / "model.pt2").write_bytes(damaged)
        with pytest.raises(FolderError):
            pflego.load_model(tmp_path)
