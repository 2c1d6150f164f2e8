"""Survival fitted on drafts whose true chances are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from specexport.calibration.measuring.record import JudgedTokens
from specexport.calibration.statistics.results import EstimateQuality
from specexport.calibration.survival.curves import MIN_CHANCE, POINTS, PRIOR_TOKENS
from specexport.calibration.survival.fit import fit_survival
from specexport.calibration.survival.quality import judge
from specexport.runtime.policy.survival import Survival

Array = np.ndarray


def sigmoid(logit: Array) -> Array:
    return 1 / (1 + np.exp(-logit))


def draft(chances: Array, confidence: Array, rounds_a_request: int = 20, seed: int = 99) -> tuple[JudgedTokens, Array]:
    """Rounds cut after the first rejection, and the chances of what is left. chances, confidence: `[rounds, k]`."""
    accepted = np.random.default_rng(seed).random(chances.shape) < chances
    reached = np.cumprod(np.column_stack([np.ones(len(accepted), bool), accepted[:, :-1]]), axis=1).astype(bool)
    rounds, index = np.nonzero(reached)
    tokens = JudgedTokens(rounds // rounds_a_request, index, confidence[reached], accepted[reached])
    return tokens, chances[reached]


def chances_of(survival: Survival, tokens: JudgedTokens) -> Array:
    """As the runtime reads them."""
    told = zip(tokens.index, tokens.confidence, strict=True)
    return np.array([survival.chance(int(index), float(confidence)) for index, confidence in told])


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def overconfident(seed: int, rounds: int = 1500) -> tuple[JudgedTokens, Array]:
    true = normal(seed, rounds, 4) + 0.8
    return draft(sigmoid(true), 2 * true + 1.5, seed=seed + 1)


def test_chances_are_recovered_by_logit_and_position() -> None:
    logits = 2 * normal(0, 3000, 4)

    def truth(logit: float, index: int) -> float:
        return float(sigmoid(np.array(0.5 * logit + 1.5 - 0.5 * index)))

    survival, _ = fit_survival(draft(sigmoid(0.5 * logits + 1.5 - 0.5 * np.arange(4)), logits)[0], "the bundle")
    assert (survival.bundle, len(survival.curves)) == ("the bundle", 4)
    for index in range(4):
        for logit in (-3.0, -1.0, 0.0, 1.0, 3.0):
            assert survival.chance(index, logit) == pytest.approx(truth(logit, index), abs=0.08)


def test_an_overconfident_draft_is_corrected() -> None:
    survival, quality = fit_survival(overconfident(0, 4000)[0], "b")
    fresh, true = overconfident(50, 8000)
    raw = judge(sigmoid(fresh.confidence), fresh.accepted)
    assert raw.error > 0.1
    mended = judge(chances_of(survival, fresh), fresh.accepted)
    assert mended.error < 0.02
    assert np.abs(chances_of(survival, fresh) - true).mean() < 0.03
    # what it says of itself is what others' prompts show
    assert quality.error < 0.02
    assert quality.auc == pytest.approx(mended.auc, abs=0.02)


def assert_sound(survival: Survival) -> None:
    for curve in survival.curves:
        assert 1 <= len(curve.logits) <= POINTS
        assert list(curve.chances) == sorted(curve.chances)
        assert curve.chances[0] >= MIN_CHANCE
        assert curve.chances[-1] <= 1 - MIN_CHANCE


@pytest.mark.parametrize("slope", [1.0, 8.0, 0.0, -1.0])
def test_curves_are_small_rising_and_never_certain(slope: float) -> None:
    logits = 4 * normal(3, 600, 3)
    survival, _ = fit_survival(draft(sigmoid(slope * logits), logits)[0], "b")
    assert_sound(survival)
    if slope == -1.0:  # nothing that a chance may rise with
        assert survival.chance(0, 8.0) - survival.chance(0, -8.0) < 0.1


def test_a_rare_position_borrows_from_the_others() -> None:
    logits = 2 * normal(4, 800, 3)
    chances = np.full((800, 3), 0.8)
    chances[:, 1] = np.where(np.arange(800) < 4, 1.0, 0.0)  # 4 tokens ever get to the last position
    chances[:, 2] = 0.0
    survival, _ = fit_survival(draft(chances, logits)[0], "b")
    pooled = 0.8 * 800 / (800 + 640 + 4)
    assert survival.chance(0, 0.0) == pytest.approx(0.8, abs=0.05)
    assert survival.chance(1, 0.0) < 0.1
    assert survival.chance(2, 0.0) == pytest.approx(pooled * PRIOR_TOKENS / (PRIOR_TOKENS + 4), abs=0.06)


@pytest.mark.parametrize(("all_are", "level"), [(True, 0.99), (False, 0.01)])
def test_tokens_of_one_fate_give_a_level_curve(all_are: bool, level: float) -> None:
    chances = np.full((60, 2), float(all_are))
    survival, quality = fit_survival(draft(chances, normal(5, 60, 2))[0], "b")
    assert_sound(survival)
    assert {curve.chances for curve in survival.curves} == {survival.curves[0].chances}
    assert len(survival.curves[0].logits) == 1
    assert survival.chance(0, 0.0) > level if all_are else survival.chance(0, 0.0) < level
    assert quality.auc == 0.5


def test_no_request_has_a_say_in_what_it_is_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the curves: flipping its own outcomes leaves its chances as they were."""
    seen: list[Array] = []

    def spy(chances: Array, accepted: Array) -> EstimateQuality:
        seen.append(chances)
        return judge(chances, accepted)

    monkeypatch.setattr("specexport.calibration.survival.fit.judge", spy)
    tokens = few_requests(8)
    mine = tokens.request == 3
    turned = replace(tokens, accepted=tokens.accepted ^ mine)
    for one in (tokens, turned):
        fit_survival(one, "b")
    before, after = seen
    assert np.array_equal(before[mine], after[mine])
    assert not np.array_equal(before, after)  # while it has a say in what others are judged by


def few_requests(count: int) -> JudgedTokens:
    return draft(sigmoid(normal(7, 20 * count, 3)), normal(8, 20 * count, 3))[0]


def constant() -> JudgedTokens:
    return draft(np.full((100, 2), 0.6), np.full((100, 2), 12.0))[0]


def uneven() -> JudgedTokens:
    """One request holds nearly all tokens, and every fold but one has a single fate."""
    tokens = few_requests(6)
    return tokens.of((tokens.request == 0) | tokens.accepted & (tokens.index == 0))


@pytest.mark.parametrize("make", [lambda: few_requests(2), constant, uneven])
def test_poor_data_still_give_a_survival(make: Callable[[], JudgedTokens]) -> None:
    survival, quality = fit_survival(make(), "b")
    assert_sound(survival)
    assert 0 <= quality.error <= 1
    assert 0 < survival.chance(5, -20.0) <= survival.chance(5, 20.0) < 1
