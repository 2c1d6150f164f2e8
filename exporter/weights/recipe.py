"""The quantization recipe of a model: how each weight is quantized, keyed by the name of its parameter.

Notes for the user of a build on what a recipe does to the model as a whole, one line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bundle import Format as Format
from .formats import Float32, fp8_per_output, int4_blocks, int8_blocks, int8_per_output, restore

BITS: dict[Format, int] = {"float": 32, "int8": 8, "fp8": 8, "int4": 4}
SCALE_BYTES = 4
# Limits of int8 weights: the first also works where x86's products saturate, the second where they do not.
SATURATING_LIMIT, LARGEST_LIMIT = 64, 127


@dataclass(frozen=True, eq=False)
class WeightRecipe:
    """How one weight [N, K] is quantized: N outputs (rows of a table), K inputs.

    block: inputs per scale, for int4 and for int8 tables that are only looked up; 0 for one scale per output.
    limit: for int8, the largest magnitude (64 keeps the sums of pairs of x86's int8 products below 2^15; TensorRT takes
    127).
    importance: for int4, [K], the mean square of each input, which weights the error in the search for scales.
    signed: for int4, whether scales may be negative (ONNX Runtime's MatMulNBits allows it, TensorRT does not).
    input_scale: static scale of the activations, such that x / input_scale is in the format's range; None for one scale
    per row.
    stored: values and scales that were chosen for this weight (`gptq.py`); None for rounding to nearest.
    weight_only: for int8 and fp8, whether the activations stay unquantized.
    """

    format: Format
    block: int = 0
    limit: int = SATURATING_LIMIT
    importance: Float32 | None = None
    signed: bool = False
    input_scale: float | None = None
    stored: tuple[npt.NDArray[np.int8], Float32] | None = None
    weight_only: bool = False

    def __post_init__(self) -> None:
        assert self.block >= 0
        assert 1 <= self.limit <= LARGEST_LIMIT
        assert self.input_scale is None or 0 < self.input_scale < np.inf

    def quantize(self, weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
        """Quantize a weight [N, K] float32, finite.

        Returns values [N, K] (int8; fp8: ml_dtypes.float8_e4m3fn) and scales [N] or [N, K / block].
        """
        assert self.format != "float", "a float weight has no values and scales"
        assert weight.ndim == 2
        assert weight.dtype == np.float32
        if self.stored is not None:
            assert self.stored[0].shape == weight.shape, "values were chosen for a weight of another shape"
            return self.stored
        if self.format == "int8" and self.block:
            return int8_blocks(weight, self.block, self.limit)
        if self.format == "int8":
            return int8_per_output(weight, self.limit)
        if self.format == "fp8":
            return fp8_per_output(weight)
        return int4_blocks(weight, self.block, self.importance, self.signed)

    def stored_bytes(self, outputs: int, inputs: int) -> float:
        """Bytes of a weight [outputs, inputs], with scales of 4 bytes."""
        blocks = inputs // self.block if self.block else 1
        return outputs * inputs * BITS[self.format] / 8 + SCALE_BYTES * outputs * blocks * (self.format != "float")

    def restore(self, weight: Float32) -> Float32:
        """Quantize and dequantize, [N, K] float32: the weight that the engine computes with."""
        return weight if self.format == "float" else restore(*self.quantize(weight))


@dataclass(frozen=True, eq=False)
class Recipe:
    """weights: by parameter name; all other parameters stay as they are. notes: what is kept in a higher format, and
    why.
    """

    weights: Mapping[str, WeightRecipe]
    notes: tuple[str, ...] = ()


def rounding_notes(
    weights: Mapping[str, WeightRecipe], layers: Set[str], stacks: Set[str], by_row: bool
) -> Iterator[str]:
    """Notes on static scales where scales per row were possible, and on second-order rounding.

    layers: weights that are multiplied; a table that is looked up rounds no activations. stacks: stacks of experts,
    which are rounded separately and have their own notes. by_row: whether the engine rounds row by row.
    """
    rounding = [own for name, own in weights.items() if name in layers and own.format == "int8" and by_row]
    if static := sum(recipe.input_scale is not None for recipe in rounding):
        yield f"{static} of {len(rounding)} layers in int8 round activations by a static scale, the others row by row"
    others = [own for name, own in weights.items() if name not in stacks]
    if chosen := sum(own.stored is not None for own in others):
        yield f"{chosen} of {len(others)} weights are rounded by GPTQ"


def limit_notes(weights: Mapping[str, WeightRecipe], layers: Set[str], by_row: bool) -> Iterator[str]:
    """A note on weights that are fast only on hosts whose products do not saturate."""
    largest = max((own.limit for name, own in weights.items() if name in layers and own.format == "int8"), default=0)
    if by_row and largest > SATURATING_LIMIT:
        yield (
            f"weights use int8 up to {largest}: CPUs without VNNI (x86) or dot products (ARM) run them by slower "
            "kernels, with the same results"
        )
