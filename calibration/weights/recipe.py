"""What is done to each weight of a model, keyed by the name of its parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bundle import Format as Format
from . import floats, integers
from .integers import Float32


@dataclass(frozen=True, eq=False)
class WeightRecipe:
    """One weight [N, K]: N outputs (rows of a table), K inputs.

    block: int4, inputs that share a scale; 0: one scale an output. limit: int8, the largest magnitude (64 keeps x86's
    sums of pairs below 2^15, TensorRT takes 127). importance: int4, [K], the mean square of each input, which weighs
    the error in the search of the scales. signed: int4, scales may be negative (ONNX Runtime's MatMulNBits takes them,
    TensorRT does not).
    input_scale: a static scale of the activations: x / input_scale lies in the integer's (or fp8's) range; None: a
    scale a row.
    """

    format: Format
    block: int = 0
    limit: int = 64
    importance: Float32 | None = None
    signed: bool = False
    input_scale: float | None = None

    def __post_init__(self) -> None:
        assert self.block >= 0
        assert 1 <= self.limit <= 127
        assert self.input_scale is None or 0 < self.input_scale < np.inf

    def quantize(self, weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
        """weight: [N, K] float32, finite.

        Gives values [N, K] (int8; fp8: ml_dtypes.float8_e4m3fn) and scales [N] or [N, K / block].
        """
        assert self.format != "float", "a float weight has no values and scales"
        assert weight.ndim == 2
        assert weight.dtype == np.float32
        if self.format == "int8":
            return integers.int8_per_output(weight, self.limit)
        if self.format == "fp8":
            return floats.fp8_per_output(weight)
        return integers.int4_blocks(weight, self.block, self.importance, self.signed)

    def restore(self, weight: Float32) -> Float32:
        """Quantized and back, [N, K] float32: the weight that the engine computes with."""
        return weight if self.format == "float" else integers.restore(*self.quantize(weight))


@dataclass(frozen=True, eq=False)
class Recipe:
    """weights: by parameter name; what is not named stays as it is. notes: what was kept in a higher format, and
    why, and what rounds by static scales.
    """

    weights: Mapping[str, WeightRecipe]
    notes: tuple[str, ...] = ()
