"""How one model's weights are to be stored, and the recipe found for that on calibration texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel

from ..bundle import Contract, Family, Fidelity, Format, Role
from ..calibration.weights.fidelity import measure_fidelity, split
from ..calibration.weights.gptq import as_they_are
from ..calibration.weights.recipe import LARGEST_LIMIT, SATURATING_LIMIT, Recipe
from ..calibration.weights.search import RecipeOptions, choose
from ..calibration.weights.tokens import calibration_tokens
from ..engines.onnxruntime.products import saturates
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.half_precision import fp32_arithmetic
from .checkpoints.kept_tokens import KeptTokens
from .quantize.scales import in_precision, rounded
from .request.options import CalibrationTexts
from .request.precision_choice import Numbers

# Tokens of a calibration text that the model reads at once.
LONGEST = 256

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Quantizing:
    """How a model's weights are stored, and for the engines of which family.

    texts: what its layers are fed meanwhile. Where they are the user's own, a static scale of activations that is as
    good on them may be used on a CPU. limit: the largest magnitude of int8 weights on ONNX Runtime.
    """

    format: Format
    family: Family
    texts: CalibrationTexts
    limit: int = SATURATING_LIMIT

    @classmethod
    def of(cls, numbers: Numbers, role: Role, texts: CalibrationTexts) -> Quantizing | None:
        """None for a model whose weights stay as they are."""
        form = numbers.formats[role]
        slow = numbers.family == "onnxruntime" and saturates()
        limit = SATURATING_LIMIT if slow else LARGEST_LIMIT
        return cls(form, numbers.family, texts, limit) if form != "float" else None


@dataclass(frozen=True)
class Chosen:
    """How each weight is stored, and what that does to the model's distributions.

    text: tokens that it was not chosen on, for the proof.
    """

    recipe: Recipe
    fidelity: Fidelity
    text: tuple[int, ...]


def choose_recipe(
    quantizing: Quantizing,
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    contract: Contract,
    kept: KeptTokens | None,
    step: Announce,
) -> Chosen:
    """Find the recipe on one part of the calibration texts, and how far it moves the model on the other.

    kept: of a draft's vocabulary; the model has its weights alone. step: what is announced while it works.
    """
    longest = min(LONGEST, checkpoint.max_positions or LONGEST)
    with fp32_arithmetic(model):
        used, held = split(calibration_tokens(checkpoint.tokenizer, quantizing.texts.texts, longest))
        hold = partial(rounded, precision=contract.precision) if quantizing.family == "tensorrt" else as_they_are
        options = RecipeOptions(static_activations=quantizing.texts.own, limit=quantizing.limit, hold=hold)
        recipe = choose(model, used, quantizing.format, quantizing.family, options, step)
        if quantizing.family == "tensorrt":
            recipe = in_precision(recipe, contract.precision)
        step("measure fidelity")
        text = tuple(int(token) for batch in held for token in batch.flatten())
        rows = None if kept is None else kept.rows
        return Chosen(recipe, measure_fidelity(model, recipe, held, quantizing.texts.own, rows), text)
