"""Weights in the layouts of `Product` (kernels/src/kernels.h), and one-operator sessions."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper, save_model
from specexport_kernels import library

LANES, BLOCK = 16, 32


def int8_panels(weight: np.ndarray) -> np.ndarray:
    """`[N, K] int8` to `[N / 16, K / 4, 16, 4]`."""
    outputs, inputs = weight.shape
    panels, fours = -(-outputs // LANES), -(-inputs // 4)
    padded = np.zeros((panels * LANES, fours * 4), np.int8)
    padded[:outputs, :inputs] = weight
    return np.ascontiguousarray(padded.reshape(panels, LANES, fours, 4).transpose(0, 2, 1, 3))


def float_panels(weight: np.ndarray) -> np.ndarray:
    """`[N, K]` to `[N / 16, K, 16]`."""
    outputs, inputs = weight.shape
    panels = -(-outputs // LANES)
    padded = np.zeros((panels * LANES, inputs), weight.dtype)
    padded[:outputs] = weight
    return np.ascontiguousarray(padded.reshape(panels, LANES, inputs).transpose(0, 2, 1))


def int4_panels(weight: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[N, K]` in -8 to 7 and `[N, K / 32]` to `[N / 16, K / 32, 4, 64] uint8` and `[N / 16, K / 32, 16]`."""
    outputs, inputs = weight.shape
    panels, blocks = -(-outputs // LANES), -(-inputs // BLOCK)
    padded = np.full((panels * LANES, blocks * BLOCK), 8, np.uint8)
    padded[:outputs, :inputs] = weight + 8
    halves = padded.reshape(panels, LANES, blocks, 2, 4, 4)
    both = (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).transpose(0, 2, 3, 1, 4)
    spread = np.zeros((panels * LANES, blocks), np.float32)
    spread[:outputs] = scales
    packed = np.ascontiguousarray(both.reshape(panels, blocks, 4, 4 * LANES))
    return packed, np.ascontiguousarray(spread.reshape(panels, LANES, blocks).transpose(0, 2, 1))


def session(
    operator: str,
    inputs: dict[str, np.ndarray | tuple[int, list[str | int]] | None],
    outputs: dict[str, int],
    file: Path | None = None,
    **attributes: float,
) -> ort.InferenceSession:
    """One operator. inputs: a constant, the type and shape of what is fed, or None for an absent one. file: where to
    save it, with constants in a file beside it that ONNX Runtime maps.
    """
    names, fed, constants = [], [], []
    for name, value in inputs.items():
        names.append("" if value is None else name)
        if isinstance(value, tuple):
            fed.append(helper.make_tensor_value_info(name, *value))
        elif value is not None and value.dtype == ml_dtypes.bfloat16:
            constants.append(helper.make_tensor(name, TensorProto.BFLOAT16, value.shape, value.tobytes(), raw=True))
        elif value is not None:
            constants.append(numpy_helper.from_array(value, name))
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, list(outputs), domain="specexport")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph([node], "one", fed, results, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("specexport", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.register_custom_ops_library(library())
    if file:
        save_model(model, file, save_as_external_data=True, location=f"{file.name}.weights", size_threshold=0)
    return ort.InferenceSession(file or model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()
