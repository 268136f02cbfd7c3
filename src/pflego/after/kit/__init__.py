"""What a client without torch needs of a run: two graphs for any ONNX runtime, and a spec.

forward.onnx, backward.onnx                 phi(x; theta), and its vector-Jacobian product
forward_keeping.onnx, backward_kept.onnx    the same, with activations kept in between, where they can be
spec.json                                   names, shapes, method and rates, digests of the files
"""

from pflego.after.kit.graphs import Graphs, export_graphs
from pflego.after.kit.writing import Kit, write_kit

__all__ = ["Graphs", "Kit", "export_graphs", "write_kit"]
