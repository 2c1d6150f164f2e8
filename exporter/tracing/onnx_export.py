"""A module as an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ..dialects import OPSETS, Dialect
from .decompose import fewer_traces

# Of the dialect for old parsers: the one that came with its opset.
ROWS_IR_VERSION = 8


# From inputs by name to outputs in their order.
Forward = Callable[[dict[str, Tensor]], tuple[Tensor, ...]]


class _Traced(nn.Module):
    def __init__(self, model: nn.Module, names: Sequence[str], forward: Forward) -> None:
        super().__init__()
        self.model, self._names, self._forward = model, names, forward

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self._forward(dict(zip(self._names, inputs, strict=True)))


def export_graph(
    model: nn.Module,
    forward: Forward,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, Any]],
    dialect: Dialect,
) -> ir.Model:
    """The graph of `forward`, which calls `model`: its weights are the model's. dynamic: by input, the axes that may
    vary.
    """
    with torch.no_grad(), _quiet(), fewer_traces():
        program = torch.onnx.export(
            _Traced(model, list(inputs), forward).eval(),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(tuple(dynamic.get(name, {}) for name in inputs),),
            opset_version=OPSETS[dialect],
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    _part(program.model.graph, list(inputs), outputs)
    if dialect == "rows":
        program.model.ir_version = ROWS_IR_VERSION
    return program.model


def _part(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """An output that is an unchanged input becomes a value of its own; the exporter names both after the output."""
    for place, (value, name) in enumerate(zip(graph.outputs, outputs, strict=True)):
        if value.is_graph_input():
            value.name = inputs[graph.inputs.index(value)]
            node = ir.node("Identity", [value])
            (copy,) = node.outputs
            copy.name, copy.type, copy.shape = name, value.type, value.shape
            graph.append(node)
            graph.outputs[place] = copy


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own warnings are of no use to the person who builds a bundle."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
