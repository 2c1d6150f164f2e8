"""`specexport build`: load pair -> check -> trace -> optimize -> prove -> write -> compile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from ..bundle import SCHEMA_VERSION, Bundle, Contract, DraftSpec, Manifest, Role, list_files, write_manifest
from ..bundle.files import require_space_for
from ..bundle.output import new_folder
from ..editing.compile import compile_bundle
from ..editing.progress import BuildProgress, BuildReport, Silent, Timed
from ..user_cache import user_cache
from .additional_drafts import ResolvedDraft
from .bundle_files import unused_templates, write_text, write_vocabulary
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.config import keeps_states
from .checkpoints.find import find_checkpoint
from .checkpoints.pair import check_capacity, check_models
from .checkpoints.shared_vocabulary import Translation
from .checkpoints.source import is_gguf
from .dialects import Dialect, refuse_engines
from .export_model import ModelExport, export_model
from .hidden_drafts.assistant import AssistantCheckpoint
from .hidden_drafts.checkpoint import find_draft
from .hidden_drafts.folder import refuse_as_target
from .hidden_drafts.mtp import MtpCheckpoint
from .hidden_drafts.vocabulary import most_frequent
from .memory import prompt_chunk, require_memory_for_copies
from .options import BuildContext, BuildOptions, CalibrationTexts, NamedDraft
from .precision import BuildTargets, PrecisionPlan
from .proving.prove import prove
from .recipe_choice import Quantizing
from .sources import check_engines, check_overrules, check_sources, check_tree_rows, check_vocabulary, said
from .stage_cache import open_cache, package_versions
from .tracing.trees import refuse_trees
from .weights.fidelity import calibration_tokens


@dataclass(frozen=True)
class _Models:
    """Target and draft as they are on disk. translation: between their tokens, where they have different ones.

    more: drafts in addition to the first.
    """

    models: dict[Role, Checkpoint]
    translation: Translation | None
    warnings: tuple[str, ...]
    more: tuple[ResolvedDraft, ...] = ()

    @classmethod
    def find(
        cls,
        target: str,
        drafts: Sequence[NamedDraft],
        options: BuildOptions,
        texts: CalibrationTexts,
        dialects: tuple[Dialect, ...],
    ) -> _Models:
        models: dict[Role, Checkpoint] = {"target": find_checkpoint(target)}
        if not is_gguf(target):
            refuse_as_target(target, models["target"].folder)
        found = [_find_draft(named, models["target"], options) for named in drafts]
        if found:
            models["draft"] = found[0]
        check_tree_rows([draft.kind for draft in found], options.tree_rows)
        check_overrules({named.source: draft.kind for named, draft in zip(drafts, found, strict=True)}, options)
        refuse_states(models, options, dialects)
        translation, warnings = check_models(models, options.min_overlap, texts.texts)
        more = tuple(
            ResolvedDraft.of(named.name, checkpoint, models["target"], options.min_overlap, texts)
            for named, checkpoint in zip(drafts[1:], found[1:], strict=True)
        )
        lines = [line for model in models.values() for line in model.warnings]
        if unused := unused_templates(models["target"].tokenizer):
            lines.append(f"{models['target'].source}: {unused}")
        lines += warnings
        return cls(models, translation, (*lines, *(line for one in more for line in one.warnings)), more)

    @property
    def by_name(self) -> dict[str, Checkpoint]:
        """All of them, as messages call them."""
        pair = {str(role): model for role, model in self.models.items()}
        return pair | {f"draft {one.name}": one.checkpoint for one in self.more}

    def exports(
        self, targets: BuildTargets, engines: tuple[str, ...], numbers: PrecisionPlan, texts: CalibrationTexts
    ) -> dict[Role, ModelExport]:
        read = {tap for model in self.by_name.values() for tap in model.taps}
        return {
            role: ModelExport(
                model,
                role,
                targets.dialects,
                Quantizing.of(numbers, role, texts, targets.dialects),
                engines=engines,
                taps=tuple(sorted(read)) if role == "target" else (),
            )
            for role, model in self.models.items()
        }


def _find_draft(named: NamedDraft, target: Checkpoint, options: BuildOptions) -> Checkpoint:
    """Raises `CheckpointError`, `PairError`, and `ParameterError` for what does not go with the options."""
    draft = find_draft(named.source, target, said(options), options.texts.texts)
    check_engines(named.source, draft.kind, options)
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
    """Compile `target` and `draft` (folders or hub ids) into a proven bundle at `output`.

    draft: of several, the first drafts for requests that name no other; a checkpoint alone is called `draft`. Without
    any, the bundle's sessions look drafts up in the text.

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
    texts = options.texts
    with new_folder(Path(output), options.force) as staging_dir:
        with timed.stage("check the pair", 1):
            resolved = _Models.find(target, drafts, options, texts, targets.dialects)
            for model in resolved.models.values() if texts.own else ():
                # too few are reported now, not after an export
                calibration_tokens(model.tokenizer, texts.texts, vocab_size=model.vocab_size or None)
            context = BuildContext(_contract(resolved, options), staging_dir, cache, timed)
            if (chunk := context.contract.prompt_chunk) < min(
                options.chunk, options.longest_chunk(context.contract.capacity)
            ):
                timed.note(
                    f"prompts are read {chunk} tokens at a time, since each pass copies the experts' weights; see "
                    "--prompt-chunk"
                )
        for warning in resolved.warnings:
            timed.note(f"warning: {warning}")
        numbers = options.numbers
        exports = resolved.exports(targets, options.engines, numbers, texts)
        more = [one.export(numbers, texts, targets.dialects) for one in resolved.more]
        every = (*exports.values(), *more)
        with timed.stage("hash the weights", len(every)) as step:
            for export in every:
                step(export.name or export.role)
                _ = export.checkpoint.digest  # kept: the keys of stages are made of it
        sizes = {export.key(context.contract): export.weight_bytes(context.contract) for export in every}
        weights = sum(export.weight_bytes(context.contract) for export in exports.values())
        plans = len(targets.compiled) * weights  # which hold them again
        require_space_for(sizes, cache, staging_dir, plans)
        bundle = _write(resolved, drafts, exports, more, context, options, command)
        for engine in targets.compiled:
            bundle = compile_bundle(bundle, engine, options.compiling, timed)
    return BuildReport(Bundle(Path(output), bundle.manifest), tuple(timed.times), resolved.warnings)


def _write(
    resolved: _Models,
    drafts: Sequence[NamedDraft],
    exports: dict[Role, ModelExport],
    more: Sequence[ModelExport],
    context: BuildContext,
    options: BuildOptions,
    command: str,
) -> Bundle:
    """Export the models, prove the graphs, and write everything but plans. more: of `resolved.more`."""
    contract, staging_dir, progress = context.contract, context.staging_dir, context.progress
    specs = {role: export_model(export, context) for role, export in exports.items()}
    text = write_text(resolved.models["target"], staging_dir)
    with progress.stage("prove", sum(len(spec.graphs) for spec in specs.values())) as step:
        specs = {role: prove(staging_dir, role, spec, contract, options.engines, step) for role, spec in specs.items()}
    target, first = specs["target"], specs.get("draft")
    made: tuple[DraftSpec, ...] = ()
    if first is not None:
        own, translation = resolved.models["draft"], resolved.translation
        sizes = target.vocab_size, first.vocab_size
        maps = write_vocabulary(own, translation, *sizes, options.min_overlap, staging_dir)
        made = (DraftSpec(drafts[0].name, first, maps),)
    for one, export in zip(resolved.more, more, strict=True):
        made += (one.put(export, target, options.min_overlap, context),)
    with progress.stage("write", 1):
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=command,
            packages=package_versions(),
            contract=contract,
            target=target,
            drafts=made,
            text=text,
            engines=options.engines,
            plans=(),
            files=list_files(staging_dir),
            defaults=resolved.models["target"].defaults.within(target.vocab_size),
        )
        write_manifest(staging_dir, manifest)
        return Bundle.open(staging_dir, check_digests=False)  # what was written must be readable


def _contract(resolved: _Models, options: BuildOptions) -> Contract:
    capacity, models = check_capacity(resolved.by_name, options.max_seq_len), resolved.models
    chunk = min(prompt_chunk(models, options), options.longest_chunk(capacity))
    require_memory_for_copies(models, options, chunk)
    precision, caches = options.numbers.precision, options.caches
    return options.contract(capacity, chunk, precision, caches if caches != precision else None)


def refuse_states(models: Mapping[Role, Checkpoint], options: BuildOptions, dialects: tuple[Dialect, ...]) -> None:
    """Raises `UnsupportedModelError` for models that keep states, where an engine or a tree cannot have them.

    By the configs alone. What these do not tell is refused when the model is exported.
    """
    for role, model in models.items():
        if keeps_states(model.config):
            refuse_engines(model.architecture, options.engines, dialects, options.numbers.precision)
            if role == "target" and options.tree_rows:
                refuse_trees(model.architecture, has_states=True)
