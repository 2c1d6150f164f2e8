"""Small graphs to change, and what ONNX Runtime makes of them."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from specexport.engines.onnxruntime.graphs import open_session


def weight(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def graph(text: str, **weights: np.ndarray) -> ir.Model:
    """text: a graph in ONNX's own notation; the names of its weights are among its inputs. Its values have shapes, as
    those of traced graphs.
    """
    made = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "specexport" : 1]>\n{text}'
    )
    for value in list(made.graph.inputs):
        if value.name in weights:
            tensor = ir.tensor(weights[value.name], name=value.name)
            value.const_value, value.type, value.shape = (
                tensor,
                ir.TensorType(tensor.dtype),
                ir.Shape(weights[value.name].shape),
            )
            made.graph.inputs.remove(value)
            made.graph.register_initializer(value)
    common_passes.ShapeInferencePass()(made)
    return made


def with_weights(given: str, body: str, results: str, weights: dict[str, np.ndarray]) -> ir.Model:
    """given: inputs with their types. weights: those that the body names are stored. results: outputs with types."""
    own = {name: array for name, array in weights.items() if re.search(rf"[ (]{name}\b", body)}
    types = "".join(
        f", {'int64' if array.dtype == np.int64 else 'float'}[{','.join(map(str, array.shape))}] {name}"
        for name, array in own.items()
    )
    return graph(f"agraph ({given}{types}) => ({results}) {{ {body} }}", **own)


def run(made: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    return list(open_session(ir.to_proto(made).SerializeToString(), 0).run(None, inputs))  # type: ignore[arg-type]


def operators(made: ir.Model) -> list[str]:
    return [node.op_type for node in made.graph]
