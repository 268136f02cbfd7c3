"""The graphs of a kit compute what the backbone does, both ways; what they cannot is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pflego
from pflego.after.kit import Graphs, export_graphs, write_kit
from pflego.after.kit.decompositions import convolution_backward, in_the_open, windowed_max_backward
from pflego.after.kit.graphs import BATCHES
from pflego.errors import FolderError, ModelError, SettingError

pytestmark = pytest.mark.usefixtures("onnx_operators")

WORDS = 30
Arrays = dict[str, npt.NDArray[np.float32]]


class Reader(nn.Module):
    """Embeddings, attention, a norm, the mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x)
        seen: Tensor = self.norm(words + self.attention(words, words, words, need_weights=False)[0])
        return seen.mean(1)


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 8, 3, dilation=2, padding=2),
        nn.MaxPool2d(2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(32, 5),
        nn.Tanh(),
    )


def signals() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 8, 5, stride=3, padding=1, groups=2),
        nn.GroupNorm(2, 8),
        nn.Sigmoid(),
        nn.AvgPool1d(3, 2, 1),
        nn.MaxPool1d(2),
        nn.Conv1d(8, 6, 2, dilation=2),
        nn.Flatten(),
    )


def normed() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        norm,
        nn.ReLU(),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.Flatten(),
        nn.LayerNorm(24),
    )
    with torch.no_grad():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return net.eval()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "images": (images, (3, 9, 9), 5),
    "signals": (signals, (4, 40), 6),
    "normed": (normed, (1, 12, 12), 24),
    "words": (Reader, (12,), 16),
}


def samples(name: str, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    shape = (count, *NETS[name][1])
    if name == "words":
        return torch.randint(WORDS, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def largest_error(model: pflego.Model, graphs: Graphs, x: Tensor) -> float:
    """Run the files as anybody would, and compare with torch's own gradients."""
    slope = torch.randn(len(x), model.features, generator=torch.Generator().manual_seed(1))
    theta = {name: w.requires_grad_() for name, w in model.weights().items()}
    features = model.phi(theta, x)
    wanted = [features.detach(), *torch.autograd.grad(features, list(theta.values()), slope)]
    given = {name: w.detach().numpy() for name, w in theta.items()} | {"x": x.numpy(), "slope": slope.numpy()}
    assert graphs.backward is not None
    found = [out for file in (graphs.forward, graphs.backward) for out in run(file, given).values()]
    worst = max(distance(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
    if graphs.forward_keeping is not None and graphs.backward_kept is not None:
        forth = run(graphs.forward_keeping, given)
        back = run(graphs.backward_kept, given | forth)
        assert list(back) == [f"d/{name}" for name in theta]
        for ours, theirs in zip([forth["phi"], *back.values()], wanted, strict=True):
            worst = max(worst, distance(ours, theirs))
    return worst


def run(file: bytes, given: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(file)
    names = [one.name for one in session.get_outputs()]
    return dict(
        zip(names, session.run(None, {i.name: given[i.name] for i in session.get_inputs()}), strict=True)
    )


def distance(ours: npt.NDArray[np.float32], theirs: Tensor) -> float:
    return float(np.abs(ours - theirs.numpy()).max() / np.abs(theirs.numpy()).max())


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize(
    ("dilation", "groups", "channels"), [(1, 1, 4), (2, 2, 4), (3, 4, 4), (1, 1, 16), (3, 1, 17)]
)
def test_gradients_of_convolutions_are_those_of_autograd(
    axes: int, stride: int, padding: int, dilation: int, groups: int, channels: int
) -> None:
    generator = torch.Generator().manual_seed(stride + 10 * padding)
    x = torch.randn(3, channels, *(13, 11)[:axes], dtype=torch.float64, generator=generator).requires_grad_()
    kernel = (8, channels // groups, *(3, 2)[:axes])
    w = torch.randn(kernel, dtype=torch.float64, generator=generator).requires_grad_()
    b = torch.randn(8, dtype=torch.float64, generator=generator).requires_grad_()
    convolve = functional.conv1d if axes == 1 else functional.conv2d
    out = convolve(x, w, b, stride, padding, dilation, groups)
    slope = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    steps, pads, gaps = [stride] * axes, [padding] * axes, [dilation] * axes
    with torch.no_grad():
        ours = convolution_backward(
            slope, x, w, [8], steps, pads, gaps, False, [0] * axes, groups, [True, True, True]
        )
    for found, wanted in zip(ours, torch.autograd.grad(out, (x, w, b), slope), strict=True):
        assert found is not None
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 7, 9), (4, 1, 11)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 4)])
@pytest.mark.parametrize("levels", [2, 1000])
def test_a_maximum_sends_its_slope_to_the_first_of_equals(
    shape: tuple[int, ...], kernel: tuple[int, int], levels: int
) -> None:
    generator = torch.Generator().manual_seed(levels)
    x = torch.randint(levels, shape, generator=generator).double().requires_grad_()
    if x.dim() == 3 and kernel[0] > 1:
        kernel = (1, 3)
    out = functional.max_pool2d(x, kernel)
    slope = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        ours = windowed_max_backward(slope, x, kernel)
    assert torch.equal(ours, torch.autograd.grad(out, x, slope)[0])


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("ceil_mode", [True, False])
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_pooling_by_means_is_put_in_other_words(
    kernel: int, stride: int, padding: int, ceil_mode: bool, count_include_pad: bool
) -> None:
    x = torch.randn(2, 3, 8, 11, generator=torch.Generator().manual_seed(0))
    layers = [
        nn.AvgPool2d(kernel, stride, padding, ceil_mode, count_include_pad),
        nn.AvgPool2d(kernel, stride, padding, ceil_mode, divisor_override=5),
        nn.AdaptiveAvgPool2d((3, 4)),
        nn.AdaptiveAvgPool2d((None, 1)),
    ]
    for layer in layers:
        with in_the_open():
            ours = layer(x)
        torch.testing.assert_close(ours, layer(x))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETS)
def test_graphs_compute_what_torch_does(name: str) -> None:
    make, _, features = NETS[name]
    torch.manual_seed(0)
    model = pflego.Model(make(), features)
    graphs = export_graphs(model, samples(name, 20))
    for count in (*BATCHES, 5):
        assert largest_error(model, graphs, samples(name, count)) < 1e-5


def test_weights_are_inputs_and_not_in_the_files(tmp_path: Path) -> None:
    model = pflego.models.build("mlp", (64,), seed=1)
    kit = write_kit(tmp_path / "kit", model, pflego.PFLEGO(), torch.randn(8, 64))
    session = onnxruntime.InferenceSession((kit.folder / "backward.onnx").read_bytes())
    assert [one.name for one in session.get_inputs()] == ["1.weight", "1.bias", "x", "slope"]
    assert sum(path.stat().st_size for path in kit.files) < 64 * 200 * 4
    spec = json.loads((kit.folder / "spec.json").read_text())
    for file in spec["files"].values():
        assert sha256((kit.folder / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    assert spec["backbone"]["parameters"][0] == {"name": "1.weight", "shape": [200, 64]}


def test_a_layer_that_cannot_be_exported_is_named() -> None:
    net = nn.Sequential(nn.ConvTranspose1d(2, 2, 3), nn.Flatten())
    with pytest.raises(ModelError, match=r"layer 0 \(ConvTranspose1d\)"):
        export_graphs(pflego.Model(net, 12), torch.randn(4, 2, 4))


@pytest.mark.parametrize(
    "algorithm",
    [
        pflego.PFLEGO(server_lr="auto", server_optimizer="sgd"),
        pflego.PFLEGO(passes=2),
        pflego.PFLEGO(batch_size=8),
        pflego.PFLEGO(head_init="orthonormal"),
        pflego.PFLEGO(head_init=lambda rows, columns, generator: torch.zeros(rows, columns)),
        pflego.FedAvg(),
        pflego.Ditto(client_lr=0.1),
    ],
)
def test_a_method_that_is_not_played_is_refused_before_anything_is_written(
    algorithm: pflego.Algorithm, tmp_path: Path
) -> None:
    with pytest.raises(SettingError):
        write_kit(tmp_path / "kit", pflego.models.build("mlp", (8,)), algorithm, torch.zeros(2, 8))
    assert not (tmp_path / "kit").exists()


def test_a_model_that_is_not_played_is_refused(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))
    double = pflego.Model(nn.Linear(8, 4, dtype=torch.float64), 4)
    several = pflego.Model(layers, 4, personal=["1"])
    deep = pflego.Model(layers, 4, head=lambda features, outputs: nn.Linear(features, outputs))
    for model in (double, several, deep):
        with pytest.raises(ModelError):
            write_kit(tmp_path / "kit", model, pflego.PFLEGO(), torch.zeros(2, 8))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(FolderError):
        write_kit(tmp_path, pflego.models.build("mlp", (8,)), pflego.PFLEGO(), torch.zeros(2, 8))
