"""fp8: the largest magnitude of a row becomes 448, and nothing becomes a NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from specexport.exporter.weights.formats import LARGEST, fp8_per_output, restore

RNG = np.random.default_rng(0)


def test_normal_values_err_by_a_sixteenth_at_most() -> None:
    weight = (RNG.standard_normal((16, 64)) * np.exp2(RNG.integers(-10, 10, (16, 1)))).astype(np.float32)
    weight[3] = 0
    values, scales = fp8_per_output(weight)
    assert values.dtype == ml_dtypes.float8_e4m3fn
    assert scales[3] == 1
    rest = np.arange(16) != 3
    assert (np.abs(values.astype(np.float32)).max(axis=1)[rest] == LARGEST).all()
    # Three bits behind the point; below 2^-6 the steps are 2^-9.
    bound = np.maximum(np.abs(weight) / 16, scales[:, None] * 2.0**-10) * 1.0001
    assert (np.abs(restore(values, scales) - weight) <= bound).all()


def test_the_largest_never_overflows() -> None:
    weight = np.exp2(RNG.uniform(-100, 100, (4096, 1))).astype(np.float32)
    values, scales = fp8_per_output(weight)
    assert np.isfinite(values.astype(np.float32)).all()
    assert np.allclose(restore(values, scales), weight, rtol=1e-6)
