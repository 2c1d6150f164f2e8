"""A graph in half precision to the same graph in fp32, for proofs on hosts that lack kernels or memory for the half one.

ONNX Runtime's CPU provider has hardly any kernels in bf16; where it lacks one in fp16 it keeps the weights in fp32 as well.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

HALF = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
FLOAT = ir.DataType.FLOAT
# Attributes that name the type of a result.
TYPES = ("to", "dtype", "output_dtype")


def widen(model: ir.Model) -> bool:
    """Every value of half precision becomes fp32; returns whether there was any.

    Weights that lie in files stay there as they are, each behind a Cast. They become inputs with a default, which nothing
    folds: a weight is widened in each pass, and its fp32 form does not outlive its use.
    """
    graph = model.graph
    nodes = list(graph)
    values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
    changed = [value for value in values if value.dtype in HALF]
    for value in changed:
        value.dtype = FLOAT
    for node in nodes:
        for name, attribute in node.attributes.items():
            if name in TYPES and attribute.type == ir.AttributeType.INT and attribute.as_int() in HALF:
                node.attributes[name] = ir.AttrInt64(name, int(FLOAT))
            elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALF:
                node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
    weights = [value for value in graph.initializers.values() if value.dtype in HALF]
    for value in weights:
        assert value.const_value is not None
        if isinstance(value.const_value, ir.ExternalTensor):
            _cast(graph, value)
        else:
            value.const_value, value.dtype = _widened(value.const_value), FLOAT
    return bool(changed or weights)


def _cast(graph: ir.Graph, weight: ir.Value) -> None:
    """A Cast in front of each use, so that the first one's result need not wait for the last."""
    for count, use in enumerate(list(weight.uses())):
        cast = ir.node("Cast", [weight], {"to": int(FLOAT)}, name=f"{weight.name}.widened.{count}")
        wide = cast.outputs[0]
        wide.name, wide.type, wide.shape = cast.name, ir.TensorType(FLOAT), weight.shape
        use.node.replace_input_with(use.idx, wide)
        graph.insert_before(use.node, cast)
    graph.inputs.append(weight)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
