"""Drafts in addition to the first: each has a folder of its own, `drafts/NAME-DIGEST`, with its graphs, weights, the
reference of the proof, and maps where it has another tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..bundle import DraftSpec, ModelSpec
from ..engines.onnxruntime.cpu import NAME
from .bundle_files import write_vocabulary
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.pair import too_large, translate
from .checkpoints.shared_vocabulary import Tokens, Translation
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

    def put(self, export: ModelExport, target: ModelSpec, min_overlap: float, context: BuildContext) -> DraftSpec:
        """Export it and prove it. export: of `export`. Raises what an export and a proof raise."""
        contract = context.contract
        # so that a session of an earlier bundle in this place, which opens a draft late, does not find another one
        inside = f"{DRAFTS}/{self.name}-{export.key(contract)[:8]}"
        folder = context.staging_dir / inside
        spec = export_model(export, replace(context, staging_dir=folder))
        maps = write_vocabulary(self.checkpoint, self.translation, target, spec, min_overlap, folder)
        with context.progress.stage(f"prove {self.name}", len(spec.graphs)) as step:
            spec = prove(folder, "draft", spec, contract, (NAME,), step)
        return DraftSpec(self.name, spec, maps).inside(inside)
