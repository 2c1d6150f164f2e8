"""Drafts in addition to the first: each has a folder of its own, `drafts/NAME-DIGEST`, with its graphs, weights, the
reference of the proof, and maps where it has another tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..bundle import DraftSpec, ModelSpec, Role
from ..engines.onnxruntime.cpu import NAME
from .bundle_files import write_vocabulary
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.pair import check_models
from .checkpoints.shared_vocabulary import Translation
from .dialects import ORT_DIALECTS
from .export_model import ModelExport, export_model
from .options import BuildContext, CalibrationTexts
from .precision import PrecisionPlan
from .proving.prove import prove
from .recipe_choice import Quantizing

DRAFTS = "drafts"


@dataclass(frozen=True)
class ResolvedDraft:
    """A draft that fits the bundle's target. translation: where it has another tokenizer."""

    name: str
    checkpoint: Checkpoint
    translation: Translation | None
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, checkpoint: Checkpoint, target: Checkpoint, min_overlap: float, texts: CalibrationTexts
    ) -> ResolvedDraft:
        """Raises `CheckpointError`, and `PairError` for a draft of too many other tokens."""
        models: dict[Role, Checkpoint] = {"target": target, "draft": checkpoint}
        translation, warnings = check_models(models, min_overlap, texts.texts)
        lines = tuple(f"draft {name}: {line}" for line in (*checkpoint.warnings, *warnings))
        return cls(name, checkpoint, translation, lines)

    def export(self, numbers: PrecisionPlan, texts: CalibrationTexts, dialects: Iterable[str]) -> ModelExport:
        """As engine `onnxruntime` runs it, the only one that runs drafts other than the first.

        dialects: of the bundle's graphs.
        """
        ours = tuple(dialect for dialect in ORT_DIALECTS if dialect in dialects)
        quantizing = Quantizing.of(numbers, "draft", texts, ours)
        return ModelExport(self.checkpoint, "draft", ours, quantizing, engines=(NAME,), name=self.name)

    def put(self, export: ModelExport, target: ModelSpec, min_overlap: float, context: BuildContext) -> DraftSpec:
        """Export it and prove it. export: of `export`. Raises what an export and a proof raise."""
        contract = context.contract
        # so that a session of an earlier bundle in this place, which opens a draft late, does not find another one
        inside = f"{DRAFTS}/{self.name}-{export.key(contract)[:8]}"
        folder = context.staging_dir / inside
        spec = export_model(export, replace(context, staging_dir=folder))
        sizes = target.vocab_size, spec.vocab_size
        maps = write_vocabulary(self.checkpoint, self.translation, *sizes, min_overlap, folder)
        with context.progress.stage(f"prove {self.name}", len(spec.graphs)) as step:
            spec = prove(folder, "draft", spec, contract, (NAME,), step)
        return DraftSpec(self.name, spec, maps).inside(inside)
