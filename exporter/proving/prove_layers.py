"""A quantized graph, proved on ONNX Runtime in two parts; see docs/quantization.md, "What is proved".

1. Each quantized product and table is cut out of the graph and run by itself. It must give what its recipe makes of the
   checkpoint's weight (`layer_arithmetic.py`).
2. In a copy of the graph, all of them are replaced by products with the restored weights in fp32, so that nothing is
   rounded. The copy must give the logits of the Hugging Face model over the restored weights, like any float graph.

Correct parts, put together correctly: that is the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...bundle import LayerProof
from ...engines.base import Logits
from ...errors import ProofError
from ...runtime.proofs.parity import (
    LOGIT_TOLERANCE,
    ReferenceStep,
    Step,
    divergence,
    largest_error,
    logits_of,
    max_error,
)
from ..dialects import Dialect
from ..weights.fake_quant import fake_quantized
from ..weights.host_memory import give_back
from ..weights.recipe import Recipe
from .layer_arithmetic import REPORT, ROUNDING, ROUNDINGS, layer_error
from .prove import continued_logits, open_decoder, opened
from .quantized_graph import NBITS, QuantizedGraph, Subject
from .quantized_ops import TABLE, QuantizedOp
from .reading import TapStates, prove_taps, tap_states

# Rows that a product is run on: one in a pass of its own, since kernels for a single row differ from those for several.
ROWS = 32
# Rows for each expert of a stack, and how many are multiplied at once, since each of them copies a weight.
ROWS_PER_EXPERT = 4
EXPERT_ROWS = 32
# Rows of a table that are picked at once.
PICKED = 4096


@dataclass(frozen=True)
class ReferenceLogits:
    """The proof's schedule: with the logits of the rounded model, and step by step those of the model as it was."""

    reference: tuple[ReferenceStep, ...]
    exact: tuple[Logits, ...]

    @property
    def rounding(self) -> float:
        """What rounding moves the model by, in nats."""
        return divergence(zip(self.exact, (entry.logits for entry in self.reference), strict=True)).nats


def prove_layers(subject: Subject, dialect: Dialect, path: Path, recorded: ReferenceLogits) -> LayerProof:
    """Prove the graph of `subject` in `dialect` at `path`.

    Raises `ProofError` that names the layer that is wrong, or says that the layers are put together wrongly.
    """
    graph = QuantizedGraph.of(subject, dialect, path)
    errors, as_run = list[float](), True
    for op in graph.ops:
        prove_op = _table_error if op.form == TABLE else _product_error
        error, by_host = prove_op(subject.name, graph, op)
        errors.append(error)
        as_run = as_run and by_host
    restored_error, tolerance = _restored_error(subject, graph, dialect, [entry.step for entry in recorded.reference])
    with opened(path, subject.spec, subject.contract, dialect, wide=subject.contract.precision != "fp32") as decoder:
        ours = list(logits_of(decoder, list(recorded.reference), decoder.reader))
    rounded = divergence(zip((entry.logits for entry in recorded.reference), ours, strict=True))
    before = divergence(zip(recorded.exact, ours, strict=True))
    return LayerProof(
        dialect=dialect,
        layers=len(errors),
        layer_error=max(errors, default=0.0),
        as_run=as_run,
        exact_error=restored_error,
        exact_tolerance=tolerance,
        rows=rounded.rows,
        rounded_divergence=rounded.nats,
        rounded_agreement=rounded.agreement,
        exact_divergence=before.nats,
        exact_agreement=before.agreement,
    )


def _product_error(subject: str, graph: QuantizedGraph, op: QuantizedOp) -> tuple[float, bool]:
    """The largest difference from what is expected, as a multiple of what is allowed; whether the host's kernel ran.

    Raises `ProofError` if it is more than 1.

    A kernel of few bits may round activations in a way that is not known here. Then one runs that rounds none: what is
    stored is proved without it, and what it adds shows in the divergence.
    """
    error, wrong = 0.0, ""
    for by_host in (True, False) if op.form == NBITS else (True,):
        error, wrong = max(_errors(graph, op, fp32_kernels=not by_host))
        if error <= 1:
            return error, by_host
    form = graph.weights[op.weights[0]].recipe.format
    raise ProofError(
        f"{subject}: {wrong} in {form} is off by {error:.3g} times what rounding explains, given its inputs; {REPORT}"
    )


def _errors(graph: QuantizedGraph, op: QuantizedOp, fp32_kernels: bool) -> Iterator[tuple[float, str]]:
    """For each layer of the product, or each expert of the stack, how far it is off, and what it is called."""
    weights = [graph.weights[name] for name in op.weights]
    matrices = [weight.matrix for weight in weights]
    stack = weights[0].parameter.shape[0] if op.experts else 0
    count = stack * ROWS_PER_EXPERT or ROWS
    random = np.random.default_rng(0).standard_normal((count, matrices[0].shape[1])) * weights[0].typical_input
    inputs, experts = random.astype(np.float32), np.arange(count) % max(stack, 1)
    passes = np.split(np.arange(count), range(EXPERT_ROWS, count, EXPERT_ROWS) if stack else [1])
    node = graph.values[op.output].producer()
    shape = (-1,) if stack or (node is not None and node.op_type == "Gemm") else (1, -1)
    kinds = {op.input: ir.DataType.FLOAT} | ({op.experts: ir.DataType.INT64} if stack else {})
    with graph.alone(kinds, op.output, fp32_kernels) as run:
        outputs = []
        for rows in passes:
            arrays: dict[str, NDArray[Any]] = {op.input: inputs[rows].reshape(*shape, inputs.shape[1])}
            arrays |= {op.experts: experts[rows]} if stack else {}
            outputs.append(run(arrays)[op.output].reshape(len(rows), -1))
    actual = np.concatenate(outputs).astype(np.float32)
    size = sum(map(len, matrices)) // max(stack, 1)
    if actual.shape[1] != size:
        raise ProofError(f"{' and '.join(op.weights)} have {size} outputs, their product {actual.shape[1]}; {REPORT}")
    if stack:
        for expert in range(stack):
            part, mine = slice(expert * size, (expert + 1) * size), experts == expert
            recipe = weights[0].recipe
            if recipe.stored is not None:
                recipe = replace(recipe, stored=(recipe.stored[0][part], recipe.stored[1][part]))
            error = layer_error(op.form, recipe, matrices[0][part], inputs[mine], actual[mine])
            yield error, f"expert {expert} of {weights[0].name}"
        return
    start = 0
    for weight, matrix in zip(weights, matrices, strict=True):
        mine = actual[:, start : start + len(matrix)]
        bias = weight.bias if op.biased else None
        yield layer_error(op.form, weight.recipe, matrix, inputs, mine, bias), weight.name.removesuffix(".weight")
        start += len(matrix)


def _table_error(subject: str, graph: QuantizedGraph, table: QuantizedOp) -> tuple[float, bool]:
    """The same, of every row of a table. Raises `ProofError` if it is more than 1."""
    weight, worst = graph.weights[table.weights[0]], 0.0
    restored = weight.restored
    with graph.alone({table.input: ir.DataType.INT64}, table.output) as pick:
        for start in range(0, len(restored), PICKED):
            wanted = restored[start : start + PICKED]
            actual = pick({table.input: np.arange(start, start + len(wanted))[None]})[table.output]
            allowed = ROUNDINGS * ROUNDING * np.abs(wanted) + np.finfo(np.float32).tiny
            off = np.abs(actual.reshape(len(wanted), -1).astype(np.float32) - wanted) / allowed
            worst = max(worst, float(off.max()))
    if not worst <= 1:
        raise ProofError(
            f"{subject}: the table {table.weights[0]} in {weight.recipe.format} does not match its recipe; {REPORT}"
        )
    return worst, True


def _restored_error(
    subject: Subject, graph: QuantizedGraph, dialect: Dialect, steps: list[Step]
) -> tuple[float, float]:
    """How far the graph over restored weights is off the model over them, and may be, in standard deviations of logits.

    Raises `ProofError` if that is more than what a float graph may be off. The graph is changed.
    """
    tolerance = LOGIT_TOLERANCE[subject.arithmetic]
    path = graph.path.with_name(f"{graph.path.stem}-restored.onnx")
    weights = path.with_suffix(".weights")
    try:
        graph.restore()
        ir.save(graph.model, path, external_data=weights.name)
        exact = Recipe({name: replace(own, weight_only=True) for name, own in subject.recipe.weights.items()})
        with fake_quantized(subject.model, exact):
            logits = continued_logits(subject.model, steps, subject.spec.has_states, subject.contract)
            reference = [ReferenceStep(step, rows) for step, rows in zip(steps, logits, strict=True)]
            if subject.contract.caches != subject.contract.precision:
                # Keys and values at the edge of a step of fp16 may fall to either side, as far apart as two roundings.
                tolerance += largest_error(reference, continued_logits(subject.model, steps, subject.spec.has_states))
            states: list[TapStates] = []
            if (undo := subject.undo) is not None:
                spec = subject.spec
                states = tap_states(subject.model, spec.taps, undo, steps, subject.contract, spec.has_states)
        give_back()  # the restored weights of the model: the graph takes as much memory
        decoder = open_decoder(path, subject.spec, subject.contract, dialect, wide=True)
        if states:
            prove_taps(decoder, states, subject.contract.precision)
        error = max_error(decoder, reference, decoder.reader)
    finally:
        path.unlink(missing_ok=True)
        weights.unlink(missing_ok=True)
    if not error <= tolerance:
        raise ProofError(
            f"{subject.name}, {dialect}: over restored weights, logits are {error:.2g} standard deviations off the "
            f"Hugging Face model's, {tolerance:.0g} is allowed: what lies between the quantized layers is wrong; "
            f"{REPORT}"
        )
    return error, tolerance
