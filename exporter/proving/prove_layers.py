"""A quantized graph, proved layer by layer on ONNX Runtime; see docs/quantization.md, "What is proved".

The graph walks the proof's schedule with the inputs and outputs of its quantized layers exposed. Each layer must give
what `layer_arithmetic.py` makes of its own inputs, and what lies between the layers what the Hugging Face model makes
of their outputs (`forced.py`). By induction over the layers that is the whole graph, on the schedule's passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from transformers import PreTrainedModel

from ...bundle import Contract, LayerProof, ModelSpec
from ...engines.base import Logits
from ...engines.onnxruntime.cpu import DIALECT, DecoderOptions, OrtDecoder
from ...engines.onnxruntime.graphs import open_graph
from ...errors import ProofError
from ...runtime.proofs.parity import LOGIT_TOLERANCE, POISON, Exact, ReferenceStep, divergence
from ..dialects import Dialect
from ..weights.layers import linear_layers
from ..weights.recipe import Recipe
from .layer_arithmetic import REPORT, ROUNDING, ROUNDINGS, Passed, Sampled, layer_error, require_explained
from .pinned_model import MaxDeviation, PinnedModel, pinned_model
from .prove_experts import check_experts
from .quantized_ops import QuantizedOp, Table, quantized_ops, tables
from .widen import widen

# Rows that each layer is compared on: of passes as narrow as the loop's, and of prompt chunks.
NARROW_ROWS = 32
CHUNK_ROWS = 32
ROWS_PER_CHUNK = 4
# Rows of one pass: what all layers read and give is in memory at once. Longer chunks are walked in pieces.
MAX_ROWS = 64
# Rows of a table that are picked at once.
PICKED = 4096
NBITS = "MatMulNBits"
# The accuracy level of MatMulNBits that computes in fp32.
FP32_LEVEL = 1


@dataclass(frozen=True)
class Exposed:
    """A copy of a graph on disk that also gives what goes into its quantized layers and what comes out."""

    path: Path
    quantized_ops: tuple[QuantizedOp, ...]
    tables: tuple[Table, ...]
    model: ir.Model

    @property
    def taps(self) -> tuple[str, ...]:
        graph_outputs = {"logits"}
        names = dict.fromkeys(
            name for site in self.quantized_ops for name in (site.input, site.output, site.experts) if name
        )
        return tuple(name for name in names if name not in graph_outputs)


@dataclass(frozen=True)
class Recorded:
    """The proof's schedule: with the logits of the rounded model, and step by step those of the model as it was."""

    reference: tuple[ReferenceStep, ...]
    exact: tuple[Logits, ...]

    @property
    def rounding(self) -> float:
        """What rounding moves the model by, in nats."""
        return divergence(zip(self.exact, (entry.logits for entry in self.reference), strict=True)).nats


@dataclass(frozen=True)
class Subject:
    """A model as it was exported: in memory, with its recipe, and as graphs.

    name: for messages. kept: the ids that the model's logits are of, where the graph's are of all; None for all.
    """

    name: str
    model: PreTrainedModel
    recipe: Recipe
    spec: ModelSpec
    contract: Contract
    kept: tuple[int, ...] | None = None

    @property
    def arithmetic(self) -> Exact:
        """Of what is not quantized, as it is run here: in fp32 over the constants that the graph has."""
        return "fp32" if self.contract.precision == "fp32" else "widened"


def prove_layers(subject: Subject, dialect: Dialect, path: Path, recorded: Recorded) -> LayerProof:
    """Prove the graph of `subject` in `dialect` at `path`.

    Raises `ProofError` that names the layer that is wrong, or that reads something wrong.
    """
    reference, exact = recorded.reference, recorded.exact
    try:
        walked = _prove(subject, dialect, path, reference, own_kernels=False)
    except ProofError:
        if not any(node.op_type == NBITS for node in ir.load(path).graph):
            raise
        # A kernel may round activations in a way that is not known here. What is stored and how it is wired is proved
        # without that; what the kernel adds shows in the divergence.
        walked = _prove(subject, dialect, path, reference, own_kernels=True)
    rounded = divergence([(entry.logits, ours) for entry, ours in zip(reference, walked.answers, strict=True)])
    before = divergence(zip(exact, walked.answers, strict=True))
    return LayerProof(
        dialect=dialect,
        layers=walked.layers,
        layer_error=walked.layer_error,
        as_run=walked.as_run,
        exact_error=walked.max_deviation.error,
        exact_tolerance=LOGIT_TOLERANCE[subject.arithmetic],
        rows=rounded.rows,
        rounded_divergence=rounded.nats,
        rounded_agreement=rounded.agreement,
        exact_divergence=before.nats,
        exact_agreement=before.agreement,
    )


@dataclass(frozen=True)
class _Walked:
    """answers: the graph's logits, step by step."""

    answers: list[Logits]
    layers: int
    layer_error: float
    max_deviation: MaxDeviation
    as_run: bool


def _prove(
    subject: Subject, dialect: Dialect, path: Path, reference: tuple[ReferenceStep, ...], own_kernels: bool
) -> _Walked:
    """own_kernels: of ours, in fp32, for products in few bits, in place of the host's."""
    with exposed(path, dialect, own_kernels) as copy:
        contract = subject.contract if dialect == DIALECT else replace(subject.contract, precision="fp32")
        decoder = OrtDecoder(copy.path, subject.spec, contract, dialect=dialect, options=DecoderOptions(taps=copy.taps))
        longest = max(entry.step.end for entry in reference) if subject.spec.has_states else 0
        with pinned_model(subject.model, subject.recipe, copy.quantized_ops, longest) as model:
            answers, samples = _walk(decoder, model, copy.quantized_ops, reference, subject.kept)
        del decoder  # its memory, before the layers ask for theirs
        max_deviation, tolerance = model.max_deviation, LOGIT_TOLERANCE[subject.arithmetic]
        if not max_deviation.error <= tolerance:
            raise ProofError(
                f"{subject.name}, {dialect}: what {max_deviation.reader} reads is off by "
                f"{max_deviation.error:.2g} of its size from what the Hugging Face model makes of the layers before "
                f"it, {tolerance:.0g} is allowed; {REPORT}"
            )
        worst = max(_check_layers(subject, samples), _check_tables(subject, copy))
        stacks = {site: kept for site, kept in samples.items() if site.experts}
        worst = max(worst, check_experts(subject.name, subject.model, subject.recipe, copy.model, stacks))
        return _Walked(
            answers, len(copy.quantized_ops) + len(copy.tables), worst, max_deviation, as_run=not own_kernels
        )


@contextmanager
def exposed(path: Path, dialect: Dialect, own_kernels: bool = False) -> Iterator[Exposed]:
    """A copy next to `path`, over the same weights, while the context lasts; widened where ONNX Runtime lacks it."""
    model = ir.load(path)
    for node in model.graph if own_kernels else ():
        if node.op_type == NBITS:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", FP32_LEVEL)
    found = tuple(quantized_ops(model.graph)), tuple(tables(model.graph))
    if dialect != DIALECT:
        widen(model)
    copy = Exposed(path.with_name(f"{path.stem}-exposed.onnx"), *found, model)
    values = {value.name: value for node in model.graph for value in node.outputs}
    for name in copy.taps:
        value = values[name]
        kind = ir.DataType.INT64 if any(name == site.experts for site in copy.quantized_ops) else ir.DataType.FLOAT
        value.type = value.type or ir.TensorType(kind)
        model.graph.outputs.append(value)
    try:
        ir.save(model, copy.path)
        yield copy
    finally:
        copy.path.unlink(missing_ok=True)


def _walk(
    decoder: OrtDecoder,
    model: PinnedModel,
    found: tuple[QuantizedOp, ...],
    reference: tuple[ReferenceStep, ...],
    ids: tuple[int, ...] | None,
) -> tuple[list[Logits], dict[QuantizedOp, Sampled]]:
    """The graph's logits of every step, and some rows of each site."""
    answers: list[Logits] = []
    samples = {site: Sampled() for site in found}
    picking = np.random.default_rng(0)
    left = {True: NARROW_ROWS, False: CHUNK_ROWS}
    decoder.overwrite_rows(0, 0.0)
    for entry in reference:
        step = entry.step
        if step.poison:
            decoder.overwrite_rows(step.position, POISON)
        for start in range(0, len(step.tokens), MAX_ROWS):
            tokens, position = step.tokens[start : start + MAX_ROWS], step.position + start
            logits = decoder.step(tokens.tolist(), position).copy()
            tapped = decoder.tapped | {"logits": logits}
            ours = model.step(tokens, position, tapped)[-len(logits) :]
            own = logits if ids is None else logits[:, list(ids)]
            model.max_deviation.note(float(np.abs(own - ours).max() / np.std(ours)), "who picks a token")
            narrow = len(tokens) == len(logits)
            count = min(left[narrow], len(tokens) if narrow else ROWS_PER_CHUNK)
            left[narrow] -= count
            for site, kept in samples.items() if count else ():
                experts = np.asarray(tapped[site.experts], np.int64) if site.experts else None
                kept.keep(tapped[site.input], tapped[site.output], count, picking, experts)
        answers.append(logits[len(logits) - step.rows :])
    return answers, samples


def _check_layers(subject: Subject, samples: dict[QuantizedOp, Sampled]) -> float:
    """The largest difference as a multiple of what is allowed. Raises `ProofError` where that is more than 1."""
    parameters = dict(subject.model.named_parameters(remove_duplicate=False))
    layers = {id(layer.parameter): layer for layer in linear_layers(subject.model)}
    names = {id(parameter): name for name, parameter in subject.model.named_parameters()}
    worst = 0.0
    for site, kept in ((site, kept) for site, kept in samples.items() if not site.experts):
        inputs, outputs = np.concatenate(kept.inputs), np.concatenate(kept.outputs)
        start = 0
        for name in site.weights:
            layer = layers[id(parameters[name])]
            own = subject.recipe.weights[names[id(layer.parameter)]]
            bias = layer.module.bias.detach().float().numpy() if site.biased else None  # type: ignore[operator]
            weight = layer.matrix.float().contiguous().numpy()
            passed = Passed(inputs, outputs[:, start : start + len(weight)])
            off = layer_error(site.form, own, weight, passed, bias)
            start += len(weight)
            require_explained(f"{subject.name}: {layer.path}", own, off)
            worst = max(worst, off)
    return worst


def _check_tables(subject: Subject, copy: Exposed) -> float:
    """The same of every row of every table."""
    parameters = dict(subject.model.named_parameters(remove_duplicate=False))
    names = {id(parameter): name for name, parameter in subject.model.named_parameters()}
    worst = 0.0
    for number, table in enumerate(copy.tables):
        parameter = parameters[table.weight]
        own = subject.recipe.weights[names[id(parameter)]]
        weight = parameter.detach().float().contiguous().numpy()
        path = copy.path.with_name(f"{copy.path.stem}-{number}.onnx")
        try:
            _save_lookup(copy.model, table, path)
            pick = open_graph(path)
            wanted = own.restore(weight)
            for start in range(0, len(weight), PICKED):
                ids = np.arange(start, min(start + PICKED, len(weight)))
                found = pick({table.index: ids[None]})[table.output].reshape(len(ids), -1).astype(np.float32)
                allowed = ROUNDINGS * ROUNDING * np.abs(wanted[ids]) + np.finfo(np.float32).tiny
                worst = max(worst, float((np.abs(found - wanted[ids]) / allowed).max()))
        finally:
            path.unlink(missing_ok=True)
        if not worst <= 1:
            raise ProofError(
                f"{subject.name}: the table {table.weight} in {own.format} does not match its recipe; {REPORT}"
            )
    return worst


def _save_lookup(model: ir.Model, table: Table, path: Path) -> None:
    values = {value.name: value for node in model.graph for value in node.outputs}
    values |= {value.name: value for value in model.graph.inputs}
    index, output = values[table.index], values[table.output]
    cut = ir.convenience.extract(model.graph, [index], [output])
    cut.inputs[0].type, cut.inputs[0].shape = ir.TensorType(ir.DataType.INT64), None
    cut.outputs[0].type = cut.outputs[0].type or ir.TensorType(ir.DataType.FLOAT)
    ir.save(ir.Model(cut, ir_version=model.ir_version), path)
