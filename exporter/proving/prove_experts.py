"""Quantized stacks of experts, each expert proved on rows made up for it.

A pass shows a few experts only, those that its tokens go to. So what lies between the rows and their outputs, the
choice of the expert among it, is run by itself, and every expert gets rows. Rows of passes count too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from transformers import PreTrainedModel

from ...engines.onnxruntime.graphs import open_graph
from ..weights.experts import expert_layers
from ..weights.recipe import Recipe, WeightRecipe
from .layer_arithmetic import Passed, Sampled, layer_error, require_explained
from .quantized_ops import QuantizedOp

# Rows for each expert, and those that are multiplied at once: each of them copies a weight.
ROWS = 4
AT_ONCE = 32


def check_experts(
    name: str, model: PreTrainedModel, recipe: Recipe, graph: ir.Model, found: Mapping[QuantizedOp, Sampled]
) -> float:
    """The largest difference of the sites with experts as a multiple of what is allowed.

    graph: as it is run, of a file in whose folder its weights are. found: with rows of passes. Raises `ProofError` for
    an expert that is wrong.
    """
    stacks = {layer.weight: layer for layer in expert_layers(model)}
    worst = 0.0
    for site, kept in found.items():
        (weight,) = site.weights
        layer, own = stacks[weight], recipe.weights[weight]
        experts, outputs, inputs = layer.module.weight.shape
        order = np.tile(np.arange(experts), ROWS)
        rows = np.random.default_rng(0).standard_normal((len(order), inputs)).astype(np.float32)
        answers = _run(graph, site, rows, order)
        order = np.concatenate([order, *kept.experts])
        rows, answers = np.concatenate([rows, *kept.inputs]), np.concatenate([answers, *kept.outputs])
        matrix = layer.matrix.float().contiguous().numpy()
        for expert in range(experts):
            part = slice(expert * outputs, (expert + 1) * outputs)
            passed = Passed(rows[order == expert], answers[order == expert])
            off = layer_error(site.form, _of_part(own, part), matrix[part], passed, None)
            require_explained(f"{name}: expert {expert} of {layer.path}", own, off)
            worst = max(worst, off)
    return worst


def _of_part(own: WeightRecipe, part: slice) -> WeightRecipe:
    """The recipe of some of the outputs."""
    return own if own.stored is None else replace(own, stored=(own.stored[0][part], own.stored[1][part]))


def _run(graph: ir.Model, site: QuantizedOp, rows: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """What the site gives for `rows [S, K]` that go to `experts [S]`: `[S, N]`."""
    path = _folder(graph) / "experts-alone.onnx"
    try:
        _save_alone(graph, site, path)
        run = open_graph(path)
        answers = [
            run({site.input: rows[start : start + AT_ONCE], site.experts: experts[start : start + AT_ONCE]})
            for start in range(0, len(rows), AT_ONCE)
        ]
        return np.concatenate([answer[site.output] for answer in answers]).astype(np.float32)
    finally:
        path.unlink(missing_ok=True)


def _folder(graph: ir.Model) -> Path:
    """Where the weights of a graph lie."""
    for value in graph.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            return Path(value.const_value.base_dir)
    raise AssertionError("a model whose weights are in its graph")


def _save_alone(graph: ir.Model, site: QuantizedOp, path: Path) -> None:
    values = {value.name: value for node in graph.graph for value in node.outputs}
    cut = ir.convenience.extract(graph.graph, [values[site.input], values[site.experts]], [values[site.output]])
    for given, kind in zip(cut.inputs[:2], (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
        given.type, given.shape = ir.TensorType(kind), None
    cut.outputs[0].type, cut.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), None
    ir.save(ir.Model(cut, ir_version=graph.ir_version), path)
