from __future__ import annotations

import math

import numpy as np
import pytest
from specexport.runtime.proofs.divergence import divergence


def test_it_is_the_mean_over_rows() -> None:
    one = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
    other = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)) + np.float32(3)
    found = divergence([(one, other)])
    assert found.rows == 2
    assert found.nats == pytest.approx(0.5 * (0.5 * math.log(2) + 0.5 * math.log(2 / 3)), rel=1e-5)
    assert found.agreement == 0.5


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(divergence([(np.zeros((1, 2), np.float32), np.array([[np.nan, 0]], np.float32))]).nats)
