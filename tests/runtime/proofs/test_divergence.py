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


def test_it_counts_rows_and_not_pairs() -> None:
    one, far = np.zeros((1, 4), np.float32), np.array([[9.0, 0, 0, 0]] * 3, np.float32)
    assert divergence([(one, one), (far, -far)]).nats == pytest.approx(0.75 * divergence([(far, -far)]).nats)


def test_equal_distributions_and_none_at_all() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    assert divergence([(logits, logits + np.float32(2))]).nats < 1e-12
    assert divergence([]).nats == 0


def test_tokens_that_are_banned_in_both_have_no_difference() -> None:
    banned = np.array([[0.0, 1.0, -np.inf]], np.float32)
    assert divergence([(banned, banned)]).nats == 0


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(divergence([(np.zeros((1, 2), np.float32), np.array([[np.nan, 0]], np.float32))]).nats)
