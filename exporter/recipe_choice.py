"""How one model's weights are to be stored, and the recipe chosen for that on calibration texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from ..bundle import Contract, Family, Fidelity, Format, Role
from ..engines.onnxruntime.session_options import saturates
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.half_precision import fp32_arithmetic
from .dialects import Dialect
from .hidden_drafts.base import HiddenDraft
from .options import CalibrationTexts
from .precision import PrecisionPlan
from .weights.choose import RecipeOptions, choose
from .weights.fidelity import BATCH_TOKENS, calibration_tokens, measure_fidelity, split
from .weights.recipe import LARGEST_LIMIT, SATURATING_LIMIT, Recipe, WeightRecipe

SLOW_ELSEWHERE = (
    f"weights use int8 up to {LARGEST_LIMIT}: without specexport-kernels, CPUs without VNNI (x86) or dot products "
    "(ARM) run them by slower kernels, with the same results"
)


@dataclass(frozen=True)
class Quantizing:
    """How a model's weights are stored, and for the engines of which family.

    texts: what its layers read meanwhile. limit: the largest magnitude of int8 weights on ONNX Runtime.
    by_ort: whether ONNX Runtime's own products are to compute with them too.
    """

    format: Format
    family: Family
    texts: CalibrationTexts
    limit: int = SATURATING_LIMIT
    by_ort: bool = False

    @classmethod
    def of(
        cls, numbers: PrecisionPlan, role: Role, texts: CalibrationTexts, dialects: Iterable[Dialect]
    ) -> Quantizing | None:
        """None for a model whose weights stay as they are. dialects: of the graphs to make."""
        form = numbers.formats[role]
        by_ort = numbers.family == "onnxruntime" and "ort" in dialects
        limit = SATURATING_LIMIT if by_ort and saturates() else LARGEST_LIMIT
        return cls(form, numbers.family, texts, limit, by_ort) if form != "float" else None


@dataclass(frozen=True)
class Chosen:
    """How each weight is stored, and what that does to the model's distributions.

    text: tokens that it was not chosen on, for the proof.
    """

    recipe: Recipe
    fidelity: Fidelity
    text: tuple[int, ...]


def _saturates(recipe: WeightRecipe) -> bool:
    """A table by blocks is only looked up."""
    return recipe.format == "int8" and recipe.limit > SATURATING_LIMIT and not recipe.block


def choose_recipe(
    quantizing: Quantizing,
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    contract: Contract,
    step: Callable[[str], None],
) -> Chosen:
    """Choose the recipe on one part of the calibration texts, and measure how far it moves the model on the other.

    step: what is announced while it works.
    """
    longest = min(BATCH_TOKENS, checkpoint.max_positions or BATCH_TOKENS)
    with fp32_arithmetic(model):
        used, held = split(calibration_tokens(checkpoint.tokenizer, quantizing.texts.texts, longest))
        # What a draft that reads hidden states gives back must stay what it was; its logits do not show that.
        changes = not isinstance(model, HiddenDraft)
        options = RecipeOptions(
            limit=quantizing.limit,
            scale_type=contract.precision,
            floats=model.fusing if isinstance(model, HiddenDraft) else (),
            rotating=changes,
            smoothing=changes,
        )
        recipe = choose(model, used, quantizing.format, quantizing.family, options, step)
        tokens = model.target_ids if isinstance(model, HiddenDraft) else None
        if quantizing.by_ort and any(_saturates(one) for one in recipe.weights.values()):
            recipe = replace(recipe, notes=(*recipe.notes, SLOW_ELSEWHERE))
        step("measure fidelity")
        text = tuple(int(token) for batch in held for token in batch.flatten())
        return Chosen(recipe, measure_fidelity(model, recipe, held, quantizing.texts.own, tokens), text)
