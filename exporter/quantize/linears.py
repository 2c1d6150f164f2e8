"""The linear layers of a traced graph: products with a stored weight, as tracing and fusing leave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ..passes.weight_names import parameter_name

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Linear:
    """`output = input . weight^T`. weight: `[N, K]` as stored if `transposed`, else `[K, N]`.

    bias: what the node itself adds (of a Gemm), `[N]`; one that an Add of its own brings is none of the layer's.
    """

    node: ir.Node
    weight: ir.Value
    transposed: bool
    bias: ir.Value | None = None

    @property
    def input(self) -> ir.Value:
        """As it is now: an earlier layer that was replaced gives it under another identity."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def output(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def name(self) -> str:
        """The weight's name in the checkpoint."""
        return parameter_name(self.weight)

    @property
    def size(self) -> tuple[int, int]:
        """(N, K), outputs and inputs."""
        assert self.weight.const_value is not None
        rows, columns = (int(length) for length in self.weight.const_value.shape.numpy())
        return (rows, columns) if self.transposed else (columns, rows)


def linears(graph: ir.Graph) -> list[Linear]:
    """In the order of the graph. Weights that are no matrices, as those of experts, are not among them."""
    return [linear for node in graph for linear in _linear(node)]


def _linear(node: ir.Node) -> Iterator[Linear]:
    """Of `MatMul(x, w)`, `MatMul(x, Transpose(w))`, `FusedMatMul(x, w, transB=1)` and `Gemm(x, w, bias)`; else none."""
    if node.op_type not in ("MatMul", "FusedMatMul", "Gemm") or len(node.inputs) < 2:
        return
    value, weight = node.inputs[0], node.inputs[1]
    if value is None or weight is None or value.is_initializer():
        return
    transposed = bool(node.attributes.get_int("transB", 0))
    if node.attributes.get_int("transA", 0) or any(
        node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")
    ):
        return
    producer = weight.producer()
    if (
        producer is not None
        and producer.op_type == "Transpose"
        and list(producer.attributes["perm"].as_ints()) == [1, 0]
    ):
        weight, transposed = producer.inputs[0], not transposed
    if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2 or weight.dtype not in FLOATS:
        return
    yield Linear(node, weight, transposed, node.inputs[2] if len(node.inputs) > 2 else None)
