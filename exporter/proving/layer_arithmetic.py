"""What a quantized layer gives for given inputs, worked out in double precision from the checkpoint's weight and its
recipe, and how far a right product in fp32 may be from that.

The allowance is arithmetic. With u = 2^-24, the error of one rounding of fp32:

- Scales, casts and a bias are a few roundings, `ROUNDINGS` u of what they apply to. Sums of integers are exact.
- A sum of n products in fp32, in any order, errs by at most n u of the sum of their magnitudes, and by more than
  8 sqrt(n) u with a probability below 1e-13 (Higham and Mary 2019, SIAM J. Sci. Comput. 41, theorem 2.4, lambda = 8:
  2 exp(-lambda^2 / 2)). The smaller of the two is allowed.
- An activation is rounded to a step. What it is divided by is rounded itself, so that a value within `EDGE` of the edge
  between two steps may become either. Only for such a value the difference of the two, times its weight, is allowed.

No format or model has a tolerance of its own, and a scale that is wrong by two thousandths is seen in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..kernels.layouts import BLOCK
from ..weights.recipe import LARGEST, Float32, WeightRecipe, row_slices

Float64 = NDArray[np.float64]
REPORT = "report this with the checkpoint's config.json"
ROUNDING = 2.0**-24
ROUNDINGS = 8
LAMBDA = 8
# A weight is worked on in pieces of so many of the slices that it is quantized in: 4 million elements in double
# precision, whatever the layer's size.
SLICES = 32
# Of a value, in steps: a quotient or two of rounded numbers, as a graph or a kernel writes it.
EDGE = 8 * ROUNDING


@dataclass(frozen=True)
class Rounded:
    """values: `[R, K]`, the inputs as they are multiplied. slack: by how much they may be another step, mostly 0.

    summed: how many terms are summed in fp32 for an output; 1 where the product is exact in integers.
    """

    values: Float64
    slack: Float64
    summed: int


def layer_error(
    form: str, recipe: WeightRecipe, weight: Float32, inputs: Float32, outputs: Float32, bias: Float32 | None = None
) -> float:
    """The largest difference of `outputs [R, N]` from what the operator `form` makes of `inputs [R, K]` and `weight
    [N, K]`, as a multiple of what is allowed.

    Where kernels may choose how to round, by that choice which fits best. bias: `[N]`, where the product has it.
    Infinite for what is no number.
    """
    stored, scales = recipe.quantize(weight)
    added = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
    choices = list(ROUNDED[form](recipe, inputs.astype(np.float64)))
    worst = [0.0] * len(choices)
    for rows in row_slices((len(weight), weight.shape[1] // SLICES)):
        grouped = scales[rows].astype(np.float64).reshape(len(scales[rows]), -1, 1)
        blocks = stored[rows].astype(np.float64).reshape(len(grouped), grouped.shape[1], -1)
        restored = (blocks * grouped).reshape(len(grouped), -1)
        for choice, rounded in enumerate(choices):
            off = _off(rounded, restored, added[rows], outputs[:, rows])
            worst[choice] = max(worst[choice], off)
    return min(worst)


def _off(rounded: Rounded, weight: Float64, bias: Float64, outputs: Float32) -> float:
    values = rounded.values @ weight.T + bias
    magnitudes = np.abs(rounded.values).astype(np.float32) @ np.abs(weight).T.astype(np.float32) + np.abs(bias)
    sums = min(rounded.summed, LAMBDA * np.sqrt(rounded.summed)) if rounded.summed > 1 else 0
    allowed = (ROUNDINGS + sums) * ROUNDING * magnitudes + np.finfo(np.float32).tiny
    edges = np.flatnonzero(rounded.slack.any(0))
    if edges.size:
        allowed += rounded.slack[:, edges] @ np.abs(weight[:, edges]).T
    with np.errstate(invalid="ignore"):
        ratio = np.abs(outputs - values) / allowed
    return float(ratio.max(initial=0.0)) if np.isfinite(ratio).all() else np.inf


def _integers(recipe: WeightRecipe, inputs: Float64) -> Iterator[Rounded]:
    """Products of integers, of rows with a scale each."""
    yield Rounded(*_stepped(inputs, _largest(inputs) / 127, _int8), summed=1)


def _int4_rows(recipe: WeightRecipe, inputs: Float64) -> Iterator[Rounded]:
    """LinearInt4: rows with a scale each; of a block of weights the sum is exact, blocks are summed in fp32."""
    rounded = next(_integers(recipe, inputs))
    yield replace(rounded, summed=-(-inputs.shape[1] // BLOCK))


def _blocks(recipe: WeightRecipe, inputs: Float64) -> Iterator[Rounded]:
    """MatMulNBits: a host's kernel rounds the inputs to int8 by blocks, or they stay as they are for want of one."""
    block = recipe.block or inputs.shape[1]
    by_block = inputs.reshape(len(inputs), -1, block)
    values, slack = _stepped(by_block, _largest(by_block) / 127, _int8)
    yield Rounded(values.reshape(inputs.shape), slack.reshape(inputs.shape), summed=inputs.shape[1])
    yield Rounded(inputs, np.zeros_like(inputs), summed=inputs.shape[1])


def _dequantized(recipe: WeightRecipe, inputs: Float64) -> Iterator[Rounded]:
    """A product of restored weights: with inputs rounded by one scale for all, or as they are."""
    values, slack = inputs, np.zeros_like(inputs)
    if recipe.input_scale is not None and recipe.format in ("int8", "fp8"):
        nearest = _int8 if recipe.format == "int8" else _fp8
        values, slack = _stepped(inputs, np.full((len(inputs), 1), recipe.input_scale), nearest)
    yield Rounded(values, slack, summed=inputs.shape[1])


# By the form of the product, as `quantized_ops.py` finds it.
ROUNDED: dict[str, Callable[[WeightRecipe, Float64], Iterator[Rounded]]] = {
    "LinearInt8": _integers,
    "LinearInt4": _int4_rows,
    "MatMulInteger": _integers,
    "MatMulNBits": _blocks,
    "DequantizeLinear": _dequantized,
}


def _largest(values: Float64) -> Float64:
    """Of the last axis, kept; 1 where all of it is 0."""
    largest: Float64 = np.abs(values).max(-1, keepdims=True)
    return np.where(largest > 0, largest, 1.0)


def _stepped(values: Float64, step: Float64, nearest: Callable[[Float64], Float64]) -> tuple[Float64, Float64]:
    """The values in whole steps, and by how much those at an edge may be another."""
    scaled = values / step
    slack = np.abs(nearest(scaled * (1 + EDGE)) - nearest(scaled * (1 - EDGE)))
    return nearest(scaled) * step, slack * step


def _int8(steps: Float64) -> Float64:
    return np.clip(np.rint(steps), -128, 127)


def _fp8(steps: Float64) -> Float64:
    # by way of fp32, as a graph casts it
    return np.clip(steps, -LARGEST, LARGEST).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
