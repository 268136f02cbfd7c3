"""The graphs of a kit as ONNX files, held to what torch computes before anybody gets them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from pflego.after.kit.tracing import SAMPLES, trace
from pflego.after.quiet import quiet
from pflego.errors import MissingExtraError, ModelError
from pflego.learning.model import Model
from pflego.weights import Weights

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Arrays: TypeAlias = dict[str, npt.NDArray[np.float32]]

INPUT, SLOPE, FEATURES = "x", "slope", "phi"  # names of inputs and outputs beside those of parameters
GRADIENT, KEPT = "d/", "kept/"  # before the names of parameters, and the numbers of what is kept
BATCHES = (1, 8, 13, 64)  # sizes that every graph is tried with
LIMIT = 1e-5  # of the largest error, as a share of the largest number
_DRAWS = 4  # tries of a size: rounding may exchange two nearly equal numbers in a maximum, but not every time


@dataclass(frozen=True)
class Graphs:
    """phi(x; theta), and slope^T d phi / d theta: ONNX files that take any number of samples."""

    forward: bytes
    backward: bytes | None  # None: all of the backbone is frozen, and there is no way back
    forward_keeping: (
        bytes | None
    )  # the same with activations, and the way back from them; None: they cannot be had
    backward_kept: bytes | None
    error: float  # the largest against torch, as a share of the largest number

    def files(self) -> dict[str, bytes]:
        """Map name to content, without the name's ending."""
        made = {"forward": self.forward}
        if self.backward is not None:
            made["backward"] = self.backward
        if self.forward_keeping is not None and self.backward_kept is not None:
            made |= {"forward_keeping": self.forward_keeping, "backward_kept": self.backward_kept}
        return made


def export_graphs(model: Model, x: Tensor) -> Graphs:
    """Make the graphs of a model, and hold them to torch's results.

    x: a few samples as clients store them.
    """
    for library in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(library) is None:
            raise MissingExtraError("for a kit: pip install 'pflego[kit]'")
    if model.dtype != torch.float32:
        raise ModelError(
            f"a kit computes in float32, and the backbone in {model.dtype}: take backbone.float()"
        )
    if taken := {INPUT, SLOPE, FEATURES} & set(model.names):
        raise ModelError(
            f"the backbone's parameter {min(taken)!r} is called like an input of the kit: rename it"
        )
    prepared = model.prepare(x).contiguous()
    try:
        files = _exported(model, prepared)
        error = _largest_error(model, files, prepared)
    except Exception as problem:  # whatever torch, its exporters or a runtime say to somebody else's module
        raise ModelError(_blame(model, prepared, problem)) from problem
    if not error <= LIMIT:
        raise ModelError(
            f"the exported graphs differ from the backbone by {error:.1e} of its largest gradient, and {LIMIT:g} is "
            f"allowed: {_suspect(model, prepared) or 'this backbone'} is not computed alike outside of torch; take "
            "another layer, or a full client"
        )
    return Graphs(
        files["forward"],
        files.get("backward"),
        files.get("forward_keeping"),
        files.get("backward_kept"),
        error,
    )


def _exported(model: Model, x: Tensor, *, keeping: bool = True) -> dict[str, bytes]:
    traced, weights = trace(model, x), model.weights()
    theta = {name: weights[name] for name in model.names}
    given = {**theta, INPUT: x[:1].expand(SAMPLES, *x.shape[1:]).contiguous()}
    slope = {SLOPE: torch.zeros(SAMPLES, model.features)}
    gradients = [f"{GRADIENT}{name}" for name in theta]
    files = {"forward": _onnx(traced.forward(), given, [FEATURES], theta)}
    if not theta:
        return files
    files["backward"] = _onnx(traced.backward(), {**given, **slope}, gradients, theta)
    if keeping and (kept := traced.kept()) is not None:
        values = {f"{KEPT}{number}": _like(node) for number, node in enumerate(kept)}
        still = {*theta, *(name for name, node in zip(values, kept, strict=True) if _is_still(node))}
        files["forward_keeping"] = _onnx(traced.forward(kept), given, [FEATURES, *values], theta)
        files["backward_kept"] = _onnx(traced.backward(kept), {**given, **values, **slope}, gradients, still)
    return files


def _is_still(node: fx.Node) -> bool:
    """Tell whether no size of a tensor is the number of samples."""
    return all(isinstance(size, int) for size in node.meta["val"].shape)


def _like(node: fx.Node) -> Tensor:
    """Make a tensor like one that is kept, of as many samples as the batch that is traced."""
    value = node.meta["val"]
    sizes = [size if isinstance(size, int) else SAMPLES for size in value.shape]
    return torch.zeros(sizes, dtype=value.dtype)


def _onnx(
    graph: fx.GraphModule, inputs: Mapping[str, Tensor], outputs: Sequence[str], still: Collection[str]
) -> bytes:
    """Convert a graph; the first size of all inputs but those that stand still is the number of samples."""
    samples = torch.export.Dim("samples")
    shapes = tuple({} if name in still else {0: samples} for name in inputs)
    with quiet():
        program = torch.export.export(graph, tuple(inputs.values()), dynamic_shapes=shapes, strict=False)
        converted = torch.onnx.export(
            program, (), dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
        )
    assert converted is not None
    content: bytes = converted.model_proto.SerializeToString()
    return content


def _largest_error(model: Model, files: Mapping[str, bytes], x: Tensor) -> float:
    """Compare the graphs with torch on batches of several sizes; of a few draws the best counts."""
    sessions = {name: _session(content) for name, content in files.items()}
    generator = torch.Generator().manual_seed(0)
    return max(
        min(_error(model, sessions, *_drawn(model, x, size, generator)) for _ in range(_DRAWS))
        for size in BATCHES
    )


def _session(content: bytes) -> InferenceSession:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _drawn(model: Model, x: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw samples, moved a little where they are numbers, and a slope."""
    drawn = x[torch.randint(len(x), (size,), generator=generator)]
    if drawn.is_floating_point():
        drawn = drawn + 0.1 * torch.randn(drawn.shape, generator=generator)
    return drawn, torch.randn(size, model.features, generator=generator)


def _error(model: Model, sessions: Mapping[str, InferenceSession], x: Tensor, slope: Tensor) -> float:
    theta = {name: tensor.requires_grad_() for name, tensor in model.weights().items()}
    features = model.phi(theta, x)
    gradients: Sequence[Tensor] = ()
    if theta:
        gradients = torch.autograd.grad(features, list(theta.values()), slope, materialize_grads=True)
    wanted = {
        FEATURES: features.detach(),
        **{f"{GRADIENT}{n}": g for n, g in zip(theta, gradients, strict=True)},
    }
    given = {**_arrays(theta), INPUT: x.numpy(), SLOPE: slope.numpy()}
    plain = [sessions[role] for role in ("forward", "backward") if role in sessions]
    found = [{name: array for session in plain for name, array in _run(session, given).items()}]
    if "backward_kept" in sessions:
        forth = _run(sessions["forward_keeping"], given)
        found.append({**forth, **_run(sessions["backward_kept"], {**given, **forth})})
    return max(_distance(each[name], tensor.numpy()) for each in found for name, tensor in wanted.items())


def _run(session: InferenceSession, given: Arrays) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    return dict(
        zip(names, session.run(None, {i.name: given[i.name] for i in session.get_inputs()}), strict=True)
    )


def _distance(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    largest = float(np.abs(theirs).max(initial=0.0))
    return float(np.abs(ours - theirs).max(initial=0.0)) / (largest or 1.0)


def _arrays(weights: Weights) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in weights.items()}


def _blame(model: Model, x: Tensor, problem: Exception) -> str:
    """Say which layer it is that cannot be exported, and what to do."""
    where = _suspect(model, x)
    cause = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
    return (
        f"{where or 'the backbone'} cannot be exported for a light client ({cause[:160]}): take a layer that can "
        "(docs/kit.md lists them), freeze it with requires_grad_(False) if only its way back cannot, or let these "
        "clients be full ones"
    )


def _suspect(model: Model, x: Tensor) -> str | None:
    """Name the first layer that cannot be exported by itself."""
    seen: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: seen.append((name, layer, given[0])))
        for name, layer in model.backbone.named_modules()
        if not any(True for _ in layer.children())
    ]
    try:
        with torch.no_grad():
            model.backbone(x)
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer, given in seen:
        if not _exports(layer, given):
            return f"the layer {name} ({type(layer).__name__})"
    return None


def _exports(layer: nn.Module, x: Tensor) -> bool:
    """Try a layer by itself, behind a parameter of its own: its outputs are made one row per sample."""
    try:
        alone = nn.Sequential(_Scale() if x.is_floating_point() else nn.Identity(), layer, nn.Flatten())
        with torch.no_grad():
            features = alone(x).shape[1]
        model = Model(alone, features)
        return _largest_error(model, _exported(model, x.contiguous(), keeping=False), x) <= LIMIT
    except Exception:  # whatever it is, that is the layer
        return False


class _Scale(nn.Module):
    """Multiplies its inputs by a number, so that there is a gradient to ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale
