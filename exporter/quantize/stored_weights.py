"""A weight in few bits, restored by a DequantizeLinear and computed when the file is written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ..passes.clean_up import parameter_name
from ..weights.recipe import Format, WeightRecipe

TYPES: dict[Format, ir.DataType] = {"int8": ir.DataType.INT8, "int4": ir.DataType.INT4, "fp8": ir.DataType.FLOAT8E4M3FN}


class Stored:
    """values: `[N, K]`, named `{weight}.{format}`; scales: `[N]` or `[N, K / block]`, named `{weight}.scale`.

    Lazy tensors: the weight is quantized when its values are asked for, which are not kept, and the scales with them,
    which are. So that is done once where the values are written first, and no more than one weight is in memory in two
    forms.
    """

    def __init__(
        self, name: str, weight: ir.TensorProtocol, transposed: bool, own: WeightRecipe, scale_type: ir.DataType
    ) -> None:
        """transposed: the weight is `[N, K]` as it is stored, else `[K, N]`.

        scale_type: of the graph's other values.
        """
        self._weight, self._transposed, self._own, self._scale_type = weight, transposed, own, scale_type
        self._known: ir.TensorProtocol | None = None
        rows, columns = (int(length) for length in weight.shape.numpy())
        outputs, inputs = (rows, columns) if transposed else (columns, rows)
        shape = [outputs, inputs // own.block] if own.block else [outputs]
        self.values = ir.LazyTensor(
            self._make_values, TYPES[own.format], ir.Shape([outputs, inputs]), name=f"{name}.{own.format}"
        )
        self.scales = ir.LazyTensor(self._make_scales, scale_type, ir.Shape(shape), name=f"{name}.scale")

    def _make_values(self) -> ir.TensorProtocol:
        weight = self._weight.numpy().astype(np.float32, copy=False)
        values, scales = self._own.quantize(np.ascontiguousarray(weight if self._transposed else weight.T))
        assert (scales > 0).all(), f"{self.scales.name} has a scale that is not positive, which TensorRT refuses"
        self._known = ir.Tensor(scales.astype(self._scale_type.numpy()), dtype=self._scale_type, name=self.scales.name)
        typed: Any = values.astype(ml_dtypes.int4) if self._own.format == "int4" else values
        return ir.Tensor(typed, dtype=self.values.dtype, name=self.values.name)

    def _make_scales(self) -> ir.TensorProtocol:
        if self._known is None:
            self._make_values()
        assert self._known is not None
        return self._known


# By the weight's name: handed from graph to graph, so that those that share a weight share what it becomes.
Made = dict[str, Stored]


def dequantize(graph: ir.Graph, weight: ir.Value, transposed: bool, own: WeightRecipe, made: Made) -> None:
    """Put `DequantizeLinear(values, scales)` in the weight's place, and a Transpose after it if it is `[K, N]`."""
    name = parameter_name(weight)
    assert weight.const_value is not None
    assert weight.dtype is not None
    if name not in made:
        made[name] = Stored(name, weight.const_value, transposed, own, weight.dtype)
    inputs = [_initializer(graph, made[name].values), _initializer(graph, made[name].scales)]
    attributes = {"axis": 1, "block_size": own.block} if own.block else {"axis": 0}
    nodes = [ir.node("DequantizeLinear", inputs, attributes, name=f"{name}.restored")]
    if not transposed:
        nodes.append(ir.node("Transpose", [nodes[0].outputs[0]], {"perm": [1, 0]}))
    for node in nodes:
        node.outputs[0].dtype = weight.dtype
    weight.replace_all_uses_with(nodes[-1].outputs[0])
    graph.insert_before(graph[0], nodes)
    assert weight.name is not None
    del graph.initializers[weight.name]


def stored_matrix(graph: ir.Graph, stack: ir.Value, own: WeightRecipe, made: Made) -> ir.Value:
    """A stack `[E, N, K]` as the matrix `[E N, K]` and its DequantizeLinear, put first. Returns restored values.

    The stack itself stays.
    """
    name, tensor = parameter_name(stack), stack.const_value
    assert tensor is not None
    assert stack.dtype is not None
    if name not in made:
        experts, outputs, inputs = (int(length) for length in tensor.shape.numpy())
        flat = ir.LazyTensor(
            lambda: ir.Tensor(tensor.numpy().reshape(-1, inputs), dtype=tensor.dtype),
            tensor.dtype,
            ir.Shape([experts * outputs, inputs]),
            name=name,
        )
        made[name] = Stored(name, flat, True, own, stack.dtype)
    inputs_of = [_initializer(graph, made[name].values), _initializer(graph, made[name].scales)]
    attributes = {"axis": 1, "block_size": own.block} if own.block else {"axis": 0}
    node = ir.node("DequantizeLinear", inputs_of, attributes, name=f"{name}.restored")
    node.outputs[0].dtype = stack.dtype
    graph.insert_before(graph[0], [node])
    return node.outputs[0]


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
    graph.register_initializer(value)
    return value
