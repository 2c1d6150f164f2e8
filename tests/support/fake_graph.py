"""An ONNX graph that ONNX Runtime runs on the CPU, in memory that is given by address: the inside of a fake engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from specexport.engines.onnxruntime.graphs import open_session

Shape = tuple[int, ...]

# ONNX Runtime's name -> TensorRT's name, what IOBinding calls it, bytes
TYPES: dict[str, tuple[str, Any, int]] = {
    "tensor(float)": ("FLOAT", np.float32, 4),
    "tensor(float16)": ("HALF", np.float16, 2),
    "tensor(bfloat16)": ("BF16", onnx.TensorProto.BFLOAT16, 2),
    "tensor(int64)": ("INT64", np.int64, 8),
    "tensor(int32)": ("INT32", np.int32, 4),
    "tensor(int8)": ("INT8", np.int8, 1),
    "tensor(uint8)": ("UINT8", np.uint8, 1),
    "tensor(bool)": ("BOOL", np.bool_, 1),
}


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    shape: -1 where it is dynamic; symbols: what the graph calls each size, a number or a name.
    """

    is_input: bool
    data_type: str
    element: Any
    element_bytes: int
    symbols: tuple[int | str, ...]

    @property
    def shape(self) -> Shape:
        return tuple(size if isinstance(size, int) else -1 for size in self.symbols)

    def bytes(self, shape: Shape) -> int:
        return math.prod(shape) * self.element_bytes


class FakeGraph:
    """aliases: output -> input of caches that are updated in place, which must be the same memory."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._session = open_session(path, 0)
        self.tensors = {
            value.name: Tensor(is_input, *TYPES[value.type], tuple(value.shape))
            for is_input, values in ((True, self._session.get_inputs()), (False, self._session.get_outputs()))
            for value in values
        }
        graph = onnx.load(path, load_external_data=False).graph
        inputs, outputs = {value.name for value in graph.input}, {value.name for value in graph.output}
        self.aliases = {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "TensorScatter" and node.input[0] in inputs and node.output[0] in outputs
        }
        self._output_shapes: dict[tuple[tuple[str, Shape], ...], dict[str, Shape]] = {}

    def output_shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        key = tuple(sorted(inputs.items()))
        if key not in self._output_shapes:
            sizes = {
                symbol: size
                for name in inputs
                for symbol, size in zip(self.tensors[name].symbols, inputs[name], strict=True)
            }
            found = {
                name: tuple(sizes.get(symbol, symbol) for symbol in tensor.symbols) for name, tensor in self._outputs()
            }
            known = all(isinstance(size, int) for shape in found.values() for size in shape)
            self._output_shapes[key] = found if known else self._shapes_of_a_run(inputs)  # type: ignore[assignment]
        return self._output_shapes[key]

    def bind(self, addresses: Mapping[str, int], shapes: Mapping[str, Shape]) -> Callable[[], None]:
        """What runs the graph in this memory."""
        binding = self._session.io_binding()
        for name, tensor in self.tensors.items():
            bind = binding.bind_input if tensor.is_input else binding.bind_output
            bind(name, "cpu", 0, tensor.element, list(shapes[name]), addresses[name])
        return lambda: self._session.run_with_iobinding(binding)

    def _shapes_of_a_run(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Where the graph computes a size: run it on zeros, with outputs of its own."""
        zeros = {name: np.zeros(self.tensors[name].bytes(shape), np.uint8) for name, shape in inputs.items()}
        binding = self._session.io_binding()
        for name, array in zeros.items():
            binding.bind_input(name, "cpu", 0, self.tensors[name].element, list(inputs[name]), array.ctypes.data)
        for name, _ in self._outputs():
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        return {
            name: tuple(value.shape()) for (name, _), value in zip(self._outputs(), binding.get_outputs(), strict=True)
        }

    def _outputs(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor) for name, tensor in self.tensors.items() if not tensor.is_input]


def load_graph(path: Path) -> FakeGraph:
    return _loaded(path, path.stat().st_mtime_ns)


@cache
def _loaded(path: Path, modified: int) -> FakeGraph:
    return FakeGraph(path)
