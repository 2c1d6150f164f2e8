"""A recipe in a traced graph for TensorRT and TensorRT-RTX (the dialects `onnx` and `rows`): explicit Q/DQ.

Weights are stored in few bits, with one scale an output, or one for each block of inputs in int4, and restored by a
DequantizeLinear. Where the recipe has a static scale of the inputs, these are rounded too, by one scale for all of
them, and the product is one of narrow numbers. Forms and types as TensorRT's guide wants them ("Working with Quantized
Types", explicit quantization, strongly typed networks): symmetric, scales of the type of the values around them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ..passes.clean_up import parameter_name
from ..weights.recipe import Format, Recipe, WeightRecipe
from .linears import Linear, constant, linears, matrices
from .picked_weights import chosen_stacks

# The first opset (and its version of the format) where DequantizeLinear takes the type; scales in half precision came
# with fp8's.
OPSETS = {
    ir.DataType.FLOAT16: (19, 9),
    ir.DataType.BFLOAT16: (19, 9),
    ir.DataType.FLOAT8E4M3FN: (19, 9),
    ir.DataType.INT4: (21, 10),
}
TYPES: dict[Format, ir.DataType] = {"int8": ir.DataType.INT8, "int4": ir.DataType.INT4, "fp8": ir.DataType.FLOAT8E4M3FN}
ZEROS: dict[Format, np.ndarray] = {"int8": np.zeros((), np.int8), "fp8": np.zeros((), ml_dtypes.float8_e4m3fn)}


def quantize_for_tensorrt(model: ir.Model, recipe: Recipe, made: Made | None = None) -> int:
    """Returns the number of weights that are stored in fewer bits now.

    recipe: with scales of the graph's type (`scale_type`). made: by weight, what earlier graphs of the model got, and
    what this one adds. An embedding that the output shares stays one table. After `optimize`, which would fold the new
    nodes.
    """
    made = {} if made is None else made
    graph = model.graph
    _round_inputs(graph, recipe)
    weights = list(matrices(graph, recipe, ("int8", "fp8", "int4")))
    for weight, transposed, weight_recipe in weights:
        dequantize(graph, weight, transposed, weight_recipe, made)
    changed = len(weights) + quantize_expert_matrices(model, recipe, made)
    if changed:
        _raise_opset(model)
    return changed


def _round_inputs(graph: ir.Graph, recipe: Recipe) -> None:
    """Layers that read one value with one scale share what it is rounded to."""
    rounded: dict[tuple[ir.Value, Format, float], ir.Value] = {}
    for linear in linears(graph):
        weight_recipe = recipe.weights.get(linear.name)
        if weight_recipe is None or weight_recipe.format not in ZEROS or weight_recipe.input_scale is None:
            continue
        key = (linear.input, weight_recipe.format, weight_recipe.input_scale)
        if key not in rounded:
            rounded[key] = _rounded(graph, linear, weight_recipe.format, weight_recipe.input_scale)
        linear.node.replace_input_with(0, rounded[key])


def _rounded(graph: ir.Graph, linear: Linear, form: Format, scale: float) -> ir.Value:
    """Inserted before the first layer that reads it."""
    value, dtype = linear.input, linear.weight.dtype
    assert dtype is not None
    step = constant(graph, f"{linear.name}.input_scale", np.array(scale, np.float32).astype(dtype.numpy()))
    zero = constant(graph, f"quantize.zero.{form}", ZEROS[form])
    assert zero.dtype is not None
    narrow = ir.node("QuantizeLinear", [value, step, zero])
    wide = ir.node("DequantizeLinear", [narrow.outputs[0], step, zero])
    narrow.outputs[0].type, wide.outputs[0].type = (ir.TensorType(kind) for kind in (zero.dtype, dtype))
    graph.insert_before(linear.node, [narrow, wide])
    return wide.outputs[0]


class Stored:
    """values: `[N, K]`, named `{weight}.{format}`; scales: `[N]` or `[N, K / block]`, named `{weight}.scale`.

    Lazy tensors: the weight is quantized when its values are asked for, which are not kept, and the scales with them,
    which are. So that is done once where the values are written first, and no more than one weight is in memory in two
    forms.
    """

    def __init__(
        self,
        name: str,
        weight: ir.TensorProtocol,
        transposed: bool,
        weight_recipe: WeightRecipe,
        scale_type: ir.DataType,
    ) -> None:
        """transposed: the weight is `[N, K]` as it is stored, else `[K, N]`.

        scale_type: of the graph's other values.
        """
        self._weight, self._transposed, self._recipe, self._scale_type = weight, transposed, weight_recipe, scale_type
        self._known: ir.TensorProtocol | None = None
        rows, columns = (int(length) for length in weight.shape.numpy())
        outputs, inputs = (rows, columns) if transposed else (columns, rows)
        shape = [outputs, inputs // weight_recipe.block] if weight_recipe.block else [outputs]
        self.values = ir.LazyTensor(
            self._make_values,
            TYPES[weight_recipe.format],
            ir.Shape([outputs, inputs]),
            name=f"{name}.{weight_recipe.format}",
        )
        self.scales = ir.LazyTensor(self._make_scales, scale_type, ir.Shape(shape), name=f"{name}.scale")

    def _make_values(self) -> ir.TensorProtocol:
        weight = self._weight.numpy().astype(np.float32, copy=False)
        values, scales = self._recipe.quantize(np.ascontiguousarray(weight if self._transposed else weight.T))
        assert (scales > 0).all(), f"{self.scales.name} has a scale that is not positive, which TensorRT refuses"
        self._known = ir.Tensor(scales.astype(self._scale_type.numpy()), dtype=self._scale_type, name=self.scales.name)
        typed: Any = values.astype(ml_dtypes.int4) if self._recipe.format == "int4" else values
        return ir.Tensor(typed, dtype=self.values.dtype, name=self.values.name)

    def _make_scales(self) -> ir.TensorProtocol:
        if self._known is None:
            self._make_values()
        assert self._known is not None
        return self._known


# By the weight's name: handed from graph to graph, so that those that share a weight share what it becomes.
Made = dict[str, Stored]


def dequantize(graph: ir.Graph, weight: ir.Value, transposed: bool, weight_recipe: WeightRecipe, made: Made) -> None:
    """Put `DequantizeLinear(values, scales)` in the weight's place, and a Transpose after it if it is `[K, N]`."""
    assert weight.const_value is not None
    restored = _restored(graph, weight, weight.const_value, transposed, weight_recipe, made)
    if not transposed:
        turned = ir.node("Transpose", [restored], {"perm": [1, 0]})
        turned.outputs[0].type = restored.type
        graph.insert_after(restored.producer(), turned)  # type: ignore[arg-type]
        restored = turned.outputs[0]
    weight.replace_all_uses_with(restored)
    del graph.initializers[str(weight.name)]


def quantize_expert_matrices(model: ir.Model, recipe: Recipe, made: Made) -> int:
    """Stacks in any format, activations as they are. Returns the number of stacks.

    A stack `[E, N, K]` is stored as the matrix `[E N, K]`, and picked from what is restored.
    """
    graph, changed = model.graph, 0
    for stack, weight_recipe in chosen_stacks(graph, recipe):
        tensor = stack.weight.const_value
        assert tensor is not None
        shape = tuple(int(length) for length in tensor.shape.numpy())
        restored = _restored(graph, stack.weight, _flat(tensor, shape), True, weight_recipe, made)
        parted = ir.node("Reshape", [restored, constant(graph, f"{stack.name}.shape", np.array(shape, np.int64))])
        parted.outputs[0].type = restored.type
        graph.insert_before(stack.nodes[0], [parted])
        stack.nodes[0].replace_input_with(0, parted.outputs[0])
        del graph.initializers[str(stack.weight.name)]
        changed += 1
    return changed


def _flat(stack: ir.TensorProtocol, shape: tuple[int, ...]) -> ir.TensorProtocol:
    experts, outputs, inputs = shape
    return ir.LazyTensor(
        lambda: ir.Tensor(stack.numpy().reshape(-1, inputs), dtype=stack.dtype),
        stack.dtype,
        ir.Shape([experts * outputs, inputs]),
        name=stack.name,
    )


def _restored(
    graph: ir.Graph,
    weight: ir.Value,
    matrix: ir.TensorProtocol,
    transposed: bool,
    weight_recipe: WeightRecipe,
    made: Made,
) -> ir.Value:
    """What a DequantizeLinear, put first in the graph, gives for the weight as a `matrix`. The weight itself stays."""
    name = parameter_name(weight)
    assert weight.dtype is not None
    if name not in made:
        made[name] = Stored(name, matrix, transposed, weight_recipe, weight.dtype)
    inputs = [_initializer(graph, made[name].values), _initializer(graph, made[name].scales)]
    attributes = {"axis": 1, "block_size": weight_recipe.block} if weight_recipe.block else {"axis": 0}
    node = ir.node("DequantizeLinear", inputs, attributes, name=f"{name}.restored")
    node.outputs[0].dtype = weight.dtype
    graph.insert_before(graph[0], [node])
    return node.outputs[0]


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
    graph.register_initializer(value)
    return value


def _raise_opset(model: ir.Model) -> None:
    """No operator of a traced model means anything else in the later opset: they only take more types."""
    graph = model.graph
    types = {
        value.dtype
        for node in graph
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        for value in node.inputs
        if value
    }
    for opset, version in (OPSETS[dtype] for dtype in types if dtype in OPSETS):
        graph.opset_imports[""] = max(graph.opset_imports[""], opset)
        model.ir_version = max(model.ir_version, version)
