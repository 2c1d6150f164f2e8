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


def quantize_for_tensorrt(model: ir.Model, recipe: Recipe, made: Made) -> int:
    """Returns the number of weights that are stored in fewer bits now, each restored by a `DequantizeLinear`.

    recipe: with scales of the graph's type (`scale_type`). made: by weight, what earlier graphs of the model got, and
    what this one adds. An embedding that the output shares stays one table. After `optimize`, which would fold the new
    nodes.
    """
    graph = model.graph
    _round_inputs(graph, recipe)
    weights = list(matrices(graph, recipe, ("int8", "fp8", "int4")))
    for weight, transposed, weight_recipe in weights:
        assert weight.const_value is not None
        restored = _restored(graph, weight, weight.const_value, transposed, weight_recipe, made)
        if not transposed:
            turned = ir.node("Transpose", [restored], {"perm": [1, 0]})
            turned.outputs[0].type = restored.type
            graph.insert_after(restored.producer(), turned)  # type: ignore[arg-type]
            restored = turned.outputs[0]
        weight.replace_all_uses_with(restored)
        del graph.initializers[str(weight.name)]
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


# By the weight's name: handed from graph to graph, so that those that share a weight share what it becomes.
Made = dict[str, tuple[ir.LazyTensor, ir.LazyTensor]]


def _stored(
    name: str, weight: ir.TensorProtocol, transposed: bool, weight_recipe: WeightRecipe, scale_type: ir.DataType
) -> tuple[ir.LazyTensor, ir.LazyTensor]:
    """Values `[N, K]`, named `{weight}.{format}`, and scales `[N]` or `[N, K / block]`, named `{weight}.scale`, of a
    weight that is `[N, K]` as it is stored if `transposed`, else `[K, N]`. scale_type: of the graph's other values.

    The weight is quantized when its values are asked for, which are not kept, and the scales with them, which are. So
    that is done once where the values are written first, and no more than one weight is in memory in two forms.
    """
    form, known = weight_recipe.format, list[ir.TensorProtocol]()

    def make_values() -> ir.TensorProtocol:
        matrix = weight.numpy().astype(np.float32, copy=False)
        made, steps = weight_recipe.quantize(np.ascontiguousarray(matrix if transposed else matrix.T))
        assert (steps > 0).all(), f"{name}.scale has a scale that is not positive, which TensorRT refuses"
        known[:] = [ir.Tensor(steps.astype(scale_type.numpy()), dtype=scale_type, name=f"{name}.scale")]
        typed: Any = made.astype(ml_dtypes.int4) if form == "int4" else made
        return ir.Tensor(typed, dtype=TYPES[form], name=f"{name}.{form}")

    def make_scales() -> ir.TensorProtocol:
        if not known:
            make_values()
        return known[0]

    rows, columns = (int(length) for length in weight.shape.numpy())
    outputs, inputs = (rows, columns) if transposed else (columns, rows)
    shape = [outputs, inputs // weight_recipe.block] if weight_recipe.block else [outputs]
    values = ir.LazyTensor(make_values, TYPES[form], ir.Shape([outputs, inputs]), name=f"{name}.{form}")
    return values, ir.LazyTensor(make_scales, scale_type, ir.Shape(shape), name=f"{name}.scale")


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
        made[name] = _stored(name, matrix, transposed, weight_recipe, weight.dtype)
    inputs = [_initializer(graph, tensor) for tensor in made[name]]
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
