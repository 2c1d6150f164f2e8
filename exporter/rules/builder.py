"""A graph written down operator by operator: `op.Where(op.Equal(x, top), ids, size)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import serde

# The lowest with what the rules need, axes of reductions as inputs: runtimes of many ages read it.
OPSET = 18
IR_VERSION = 8

# A number is a constant: a float is float32, an int or a list of ints is int64, a list of floats is float32.
Operand = ir.Value | float | int | Sequence[int] | Sequence[float]


class RuleGraph:
    """Inputs, then operators called by their ONNX names, then `model()`. Only float32, int64 and bool occur."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}

    def floats(self, name: str, *shape: int) -> ir.Value:
        """The input `name`, float32."""
        return self._input(name, ir.DataType.FLOAT, shape)

    def integers(self, name: str, *shape: int) -> ir.Value:
        """The input `name`, int64."""
        return self._input(name, ir.DataType.INT64, shape)

    def __getattr__(self, operator: str) -> Callable[..., ir.Value]:
        if not operator[0].isupper():  # Python itself asks for names, when it copies or inspects
            raise AttributeError(operator)

        def node(*operands: Operand, **attributes: int) -> ir.Value:
            return self._tape.op(operator, [self._value(operand) for operand in operands], attributes)

        return node

    def model(self, outputs: Mapping[str, tuple[ir.Value, ir.DataType, Sequence[int]]]) -> onnx.ModelProto:
        """The finished model. outputs: name -> value, type, shape."""
        values = []
        for name, (value, dtype, shape) in outputs.items():
            value.name, value.dtype, value.shape = name, dtype, ir.Shape(shape)
            values.append(value)
        tape = self._tape
        graph = ir.Graph(
            self._inputs,
            values,
            nodes=tape.nodes,
            initializers=tape.initializers,
            opset_imports={"": OPSET},
            name=self._name,
        )
        return serde.serialize_model(ir.Model(graph, ir_version=IR_VERSION, producer_name="specexport"))

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
        self._inputs.append(value)
        return value

    def _value(self, operand: Operand) -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        array = np.asarray(operand)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = self._tape.initializer(ir.tensor(array, name=f"constant_{len(self._constants)}"))
        return self._constants[key]
