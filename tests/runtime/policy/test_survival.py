"""Curves, survival and the draft's own confidence."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from specexport.errors import BundleError
from specexport.runtime.policy.survival import LOGIT_LIMIT, SURVIVAL_VERSION, Curve, Survival, top_logit
from specexport.strict import parse
from support.refusals import refused

RISING = Curve((-2.0, 0.0, 1.0), (0.1, 0.3, 0.9))


@pytest.mark.parametrize(
    ("logit", "chance"),
    [
        (-9.0, 0.1),
        (-2.0, 0.1),
        (-1.0, 0.2),
        (0.0, 0.3),
        (0.25, 0.45),
        (1.0, 0.9),
        (7.0, 0.9),
        (-math.inf, 0.1),
        (math.inf, 0.9),
    ],
)
def test_a_curve_is_lines_between_its_points_and_level_beyond(logit: float, chance: float) -> None:
    assert RISING(logit) == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize(
    ("logits", "chances"),
    [
        ((), ()),
        ((0.0, 1.0), (0.5,)),
        ((1.0, 0.0), (0.5, 0.6)),
        ((1.0, 1.0), (0.5, 0.6)),
        ((0.0, math.inf), (0.5, 0.6)),
        ((math.nan,), (0.5,)),
        ((0.0,), (1.01,)),
        ((0.0,), (-0.01,)),
        ((0.0,), (math.nan,)),
    ],
)
def test_what_is_no_curve_is_refused(logits: tuple[float, ...], chances: tuple[float, ...]) -> None:
    with refused(ValueError, "curve"):
        Curve(logits, chances)


def test_the_last_curve_serves_all_further_positions() -> None:
    survival = Survival(SURVIVAL_VERSION, "b", "probability", (RISING, Curve((0.0,), (0.7,))))
    assert [survival.chance(index, 0.0) for index in range(4)] == [0.3, 0.7, 0.7, 0.7]


@pytest.mark.parametrize(
    "changed",
    [
        {"schema_version": SURVIVAL_VERSION + 1},
        {"curves": ()},
    ],
)
def test_a_survival_that_does_not_fit_itself_is_refused(changed: dict[str, object]) -> None:
    given = {
        "schema_version": SURVIVAL_VERSION,
        "bundle": "b",
        "signal": "probability",
        "curves": (RISING,),
    }
    with refused(ValueError):
        Survival(**{**given, **changed})  # type: ignore[arg-type]


def test_an_unknown_signal_is_named() -> None:
    value = asdict(Survival(SURVIVAL_VERSION, "b", "probability", (RISING,)))
    with refused(BundleError, field="survival.json.signal"):
        parse(Survival, json.loads(json.dumps({**value, "signal": "magic"})), "survival.json")


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_top_logit_is_the_log_odds_of_the_largest_probability(spread: float) -> None:
    for seed in range(20):
        row = (np.random.default_rng(seed).normal(size=300) * spread + 50).astype(np.float32)
        top = softmax(row).max()
        assert top_logit(row) == pytest.approx(math.log(top / (1 - top)), abs=2e-3)


def test_top_logit_ignores_tokens_that_cannot_come() -> None:
    row = np.array([1.0, -np.inf, 3.0, -np.inf], np.float32)
    assert top_logit(row) == pytest.approx(2.0, abs=1e-6)


def test_top_logit_stays_within_its_limit() -> None:
    assert top_logit(np.array([0.0, 500.0], np.float32)) == LOGIT_LIMIT  # nothing is left of the others
    assert top_logit(np.array([0.0, 13.5], np.float32)) == LOGIT_LIMIT
    assert top_logit(np.array([5.0], np.float32)) == LOGIT_LIMIT
    assert top_logit(np.zeros(400_000, np.float32)) == -LOGIT_LIMIT


@pytest.mark.parametrize("row", [[1.0, np.nan, 0.0], [np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_top_logit_of_what_is_no_distribution_is_nan(row: list[float]) -> None:
    assert math.isnan(top_logit(np.array(row, np.float32)))
