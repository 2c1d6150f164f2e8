"""A module as an ONNX graph."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from ..dialects import OPSETS, Dialect

# Of the dialect for old parsers: the one that came with its opset.
ROWS_IR_VERSION = 8


def export_graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, Any]],
    dialect: Dialect,
) -> ir.Model:
    """Its weights are the module's. inputs: in the order of `forward`. dynamic: by input, the axes that may vary."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    named = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shapes = [dynamic.get(name, {}) for name in inputs]
    rest = (tuple(shapes[named:]),) if len(shapes) > named else ()  # `forward` has them as `*rest`
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(*shapes[:named], *rest),
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
