"""Weights in fp8 (e4m3, as ONNX's FLOAT8E4M3FN) with one scale per output."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .integers import Float32, per_output, row_slices

# The largest finite e4m3 (Micikevicius et al. 2022, arXiv 2209.05433, table 1).
LARGEST = 448.0


def fp8_per_output(weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
    """(values [N, K] as ml_dtypes.float8_e4m3fn, scales [N]). weight: [N, K]. A row of zeros gets the scale 1."""
    import ml_dtypes

    scales = per_output(weight, LARGEST)
    values = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
    for rows in row_slices(weight.shape):
        # Clipped first: e4m3fn has no infinity, and values that round above 448 would become NaN.
        values[rows] = np.clip(weight[rows] / scales[rows, None], -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return values, scales
