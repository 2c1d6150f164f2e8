"""One more draft for a bundle that is there: its own export and proof, and a new manifest.

Its files have a folder of their own, `drafts/NAME-DIGEST`: graphs, weights, the reference of the proof, and maps where
it has another tokenizer. The folder is put into place first, and then the manifest, in one step: until then,
whatever happens, the bundle is unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..bundle import (
    NO_DRAFT,
    Bundle,
    DraftSpec,
    FileEntry,
    Manifest,
    list_files,
)
from ..engines.onnxruntime.cpu import NAME
from ..errors import ParameterError
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.pair import OwnTokens, translate
from .checkpoints.shared_vocabulary import Translation
from .context import BuildContext
from .export_model import ModelExport, export_model
from .progress import Timed
from .proving.prove import prove
from .recipe_choice import Quantizing
from .request.drafts import NamedDraft
from .request.options import CalibrationTexts
from .request.precision_choice import Numbers
from .storage.atomic_folder import temporary_sibling
from .storage.disk_space import require_space_for
from .storage.manifest import write_maps
from .storage.replace_manifest import DRAFTS, replace_manifest


@dataclass(frozen=True)
class FoundDraft:
    """A draft as it was found, fit for the bundle's target. translation: where it has another tokenizer."""

    name: str
    checkpoint: Checkpoint
    translation: Translation | None
    warnings: tuple[str, ...]

    @classmethod
    def find(cls, named: NamedDraft, target: OwnTokens, min_overlap: float, texts: CalibrationTexts) -> FoundDraft:
        """Raises `CheckpointError`, and `PairError` for a draft of too many other tokens."""
        checkpoint = Checkpoint.find(named.source)
        translation, warnings = translate(target, checkpoint, min_overlap, texts.texts)
        told = tuple(f"draft {named.name}: {line}" for line in (*checkpoint.warnings, *warnings))
        return cls(named.name, checkpoint, translation, told)

    def export(self, numbers: Numbers, texts: CalibrationTexts) -> ModelExport:
        """As engine `onnxruntime` runs it, the only one that runs drafts other than the first."""
        quantizing = Quantizing.of(numbers, "draft", texts)
        return ModelExport(self.checkpoint, "draft", ("ort",), quantizing, engines=(NAME,), name=self.name)


def check_addable(manifest: Manifest, name: str) -> None:
    """Raises `ParameterError` where the bundle cannot have one more draft, or not this one."""
    if NAME not in manifest.engines:
        raise ParameterError(
            f"additional drafts run only with --engine {NAME}, and the bundle was built for "
            f"{', '.join(manifest.engines)}; build it for {NAME} too"
        )
    if manifest.first_draft in (NO_DRAFT, name) and manifest.engines != (NAME,):
        raise ParameterError(
            f"{name!r} would be the bundle's first draft, which is also built for {', '.join(manifest.engines)}; "
            "build the bundle again, or give the draft another name"
        )


def put_draft(
    bundle: Bundle, draft: FoundDraft, export: ModelExport, min_overlap: float, cache: Path, progress: Timed
) -> Bundle:
    """Export, prove and add it, or replace the one of its name. export: of `draft`.

    Raises what an export and a proof raise, and `OutputError` where another command changed the bundle meanwhile.
    """
    manifest, contract, folder = bundle.manifest, bundle.manifest.contract, bundle.root / DRAFTS / draft.name
    with temporary_sibling(folder) as workplace:
        require_space_for({export.key(contract): export.weight_bytes(contract)}, cache, workplace)
        context = BuildContext(contract, workplace, cache, progress)
        spec = export_model(export, context)
        vocabulary = write_maps(draft.translation, manifest.target, spec, min_overlap, workplace)
        with progress.stage(f"prove {draft.name}", len(spec.graphs)) as step:
            spec = prove(workplace, "draft", spec, contract, (NAME,), step)
        files = list_files(workplace)
        place = folder.with_name(f"{draft.name}-{_digest(files)}")
        inside = f"{DRAFTS}/{place.name}"
        made = DraftSpec(draft.name, spec, vocabulary).inside(inside)
        added = {f"{inside}/{name}": entry for name, entry in files.items()}
        return replace_manifest(bundle, with_draft(manifest, made, added), workplace.parent, (workplace, place))


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
