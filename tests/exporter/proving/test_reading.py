"""How far hidden states may be off, where some tokens have states a thousand times those of others."""

from __future__ import annotations

import numpy as np
from specexport.exporter.proving.reading import furthest

TOLERANCE = 1e-3
WANTED = np.array([[1.0, -2.0, 0.5], [20_000.0, 3.0, -1.0], [0.3, 0.2, -0.4]], np.float32)


def test_a_row_rounds_by_its_own_largest_number() -> None:
    ours = WANTED.copy()
    ours[1, 1] += 2.0  # 67 % of this number, and a ten thousandth of the one that it is summed with
    row, off, allowed = furthest(ours, WANTED, WANTED, TOLERANCE)
    assert off <= allowed
    assert (row, off) == (1, np.float32(1e-4))


def test_a_wrong_row_does_not_hide_behind_a_large_one() -> None:
    ours = WANTED.copy()
    ours[2] *= 1.01
    row, off, allowed = furthest(ours, WANTED, WANTED, TOLERANCE)
    assert row == 2
    assert off > allowed
    row, off, allowed = furthest(ours, WANTED, ours, TOLERANCE)  # as far as caches round it
    assert off <= allowed


def test_what_is_not_a_number_is_off() -> None:
    ours = WANTED.copy()
    ours[0, 0] = np.nan
    row, off, allowed = furthest(ours, WANTED, WANTED, TOLERANCE)
    assert row == 0
    assert not off <= allowed


def test_a_row_of_zeros_has_no_largest_number() -> None:
    zeros = np.zeros((1, 3), np.float32)
    assert furthest(zeros, zeros, zeros, TOLERANCE)[1:] == (0, np.float32(TOLERANCE))
    _, off, allowed = furthest(zeros + np.float32(2 * TOLERANCE), zeros, zeros, TOLERANCE)
    assert off > allowed
