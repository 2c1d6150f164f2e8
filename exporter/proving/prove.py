"""The logits of the Hugging Face model over the proof's schedule, and the proof of every graph of a bundle by them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ...bundle import Contract, ModelSpec, Proof, Role
from ...engines.base import OpenedDraft
from ...engines.onnxruntime.assistant import OrtAssistant
from ...engines.onnxruntime.blocks import OrtBlockDecoder
from ...engines.onnxruntime.cpu import NAME
from ...engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from ...engines.onnxruntime.graphs import open_graph
from ...errors import UnsupportedModelError
from ...runtime.proofs.parity import (
    ReferenceStep,
    Rounding,
    Step,
    arithmetic,
    measure,
    passed,
    schedule,
)
from ...runtime.proofs.reference_file import load_reference
from ...runtime.proofs.tree_parity import measure_trees
from ..checkpoints.half_precision import cached_as, fp32_arithmetic
from ..checkpoints.source import first_line
from ..hidden_drafts.base import HiddenDraft
from .reading import by_contexts, cached_passes, reading_passes, reading_reference
from .widen import widen


def record_reference(
    model: PreTrainedModel,
    contract: Contract,
    vocab_size: int,
    spare: int = 0,
    text: Sequence[int] = (),
    has_states: bool = False,
) -> list[ReferenceStep]:
    """Each step's logits come from a forward pass over the whole sequence that its tokens have seen.

    spare, text, has_states: as for `schedule`.

    A model in half precision is evaluated in fp32 over its own weights: what it means, without the rounding of one
    order of operations among many. From a model that rounds, correct graphs in bf16 are up to half a standard deviation
    off. Caches in fp16 beside fp32 round here too (`cached_as`).

    Raises `UnsupportedModelError` when the model cannot be evaluated.
    """
    if isinstance(model, HiddenDraft):
        return reading_reference(model, contract, text)
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    steps = schedule(contract, vocab_size, window if isinstance(window, int) else 0, spare, text, has_states)
    with cached_as(contract):
        return [ReferenceStep(step, logits) for step, logits in zip(steps, _whole_passes(model, steps), strict=True)]


def _whole_passes(model: PreTrainedModel, steps: list[Step]) -> list[NDArray[np.float32]]:
    """Of each step the rows that are compared. Raises `UnsupportedModelError`."""

    def read(context: NDArray[np.int64], group: list[Step]) -> list[NDArray[np.float32]]:
        rows = np.concatenate([np.arange(step.end - step.rows, step.end) for step in group])
        try:
            with torch.no_grad(), fp32_arithmetic(model):
                wanted = _logits(model, context, rows)
        except Exception as error:
            name, length = type(model).__name__, len(context)
            raise UnsupportedModelError(
                f"{name} cannot be evaluated over {length} tokens: {first_line(error)}"
            ) from error
        return np.split(wanted, np.cumsum([step.rows for step in group])[:-1])

    return by_contexts(steps, read)


def continued_logits(
    model: PreTrainedModel, steps: list[Step], has_states: bool = False, contract: Contract | None = None
) -> list[NDArray[np.float32]]:
    """Of each step the rows that are compared, over the library's own cache, which is far faster than whole passes.

    has_states: whole passes all the same, since a cache with states cannot be rolled back. contract: whose caches
    round (`cached_as`); without one, nothing does.
    """
    with cached_as(contract):
        if isinstance(model, HiddenDraft):
            return list(reading_passes(model, steps))
        if has_states:
            return _whole_passes(model, steps)
        found = []
        with fp32_arithmetic(model):
            for step, output in zip(steps, cached_passes(model, steps), strict=True):
                logits = output.logits[0]
                found.append(logits[len(logits) - step.rows :].float().numpy().copy())
        return found


def _logits(model: PreTrainedModel, context: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits of `rows` in a pass over `context`: `[rows, vocab]`; only those are computed where the model can."""
    wanted = torch.from_numpy(rows)
    some = "logits_to_keep" in inspect.signature(model.forward).parameters
    options = {"logits_to_keep": wanted} if some else {}
    logits = model(input_ids=torch.from_numpy(context)[None], use_cache=False, **options).logits[0]
    chosen: NDArray[np.float32] = (logits if some else logits[wanted]).float().numpy()
    return chosen.copy()


def prove(
    staging_dir: Path,
    role: Role,
    spec: ModelSpec,
    contract: Contract,
    engines: tuple[str, ...],
    step: Callable[[str], None],
) -> ModelSpec:
    """Run every dialect of a model on ONNX Runtime, and return it with the proofs. Raises `ProofError` at the first
    mismatch.

    What ONNX Runtime will run for one of the `engines` is run as it is; other graphs in half precision, and those
    that are quantized for TensorRT, are widened to fp32. Of graphs that round activations, which were proved layer by
    layer when they were exported, this is the end-to-end divergence.
    """
    proofs: list[Proof] = []
    reference, kept = load_reference(staging_dir / spec.reference), contract.of(role)
    for dialect, graph in spec.graphs.items():
        step(f"{role} {dialect}")
        path = staging_dir / graph
        kind = arithmetic(spec, contract)
        by_ort = dialect == "ort" and NAME in engines and (spec.format != "float" or kind == "fp16")
        wide = not (kind == "fp32" or dialect == "kernels" or by_ort)
        where = (f"{NAME}, widened" if wide else NAME, dialect)
        of_trees = kind = "widened" if wide else kind
        if wide and spec.rounding is not None and _rounds(path):
            kind = Rounding(spec.rounding, "fp32" if contract.precision == "fp32" else "widened")
        with opened(path, spec, kept, dialect, wide) as decoder:
            model = OpenedDraft(decoder, decoder.confidence, decoder.reader)
            proofs += map(passed, measure(model, reference, where, role, kind))
            if kept.tree_rows and isinstance(decoder, OrtDecoder):
                found = measure_trees(decoder, reference, kept, where, of_trees)
                proofs.append(passed(found, "build it without --tree-rows, and report the model"))
        del decoder, model  # their memory, before the next one asks for as much
    return replace(spec, proofs=tuple(proofs))


def _rounds(path: Path) -> bool:
    """Whether the graph rounds activations, as int8 and fp8 do, and int4 where some layers are kept in int8."""
    return any(node.op_type == "QuantizeLinear" for node in ir.load(path).graph)


@contextmanager
def opened(
    path: Path, spec: ModelSpec, contract: Contract, dialect: str, wide: bool
) -> Iterator[OrtDecoder | OrtBlockDecoder]:
    """Of the graph at `path` as it is, or where it is to be wide in fp32 (`widened`)."""
    with widened(path) if wide else nullcontext(path) as run:
        yield open_decoder(run, spec, contract, dialect, wide)


def open_decoder(
    path: Path, spec: ModelSpec, contract: Contract, dialect: str, wide: bool = False
) -> OrtDecoder | OrtBlockDecoder:
    """Beside the graph at `path` lie the others that a draft has which reads hidden states. wide: it is widened."""
    if wide:
        contract = replace(contract, precision="fp32")
    reads = spec.reads
    if reads is not None and reads.slots:
        paths = {"block": path, "context": path.with_name(Path(reads.fuse[dialect]).name)}
        chain = open_graph(path.with_name(Path(reads.chain[dialect]).name)) if reads.chain else None
        return OrtBlockDecoder(paths, spec, contract, chain)
    fuse, run = reads.fuse.get(dialect) if reads is not None else None, None
    if fuse is not None:
        beside = path.with_name(Path(fuse).name)
        # The kernels compute in fp32 whatever their weights are stored in.
        with widened(beside) if wide and dialect != "kernels" else nullcontext(beside) as fusing:
            run = open_graph(fusing)
    options = DecoderOptions(fuse=run)
    if reads is not None and reads.caches:
        return OrtAssistant(path, spec, contract, dialect, options)
    return OrtDecoder(path, spec, contract, dialect=dialect, options=options)


@contextmanager
def widened(path: Path) -> Iterator[Path]:
    """A file next to `path` with the same graph in fp32, over the same weights, while the context lasts."""
    model = ir.load(path)
    widen(model)
    wide = path.with_name(f"{path.stem}-widened.onnx")
    try:
        ir.save(model, wide)
        yield wide
    finally:
        wide.unlink(missing_ok=True)
