"""One model of the pair, from its checkpoint to graphs in several dialects and the reference logits of their proof."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..bundle import ELEMENT_BYTES, CacheLayer, Contract, Format, ModelSpec, Precision, Reads, Role
from ..bundle.files import clone_or_copy, require_space
from ..runtime.hub import name_of
from ..runtime.proofs.reference_file import save_reference
from ..strict import parse, read_json
from .checkpoints.checkpoint import Checkpoint
from .dialects import ORT_DIALECTS, Dialect, refuse_engines
from .hidden_drafts.assistant import Assistant
from .hidden_drafts.base import HiddenDraft
from .hidden_drafts.block import BlockDraft
from .hidden_drafts.measured import acceptance_notes, held_out
from .kernels.layouts import whole_vectors
from .kernels.products import use_kernels
from .memory import quantized_bytes, require_memory
from .options import BuildContext
from .passes.accumulate import accumulate_in_fp32
from .passes.lint import refuse_traps
from .passes.optimize import optimize, save
from .proving.prove import continued_logits, opened, record_reference
from .proving.prove_layers import ReferenceLogits, prove_layers
from .proving.quantized_graph import Subject
from .proving.reading import prove_taps, tap_states
from .quantize.apply import by_every_name, quantize
from .quantize.for_cuda import use_packed_attention
from .quantize.for_tensorrt import Made
from .recipe_choice import Quantizing, choose_recipe
from .stage_cache import finished_stage, make_stage, stage_key
from .tracing.blocks import block_layers, trace_block, trace_chain, trace_context
from .tracing.taps import TapProbe
from .tracing.trace import probe_cache, trace, trace_fuse
from .weights.choose import recipe_steps
from .weights.fake_quant import fake_quantized
from .weights.fidelity import BATCH_TOKENS
from .weights.host_memory import give_back, move_to_disk
from .weights.recipe import Recipe
from .weights.rotation import MAX_STORED_TWICE
from .weights.texts import read_texts

SPEC = "spec.json"
REFERENCE = "reference.npz"
DRAFTS = "drafts"


@dataclass(frozen=True)
class ModelExport:
    """One model, and what is to be made of it.

    engines: which are to run it; not all can run a model whose layers keep states. name: of a draft other than
    the first. taps: which hidden states of a target its drafts read.
    """

    checkpoint: Checkpoint
    role: Role
    dialects: tuple[Dialect, ...]
    quantizing: Quantizing | None = None
    engines: tuple[str, ...] = ()
    name: str = ""
    taps: tuple[int, ...] = ()

    @property
    def format(self) -> Format:
        return self.quantizing.format if self.quantizing else "float"

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"{self.role} {self.name}".rstrip()

    @property
    def label(self) -> str:
        return f"export {self.called}" + (f" in {self.format}" if self.quantizing else "")

    def inside(self, contract: Contract) -> str:
        """Its folder in the bundle: the bundle itself, or one of its own of a draft other than the first."""
        # by its content: a session of an earlier bundle in this place, which opens a draft late, must not find it
        return f"{DRAFTS}/{self.name}-{self.key(contract)[:8]}" if self.name else ""

    @property
    def exact_widths(self) -> bool:
        """Whether rows of the dialect `ort` are to have the same bits in passes of any width, so that verification
        equals plain decoding, for which a pass writes one row more (`quantize/batch_invariant.py`).
        """
        by_rows = self.quantizing is not None and self.quantizing.family == "onnxruntime"
        return by_rows and "ort" in self.dialects and self.role == "target"

    @property
    def steps(self) -> int:
        """Announced while the model is exported."""
        count = 3 + 2 * len(self.dialects) + (self.checkpoint.kind is not None)
        if self.quantizing:
            return count + len(recipe_steps(self.format)) + 1 + 2 * len(self.dialects)
        return count + ("kernels" in self.dialects)

    def key(self, contract: Contract) -> str:
        """Of the stage that holds the result."""
        inputs: dict[str, Any] = dict(
            contract=asdict(contract.of(self.role)), checkpoint=self.checkpoint.digest, taps=self.taps
        )
        if self.quantizing is not None:
            tokenizer = self.checkpoint.tokenizer.backend_tokenizer.to_str()
            inputs |= dict(quantizing=asdict(self.quantizing), tokenizer=tokenizer)
        return stage_key(__file__, role=self.role, dialects=self.dialects, **inputs)

    def refuse_states(self, precision: Precision) -> None:
        """Of a model that keeps states. Raises `UnsupportedModelError` where an engine cannot have them."""
        refuse_engines(self.checkpoint.architecture, self.engines, self.dialects, precision)

    @property
    def parameters(self) -> int:
        """Weights to export, a tied table twice where rotation may untie it (`weights/rotation.py`)."""
        count = self.checkpoint.fp32_bytes // ELEMENT_BYTES["fp32"]
        if self.format != "int8" or self.checkpoint.kind:
            return count
        config = self.checkpoint.config.get_text_config()
        table = self.checkpoint.vocab_size * int(getattr(config, "hidden_size", 0) or 0)
        tied = getattr(config, "tie_word_embeddings", False) and table <= MAX_STORED_TWICE * count
        return count + table if tied else count

    def weight_bytes(self, contract: Contract) -> int:
        """The approximate size of the weights file, in which the kernels have weights of their own."""
        layouts = ("kernels" in self.dialects) + bool({*self.dialects} - {"kernels"})
        if self.quantizing is None:
            return self.checkpoint.weight_bytes(contract.precision) * layouts
        config = None if self.checkpoint.kind else self.checkpoint.config  # such a draft may have the target's
        return (
            quantized_bytes(config, self.parameters, self.format, self.quantizing.family, contract.precision) * layouts
        )


def export_model(export: ModelExport, context: BuildContext) -> ModelSpec:
    """Put the model's graphs under `staging_dir/graphs` and its reference under `staging_dir/reference`.

    Raises `ProofError` for graphs that are not what they should be.
    """
    checkpoint, contract = export.checkpoint, context.contract.of(export.role)
    key = export.key(contract)
    stage = finished_stage(context.cache, key)
    if stage is not None:
        context.progress.reused(export.label)
    else:
        folded, quantized = bool({*export.dialects} - {*ORT_DIALECTS}), export.quantizing is not None
        beside = checkpoint.loaded_beside * ELEMENT_BYTES[contract.precision]
        parameters, precision = export.parameters, contract.precision
        on_disk = require_memory(parameters, precision, quantized, checkpoint.vocab_size, folded, beside)
        meanwhile = parameters * ELEMENT_BYTES["fp32"] if quantized else 0  # while the layers are proved
        meanwhile += parameters * ELEMENT_BYTES[precision] if on_disk else 0
        require_space(context.cache, export.weight_bytes(contract) + meanwhile)
        if on_disk:
            context.progress.note(f"{export.label}: memory is short, so the cache holds the weights meanwhile")
        with context.progress.stage(export.label, export.steps) as step:
            stage = make_stage(context.cache, key, lambda folder: _export(export, context, folder, on_disk, step))
        give_back()
    spec = parse(ModelSpec, read_json(stage / SPEC) | {"source": name_of(checkpoint.source)}, SPEC)
    if spec.has_states:  # a finished stage may be of a build for other engines
        export.refuse_states(contract.precision)
    others = (*spec.reads.fuse.values(), *spec.reads.chain.values()) if spec.reads is not None else ()
    for name in (*spec.graphs.values(), *others, spec.weights):
        clone_or_copy(stage / Path(name).name, context.staging_dir / name)
    clone_or_copy(stage / REFERENCE, context.staging_dir / spec.reference)
    return spec


def _export(
    export: ModelExport, context: BuildContext, folder: Path, on_disk: bool, step: Callable[[str], None]
) -> None:
    step("load")
    checkpoint, contract = export.checkpoint, context.contract.of(export.role)
    model, left_out = checkpoint.load_noted(contract.precision)
    if on_disk:
        move_to_disk(model, folder.parent)
    if isinstance(model, BlockDraft):
        layers = block_layers(model)
    else:
        layers = model.layers if isinstance(model, Assistant) else probe_cache(model)
    if "kernels" in export.dialects:
        layers = whole_vectors(layers)
    if isinstance(model, Assistant):
        model.layers = layers
    dialects, has_states = export.dialects, any(layer.states for layer in layers)
    if has_states:
        export.refuse_states(contract.precision)
    vocab_size, parameters = int(model.get_output_embeddings().weight.shape[0]), checkpoint.own_parameters(model)
    reads = model if isinstance(model, HiddenDraft) else None
    if reads is not None:
        step("measure acceptance")
        texts = export.quantizing.texts.texts if export.quantizing else read_texts(None)
        held = held_out(checkpoint.tokenizer, texts, checkpoint.vocab_size, min(BATCH_TOKENS, contract.capacity))
        left_out = (*left_out, *acceptance_notes(reads, held))
    taps_before = TapProbe(model, export.taps) if export.taps else None
    chosen = choose_recipe(export.quantizing, checkpoint, model, contract, step) if export.quantizing else None
    if on_disk:
        move_to_disk(model, folder.parent)  # a table that is no longer tied
    step("reference logits")
    with fake_quantized(model, chosen.recipe) if chosen else nullcontext():
        text = chosen.text if chosen else ()
        reference = record_reference(model, contract, vocab_size, export.exact_widths, text, has_states)
    coarse = contract.caches != contract.precision
    exact = continued_logits(model, [entry.step for entry in reference], has_states) if chosen or coarse else []
    recorded = ReferenceLogits(tuple(reference), tuple(exact))
    if coarse and chosen is None:
        left_out = (*left_out, f"keys and values in {contract.caches} move it by {recorded.rounding:.1e} nats")
    undo = taps_before.undo() if taps_before is not None else None
    graphs: dict[str, ir.Model] = {}
    made: Made = {}
    for dialect in dialects:
        step(f"trace {dialect}")
        if isinstance(model, BlockDraft):
            graphs[dialect] = trace_block(model, layers, dialect, contract)
        else:
            graphs[dialect] = trace(model, layers, dialect, contract, export.taps, undo)
        step(f"optimize {dialect}")
        optimize(graphs[dialect], dialect)
        named = by_every_name(chosen.recipe if chosen else Recipe({}), model)
        if dialect == "kernels":
            step("use kernels")
            use_kernels(graphs[dialect], named, contract.capacity)
        elif export.quantizing is not None:
            step(f"quantize {dialect}")
            family = export.quantizing.family
            quantize(graphs[dialect], dialect, named, contract.capacity, made, export.exact_widths, family)
        elif dialect == "ort":
            use_packed_attention(graphs[dialect], contract.capacity, join={*dialects} <= {*ORT_DIALECTS})
        beside = _beside(reads, layers, dialect, contract) if reads is not None else {}
        for graph in beside.values():
            optimize(graph, dialect)
            if dialect == "kernels":
                use_kernels(graph, Recipe({}), contract.capacity)
        if dialect not in ORT_DIALECTS:
            for graph in (graphs[dialect], *beside.values()):
                accumulate_in_fp32(graph)
        refuse_traps(graphs[dialect], dialect, checkpoint.architecture)
        graphs |= {f"{name}-{dialect}": graph for name, graph in beside.items()}
    step("write")
    paths, weights = save(graphs, folder, export.role)
    del graphs, made
    give_back()
    save_reference(folder / REFERENCE, reference)
    spec = ModelSpec(
        source=name_of(checkpoint.source),
        architecture=checkpoint.architecture,
        checkpoint_sha256=checkpoint.digest,
        num_parameters=parameters,
        vocab_size=vocab_size,
        layers=layers,
        graphs={dialect: f"graphs/{paths[dialect]}" for dialect in dialects},
        weights=f"graphs/{weights}",
        format=export.format,
        notes=left_out,
        fidelity=None,
        reference=f"reference/{export.role}.npz",
        taps=export.taps,
        tap_width=taps_before.width if taps_before is not None else 0,
        reads=_reads(reads, dialects, paths) if reads is not None else None,
    )
    if undo is not None and chosen is None:
        states = tap_states(model, export.taps, undo, [entry.step for entry in reference], contract, has_states)
        for dialect in dialects:
            wide = contract.precision == "bf16" or (contract.precision == "fp16" and dialect != "ort")
            with opened(folder / paths[dialect], spec, contract, dialect, wide) as decoder:
                prove_taps(decoder, states, "widened" if wide else contract.precision)
    if chosen is not None:
        subject = Subject(f"{export.role} in {export.format}", model, chosen.recipe, spec, contract, undo)
        proofs = []
        for dialect in dialects:
            step(f"prove {dialect} by layers")
            proofs.append(prove_layers(subject, dialect, folder / paths[dialect], recorded))
        notes = (*left_out, *chosen.recipe.notes)
        spec = replace(spec, notes=notes, fidelity=chosen.fidelity, layer_proofs=tuple(proofs))
    if exact:
        spec = replace(spec, rounding=recorded.rounding)
    (folder / SPEC).write_text(json.dumps(asdict(spec)), encoding="utf-8")


def _beside(
    model: HiddenDraft, layers: Sequence[CacheLayer], dialect: Dialect, contract: Contract
) -> dict[str, ir.Model]:
    """The graphs that a draft has besides its own, by the names that `Reads` gives them."""
    if isinstance(model, BlockDraft):
        chain = {"chain": trace_chain(model, dialect)} if model.kind == "dspark" else {}
        return {"fuse": trace_context(model, layers, dialect, contract), **chain}
    return {"fuse": trace_fuse(model, dialect)} if model.fusing else {}


def _reads(model: HiddenDraft, dialects: Sequence[Dialect], paths: Mapping[str, str]) -> Reads:
    fuse, chain = (
        {str(dialect): f"graphs/{paths[name]}" for dialect in dialects if (name := f"{kind}-{dialect}") in paths}
        for kind in ("fuse", "chain")
    )
    slots = model.form.slots if isinstance(model, BlockDraft) else 0
    return Reads(model.kind, model.taps, model.row_width, fuse, slots, chain, model.caches)
