"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write -> compile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from ..bundle import SCHEMA_VERSION, Bundle, Contract, DraftSpec, Manifest, Role, list_files, write_manifest
from ..bundle.files import require_space_for
from ..bundle.output import new_folder
from ..editing.compile import compile_bundle
from ..editing.progress import BuildProgress, BuildReport, Silent, Timed
from ..engines.onnxruntime.cpu import NAME
from ..user_cache import user_cache
from .bundle_files import unused_templates, write_text, write_vocabulary
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.config import keeps_states
from .checkpoints.find import find_checkpoint
from .checkpoints.pair import check_capacity, check_draft, check_target
from .checkpoints.shared_vocabulary import Translation
from .checkpoints.source import is_gguf
from .dialects import ORT_DIALECTS, Dialect
from .export_model import ModelExport, export_model
from .hidden_drafts.assistant import AssistantCheckpoint
from .hidden_drafts.checkpoint import find_draft
from .hidden_drafts.folder import refuse_as_target
from .hidden_drafts.mtp import MtpCheckpoint
from .hidden_drafts.vocabulary import most_frequent
from .memory import prompt_chunk, require_memory_for_copies
from .options import BuildContext, BuildOptions, NamedDraft
from .proving.prove import prove
from .recipe_choice import Quantizing
from .sources import check_kinds, check_sources, check_vocabulary
from .stage_cache import open_cache, package_versions
from .tracing.trees import refuse_trees
from .weights.fidelity import calibration_tokens


@dataclass(frozen=True)
class _Draft:
    """translation: between the target's tokens and its own, where these are others."""

    name: str
    export: ModelExport
    translation: Translation | None


def _resolve(
    source: str, named: Sequence[NamedDraft], options: BuildOptions, dialects: tuple[Dialect, ...]
) -> tuple[ModelExport, list[_Draft], list[str]]:
    """The target and its drafts, and warnings about them.

    Raises `CheckpointError`, `PairError`, and `ParameterError` for what does not go with the options.
    """
    target = find_checkpoint(source)
    if not is_gguf(source):
        refuse_as_target(source, target.folder)
    found = [(one, _find_draft(one, target, options)) for one in named]
    check_kinds({one.source: draft.kind for one, draft in found}, options)
    check_target(target)
    warnings, drafts = list(target.warnings), list[_Draft]()
    if unused := unused_templates(target.tokenizer):
        warnings.append(f"{target.source}: {unused}")
    for one, checkpoint in found:
        translation, notes = check_draft(target, checkpoint, options.min_overlap, options.texts.texts)
        export = _export(checkpoint, "draft", options, dialects, name=one.name if drafts else "")
        prefix = f"{export.called}: " if drafts else ""
        warnings += [prefix + line for line in (*checkpoint.warnings, *notes)]
        drafts.append(_Draft(one.name, export, translation))
    taps = tuple(sorted({tap for _, draft in found for tap in draft.taps}))
    return _export(target, "target", options, dialects, taps=taps), drafts, warnings


def _export(
    checkpoint: Checkpoint,
    role: Role,
    options: BuildOptions,
    dialects: tuple[Dialect, ...],
    name: str = "",
    taps: tuple[int, ...] = (),
) -> ModelExport:
    """name: of a draft other than the first; only engine `onnxruntime` runs those.

    Raises `UnsupportedModelError` for a model that keeps states, where an engine or a tree cannot have them.
    """
    engines = options.engines
    if name:
        engines, dialects = (NAME,), tuple(dialect for dialect in ORT_DIALECTS if dialect in dialects)
    quantizing = Quantizing.of(options.numbers, role, options.texts, dialects)
    export = ModelExport(checkpoint, role, dialects, quantizing, engines, name, taps)
    if keeps_states(checkpoint.config):  # by its config alone; what this does not tell is refused at the export
        export.refuse_states(options.numbers.precision)
        if role == "target" and options.tree_rows:
            refuse_trees(checkpoint.architecture, has_states=True)
    return export


def _find_draft(named: NamedDraft, target: Checkpoint, options: BuildOptions) -> Checkpoint:
    """Raises `CheckpointError`, `PairError`, and `ParameterError` for what does not go with the options."""
    draft = find_draft(named.source, target, options.said, options.texts.texts)
    size = options.draft_vocabulary
    if size is None or not isinstance(draft, MtpCheckpoint | AssistantCheckpoint):
        return draft
    check_vocabulary(size, draft.vocab_size)
    batches = calibration_tokens(draft.tokenizer, options.texts.texts)
    used = (int(token) for batch in batches for token in batch.flatten())
    return replace(draft, kept=most_frequent(used, size, draft.stop_token_ids, draft.vocab_size))


def build(
    target: str,
    draft: str | Sequence[NamedDraft] | None,
    output: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: BuildProgress | None = None,
    command: str = "specexport.exporter.build",
) -> BuildReport:
    """Build a bundle at `output` from `target` and `draft` (folders, GGUF files or hub ids), and check its graphs.

    draft: one checkpoint, which is then called `draft`, or several with names; requests that name none use the first.
    Without a draft, the bundle's sessions look draft tokens up in the text.

    Raises `ParameterError`, `CheckpointError`, `PairError`, `EngineError`, `OutputError`, `ProofError`; then nothing is
    left at `output`.
    """
    options = options or BuildOptions()
    timed = Timed(progress or Silent())
    cache = open_cache(options.cache or user_cache())
    drafts = (NamedDraft("draft", draft),) if isinstance(draft, str) else tuple(draft or ())
    check_sources(target, drafts, options)
    given, options = options, options.for_drafts(drafts)
    targets = options.check(drafts, str(output))
    for note in targets.notes:
        timed.note(note)
    if options.draft_precision != given.draft_precision:
        timed.note(
            f"the draft is stored in {options.draft_precision}, which a GPU reads faster and cannot change the text; "
            f"--draft-precision {options.precision} stores it as the target"
        )
    with new_folder(Path(output), options.force) as staging_dir:
        with timed.stage("check the pair", 1):
            first, others, warnings = _resolve(target, drafts, options, targets.dialects)
            exports = [first, *(draft.export for draft in others)]
            for model in (export.checkpoint for export in exports if options.texts.own):
                # too few are reported now, not after an export
                calibration_tokens(model.tokenizer, options.texts.texts, vocab_size=model.vocab_size or None)
            context = BuildContext(_contract(exports, options), staging_dir, cache, timed)
            if (chunk := context.contract.prompt_chunk) < min(
                options.chunk, options.longest_chunk(context.contract.capacity)
            ):
                timed.note(
                    f"prompts are read {chunk} tokens at a time, since each pass copies the experts' weights; see "
                    "--prompt-chunk"
                )
        for warning in warnings:
            timed.note(f"warning: {warning}")
        with timed.stage("hash the weights", len(exports)) as step:
            for export in exports:
                step(export.called)
                _ = export.checkpoint.digest  # kept: the keys of stages are made of it
        sizes = {export.key(context.contract): export.weight_bytes(context.contract) for export in exports}
        planned = sum(export.weight_bytes(context.contract) for export in exports[:2])  # which plans hold again
        require_space_for(sizes, cache, staging_dir, len(targets.compiled) * planned)
        bundle = _write(first, others, context, options, command)
        for engine in targets.compiled:
            bundle = compile_bundle(bundle, engine, options.compiling, timed)
    return BuildReport(Bundle(Path(output), bundle.manifest), tuple(timed.times), tuple(warnings))


def _write(
    target: ModelExport, drafts: Sequence[_Draft], context: BuildContext, options: BuildOptions, command: str
) -> Bundle:
    """Export the models, prove the graphs, and write everything but plans."""
    contract, staging_dir, progress = context.contract, context.staging_dir, context.progress
    exports = [target, *(draft.export for draft in drafts)]
    folders = [staging_dir / export.inside(contract) for export in exports]
    made = [export_model(one, replace(context, staging_dir=at)) for one, at in zip(exports, folders, strict=True)]
    text = write_text(target.checkpoint, staging_dir)
    with progress.stage("prove", sum(len(spec.graphs) for spec in made)) as step:
        proven, *models = [
            prove(at, one.role, spec, contract, one.engines, step)
            for one, spec, at in zip(exports, made, folders, strict=True)
        ]
    specs = []
    for draft, model in zip(drafts, models, strict=True):
        inside, sizes = draft.export.inside(contract), (proven.vocab_size, model.vocab_size)
        at = staging_dir / inside
        maps = write_vocabulary(draft.export.checkpoint, draft.translation, *sizes, options.min_overlap, at)
        spec = DraftSpec(draft.name, model, maps)
        specs.append(spec.inside(inside) if inside else spec)
    with progress.stage("write", 1):
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=command,
            packages=package_versions(),
            contract=contract,
            target=proven,
            drafts=tuple(specs),
            text=text,
            engines=options.engines,
            plans=(),
            files=list_files(staging_dir),
            defaults=target.checkpoint.defaults.within(proven.vocab_size),
        )
        write_manifest(staging_dir, manifest)
        return Bundle.open(staging_dir, check_digests=False)  # what was written must be readable


def _contract(exports: Sequence[ModelExport], options: BuildOptions) -> Contract:
    capacity = check_capacity({export.called: export.checkpoint for export in exports}, options.max_seq_len)
    models = [(export.role, export.checkpoint) for export in exports]
    chunk = min(prompt_chunk(models, options), options.longest_chunk(capacity))
    require_memory_for_copies(models, options, chunk)
    precision, caches = options.numbers.precision, options.caches
    return options.contract(capacity, chunk, precision, caches if caches != precision else None)
