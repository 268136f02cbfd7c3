"""A backbone and its vector-Jacobian product as one graph of plain operations.

    theta, x, slope  ->  phi(x; theta), slope^T d phi / d theta

theta does not move inside a PFLEGO round, so these two functions are all that a client needs of a backbone, and both
are pure: they can be exported for inference. The graph is cut in two ways:

    forward, backward               the way back computes all activations again: least memory
    forward_keeping, backward_kept  the way forth also gives what the way back needs of it: least work
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.func import vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from pflego.after.kit.decompositions import decompositions, in_the_open
from pflego.learning.model import Model

SAMPLES = 7  # of the batch that is traced: no size that a layer has by chance
_aten = torch.ops.aten
_VIEWS = {  # cheaper to compute again than to keep
    _aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.t.default, _aten.transpose.int,
    _aten.permute.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.alias.default,
    _aten.detach.default,
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """One graph: inputs are theta by the order of names, x and the slope; outputs phi and the gradients."""

    graph: fx.GraphModule
    names: Sequence[str]

    @property
    def _inputs(self) -> list[fx.Node]:
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    @property
    def _outputs(self) -> list[fx.Node]:
        *_, last = self.graph.graph.nodes
        return list(last.args[0])

    def forward(self, kept: Sequence[fx.Node] = ()) -> fx.GraphModule:
        """Take phi, and beside it what is kept for the way back."""
        return self._cut(self._inputs[:-1], [self._outputs[0], *kept])

    def backward(self, kept: Sequence[fx.Node] = ()) -> fx.GraphModule:
        """Take the gradients; inputs are theta, x, what is kept, and the slope."""
        return self._cut([*self._inputs[:-1], *kept, self._inputs[-1]], self._outputs[1:])

    def kept(self) -> list[fx.Node] | None:
        """List what the way back needs of the way forth; None: a size of it is no plain number of samples."""
        before = _needed(self._outputs[:1])
        # of an operation with several results, such as a maximum and where it was, the way forth has them all
        before |= {n: None for n in self.graph.graph.nodes if n.target is getitem and n.args[0] in before}
        after = [node for node in _needed(self._outputs[1:]) if node not in before]
        found = [parent for node in after for parent in node.all_input_nodes if parent in before]
        kept: dict[fx.Node, None] = {}
        while found:
            node = found.pop(0)
            if not any(root.op == "placeholder" for root in _needed([node])) or node.op == "placeholder":
                continue  # an input, or a constant
            if node.target in _VIEWS or not isinstance(node.meta.get("val"), Tensor):
                found += node.all_input_nodes
            else:
                kept[node] = None
        return list(kept) if all(map(_is_plain, kept)) else None

    def _cut(self, inputs: Iterable[fx.Node], outputs: Iterable[fx.Node]) -> fx.GraphModule:
        cut = fx.Graph()
        made: dict[fx.Node, fx.Node] = {node: cut.placeholder(f"input_{i}") for i, node in enumerate(inputs)}
        for node in self.graph.graph.nodes:
            new = node not in made and node.op not in ("placeholder", "output")
            if new and all(parent in made for parent in node.all_input_nodes):
                made[node] = cut.node_copy(node, lambda parent: made[parent])
        cut.output(tuple(made[node] for node in outputs))
        cut.eliminate_dead_code()
        return fx.GraphModule(self.graph, cut)


def trace(model: Model, x: Tensor) -> Traced:
    """Trace features and gradients of a model.

    x: prepared samples, of which the shape and type are taken; their number stays open.
    """
    weights = model.weights()

    def joint(*inputs: Tensor) -> tuple[Tensor, ...]:
        *own, samples, slope = inputs

        def phi(parameters: Sequence[Tensor]) -> Tensor:
            return model.phi(dict(zip(model.names, parameters, strict=True)), samples)

        features, pull, *_ = vjp(phi, own)
        return features, *pull(slope)[0]

    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    batch = x.new_zeros((SAMPLES, *x.shape[1:]))
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (x.dim() - 1)]
    samples = fake.from_tensor(batch, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    theta = [fake.from_tensor(weights[name], static_shapes=True) for name in model.names]
    with fake, enable_python_dispatcher(), in_the_open():
        slope = torch.zeros((samples.shape[0], model.features), dtype=model.dtype)
        traced: Any = make_fx(joint, decomposition_table=decompositions())(*theta, samples, slope)
    return Traced(traced, model.names)


def _needed(nodes: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """Collect nodes and all that they are computed from."""
    found: dict[fx.Node, None] = {}
    rest = list(nodes)
    while rest:
        node = rest.pop()
        if node not in found:
            found[node] = None
            rest += node.all_input_nodes
    return found


def _is_plain(node: fx.Node) -> bool:
    """Tell whether each size of a tensor is a number, or that of the samples, which comes first."""
    first, *others = node.meta["val"].shape or (0,)
    return all(isinstance(size, int) for size in others) and (
        isinstance(first, int) or first.node.expr.is_symbol
    )
