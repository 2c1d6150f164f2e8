"""How one model's weights are to be stored, and the recipe found for that on calibration texts.

Recipes whose scales are of the type that a graph computes in.

TensorRT reads from its scale which type a DequantizeLinear gives, and fuses one that gives int4 blocks with its product
only when that is the product's type (TensorRT-RTX 1.7.1, see docs/quantization.md: scales in fp32 with a Cast are a
kernel of their own, which writes out the weight in half precision in every pass). So scales are rounded to half
precision before the values are, and whoever restores a weight by its recipe gets what the graph computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from ..bundle import Contract, Family, Fidelity, Format, Precision, Role
from ..engines.onnxruntime.session_options import saturates
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.half_precision import fp32_arithmetic
from .options import CalibrationTexts
from .precision import PrecisionPlan
from .weights.fidelity import calibration_tokens, measure_fidelity, split
from .weights.formats import INT4_HIGH, INT4_LOW, LARGEST, Float32, row_slices
from .weights.gptq import identity_scales
from .weights.recipe import LARGEST_LIMIT, SATURATING_LIMIT, Recipe, WeightRecipe
from .weights.search import RecipeOptions, choose

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
    def of(cls, numbers: PrecisionPlan, role: Role, texts: CalibrationTexts) -> Quantizing | None:
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
    step: Announce,
) -> Chosen:
    """Find the recipe on one part of the calibration texts, and how far it moves the model on the other.

    step: what is announced while it works.
    """
    longest = min(LONGEST, checkpoint.max_positions or LONGEST)
    with fp32_arithmetic(model):
        used, held = split(calibration_tokens(checkpoint.tokenizer, quantizing.texts.texts, longest))
        scale_cast = (
            partial(rounded, precision=contract.precision) if quantizing.family == "tensorrt" else identity_scales
        )
        options = RecipeOptions(static_activations=quantizing.texts.own, limit=quantizing.limit, scale_cast=scale_cast)
        recipe = choose(model, used, quantizing.format, quantizing.family, options, step)
        if quantizing.family == "tensorrt":
            recipe = in_precision(recipe, contract.precision)
        step("measure fidelity")
        text = tuple(int(token) for batch in held for token in batch.flatten())
        return Chosen(recipe, measure_fidelity(model, recipe, held, quantizing.texts.own), text)


TYPES: dict[Precision, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
# Positive whatever is rounded to them: a scale of 0 is refused by TensorRT.
LEAST: dict[Precision, float] = {"fp16": 2.0**-24, "bf16": 2.0**-126}


@dataclass(frozen=True, eq=False)
class HalfScales(WeightRecipe):
    """A recipe with scales that `precision` holds; it gives them as float32."""

    precision: Precision = "fp16"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert not self.signed, "TensorRT takes positive scales only"
        assert self.input_scale is None or self.input_scale == float(
            rounded(np.float32(self.input_scale), self.precision)
        )

    def quantize(self, weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
        values, scales = super().quantize(weight)
        held = rounded(scales, self.precision)
        if self.stored is not None:
            assert np.array_equal(held, scales), "values were chosen for scales that this precision does not hold"
            return values, scales
        # To the scales as they are now: what a rounded scale does to a value is less than half a step then.
        grouped = held.reshape(len(held), -1, 1)
        for rows in row_slices(weight.shape):
            blocks = weight[rows].reshape(-1, grouped.shape[1], weight.shape[1] // grouped.shape[1]) / grouped[rows]
            values[rows] = self._rounded(blocks).reshape(-1, weight.shape[1])
        return values, held

    def _rounded(self, blocks: Float32) -> npt.NDArray[Any]:
        if self.format == "fp8":
            return np.clip(blocks, -LARGEST, LARGEST)
        low, high = (-self.limit, self.limit) if self.format == "int8" else (INT4_LOW, INT4_HIGH)
        return np.clip(np.rint(blocks), low, high)


def in_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The same, for graphs whose other values are of `precision`; in fp32 it is the recipe itself."""
    if precision == "fp32":
        return recipe
    weights = {name: _halved(own, precision) for name, own in recipe.weights.items()}
    return replace(recipe, weights=weights)


def rounded(scales: Any, precision: Precision) -> Any:
    """float32 that `precision` holds, positive."""
    return np.maximum(scales, LEAST[precision]).astype(TYPES[precision]).astype(np.float32)


def _halved(own: WeightRecipe, precision: Precision) -> WeightRecipe:
    given = {field.name: getattr(own, field.name) for field in fields(WeightRecipe)}
    if own.input_scale is not None:
        given["input_scale"] = float(rounded(np.float32(own.input_scale), precision))
    return HalfScales(**given, precision=precision)
