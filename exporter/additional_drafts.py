"""One more draft for a bundle that is there, without rebuilding the target: `specexport add-draft`.

Its files have their folder, `drafts/NAME-DIGEST`: graphs, weights, the reference of the proof, and maps where it has
another tokenizer. The folder is put into place first, and then the manifest, in one step: until then, whatever happens,
the bundle is unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..atomic import output_errors, temporary_folder
from ..bundle import NO_DRAFT, Bundle, Contract, DraftSpec, FileEntry, Manifest, ModelSpec, SharedVocabulary, list_files
from ..bundle.files import require_space_for
from ..editing.progress import BuildProgress, BuildReport, Silent, Timed
from ..editing.replace_manifest import DRAFTS, UNCHANGED, replace_manifest
from ..engines.onnxruntime import kernels
from ..engines.onnxruntime.cpu import NAME
from ..errors import EngineError, ParameterError
from ..user_cache import user_cache
from .bundle_files import write_kept_tokens, write_maps
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.pair import too_large, translate
from .checkpoints.shared_vocabulary import Tokens, Translation
from .dialects import ORT_DIALECTS
from .export_model import ModelExport, export_model
from .hidden_drafts.checkpoint import find_own_draft
from .memory import require_memory_for_copies
from .options import BuildContext, BuildOptions, CalibrationTexts, NamedDraft
from .precision import PrecisionPlan
from .proving.prove import prove
from .recipe_choice import Quantizing
from .stage_cache import open_cache


@dataclass(frozen=True)
class ResolvedDraft:
    """A draft that fits the bundle's target. translation: where it has another tokenizer."""

    name: str
    checkpoint: Checkpoint
    translation: Translation | None
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        name: str,
        checkpoint: Checkpoint,
        target: Tokens,
        target_bytes: int,
        min_overlap: float,
        texts: CalibrationTexts,
    ) -> ResolvedDraft:
        """target_bytes: of its weights in fp32. Raises `CheckpointError`, and `PairError` for a draft of too many other
        tokens.
        """
        translation, warnings = None, list[str]()
        if not checkpoint.taps:
            translation, warnings = translate(target, checkpoint, min_overlap, texts.texts)
            warnings += too_large(checkpoint, target_bytes)
        lines = tuple(f"draft {name}: {line}" for line in (*checkpoint.warnings, *warnings))
        return cls(name, checkpoint, translation, lines)

    def export(self, numbers: PrecisionPlan, texts: CalibrationTexts, dialects: Iterable[str]) -> ModelExport:
        """As engine `onnxruntime` runs it, the only one that runs drafts other than the first.

        dialects: of the bundle's graphs.
        """
        ours = tuple(dialect for dialect in ORT_DIALECTS if dialect in dialects)
        quantizing = Quantizing.of(numbers, "draft", texts, ours)
        return ModelExport(self.checkpoint, "draft", ours, quantizing, engines=(NAME,), name=self.name)


def check_addable(manifest: Manifest, name: str) -> None:
    """Raises `ParameterError` where the bundle cannot have one more draft, or not this one; `EngineError` where this
    host cannot prove it.
    """
    if NAME not in manifest.engines:
        raise ParameterError(
            f"additional drafts run only with --engine {NAME}, and the bundle was built for "
            f"{', '.join(manifest.engines)}; build it for {NAME} too",
            "draft",
        )
    if manifest.first_draft in (NO_DRAFT, name) and manifest.engines != (NAME,):
        raise ParameterError(
            f"{name!r} would be the bundle's first draft, which is also built for {', '.join(manifest.engines)}; "
            "build the bundle again, or give the draft another name",
            "draft",
        )
    if "kernels" in manifest.target.graphs and not (found := kernels.availability()).usable:
        raise EngineError(
            f"the draft is to run on specexport-kernels as the bundle does, and {found.detail}; {found.remedy}",
            code="engine_unavailable",
        )


def put_draft(
    bundle: Bundle, draft: ResolvedDraft, export: ModelExport, min_overlap: float, cache: Path, progress: Timed
) -> Bundle:
    """Export, prove and add it, or replace the one of its name. export: of `draft`.

    Raises what an export and a proof raise, and `OutputError` where another command changed the bundle meanwhile.
    """
    manifest, contract, folder = bundle.manifest, bundle.manifest.contract, bundle.root / DRAFTS / draft.name
    with temporary_folder(folder) as staging_dir:
        require_space_for({export.key(contract): export.weight_bytes(contract)}, cache, staging_dir)
        context = BuildContext(contract, staging_dir, cache, progress)
        spec = export_model(export, context)
        kept = draft.checkpoint.kept_tokens
        if kept is not None:
            vocabulary: SharedVocabulary | None = write_kept_tokens(kept, manifest.target.vocab_size, staging_dir)
        else:
            vocabulary = write_maps(draft.translation, manifest.target, spec, min_overlap, staging_dir)
        with progress.stage(f"prove {draft.name}", len(spec.graphs)) as step:
            spec = prove(staging_dir, "draft", spec, contract, (NAME,), step)
        files = list_files(staging_dir)
        place = folder.with_name(f"{draft.name}-{_digest(files)}")
        inside = f"{DRAFTS}/{place.name}"
        made = DraftSpec(draft.name, spec, vocabulary).inside(inside)
        added = {f"{inside}/{name}": entry for name, entry in files.items()}
        changed = with_draft(manifest, made, added)
        return replace_manifest(bundle, changed, staging_dir.parent, {staging_dir: place})


def with_draft(manifest: Manifest, draft: DraftSpec, files: Mapping[str, FileEntry]) -> Manifest:
    """The manifest with `draft`, whose files are `files`, and without the one that it replaces."""
    named = {one.name: one for one in manifest.drafts} | {draft.name: draft}
    changed = replace(manifest, drafts=tuple(named.values()))
    kept = {**manifest.files, **files}
    gone = set(manifest.referenced_files()) - set(changed.referenced_files())
    return replace(changed, files={path: entry for path, entry in kept.items() if path not in gone})


def _digest(files: Mapping[str, FileEntry]) -> str:
    text = json.dumps({name: asdict(entry) for name, entry in files.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class AddOptions:
    """precision: of the draft's weights. The default is the first draft's, or the target's if there is no draft.

    The others as of `BuildOptions`.
    """

    precision: str | None = None
    min_overlap: float = 0.5
    calibration_texts: Path | None = None
    cache: Path | None = None

    def of(self, manifest: Manifest) -> BuildOptions:
        """The options for building this bundle on the CPU. Raises `ParameterError`."""
        contract = manifest.contract
        return BuildOptions(
            max_seq_len=contract.capacity,
            max_draft_tokens=contract.max_draft_tokens,
            prompt_chunk=contract.prompt_chunk,
            min_overlap=self.min_overlap,
            precision=stored_as(contract, manifest.target),
            cache_precision=contract.cache_precision,
            draft_precision=self.precision or stored_as(contract, [*manifest.pair.values()][-1]),
            calibration_texts=self.calibration_texts,
            cache=self.cache,
        )


def stored_as(contract: Contract, model: ModelSpec) -> str:
    """What `--precision` calls the weights of a model."""
    return contract.precision if model.format == "float" else model.format


def add_draft(
    bundle: Bundle, named: NamedDraft, options: AddOptions | None = None, progress: BuildProgress | None = None
) -> BuildReport:
    """Export and prove a draft, and add it to the bundle, or replace the one of its name.

    Calibration results stay unless a draft is replaced. Raises `ParameterError`, `EngineError`, `CheckpointError`,
    `PairError`, `ProofError`, `OutputError`; the bundle is then unchanged.
    """
    options, manifest = options or AddOptions(), bundle.manifest
    check_addable(manifest, named.name)
    building = options.of(manifest)
    timed, cache, texts = Timed(progress or Silent()), open_cache(options.cache or user_cache()), building.texts
    with timed.stage("check the draft", 1):
        checkpoint = find_own_draft(named.source)
        tokens, size = Tokens.of_bundle(bundle), 4 * manifest.target.num_parameters
        draft = ResolvedDraft.of(named.name, checkpoint, tokens, size, options.min_overlap, texts)
        limit, capacity = draft.checkpoint.max_positions, manifest.contract.capacity
        if limit and limit < capacity:
            raise ParameterError(
                f"the bundle's sequences have up to {capacity} tokens, but {named.source} has only {limit} positions; "
                f"choose another draft, or build the bundle again with --max-seq-len {limit}",
                "draft",
            )
        require_memory_for_copies({"draft": draft.checkpoint}, building, manifest.contract.prompt_chunk)
    for warning in draft.warnings:
        timed.note(f"warning: {warning}")
    if named.name in manifest.draft_names:
        timed.note(f"replaces the draft {named.name}")
    export = draft.export(building.numbers, texts, manifest.target.graphs)
    with output_errors(UNCHANGED):
        added = put_draft(bundle, draft, export, options.min_overlap, cache, timed)
    return BuildReport(added, tuple(timed.times), draft.warnings)
