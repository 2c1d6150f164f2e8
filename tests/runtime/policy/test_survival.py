"""Curves and survival."""

from __future__ import annotations

import math

import pytest
from specexport.runtime.policy.survival import SURVIVAL_VERSION, Curve, Survival
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
    survival = Survival(SURVIVAL_VERSION, "b", (RISING, Curve((0.0,), (0.7,))))
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
        "curves": (RISING,),
    }
    with refused(ValueError):
        Survival(**{**given, **changed})  # type: ignore[arg-type]
