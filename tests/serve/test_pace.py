"""How long requests are expected to take, with every time known."""

from __future__ import annotations

import math

import pytest
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.serve.engine.pace import Pace, Progress


def progress(*rounds: tuple[float, int]) -> Progress:
    found = Progress()
    for seconds, tokens in rounds:
        found.add(seconds, tokens)
    return found


def asked(most: int, least: int = 0) -> SamplingParameters:
    return SamplingParameters(max_new_tokens=most, min_new_tokens=least)


@pytest.fixture
def pace() -> Pace:
    """2 s to the first of 40 tokens, then a quarter of a second for each."""
    found = Pace()
    found.note(progress((2.0, 1), *[(0.5, 2)] * 19, (0.25, 1)))
    return found


def test_nothing_is_expected_while_nothing_is_known() -> None:
    pace = Pace()
    assert pace.whole(asked(1000)) == 0.0
    assert pace.left(asked(1000), Progress(), 3.0) == 3.0  # a prompt as long again
    pace.note(Progress())  # one that was refused by the engine
    assert pace.whole(asked(1000)) == 0.0


def test_one_that_waits_takes_as_long_as_others_took_within_what_it_may_take(pace: Pace) -> None:
    assert pace.whole(asked(1000)) == 2 + 40 / 4
    assert pace.whole(asked(8)) == 2 + 8 / 4
    assert pace.whole(asked(1000, 400)) == 2 + 400 / 4


def test_the_newest_count_most(pace: Pace) -> None:
    for _ in range(30):
        pace.note(progress((4.0, 1), (99.0, 99)))
    assert pace.whole(asked(1000)) == pytest.approx(4 + 100, rel=1e-2)


def test_the_running_one_by_its_own_speed(pace: Pace) -> None:
    now = progress((1.0, 1), (9.0, 9))
    assert pace.left(asked(1000), now, 10.0) == 30.0
    assert pace.left(asked(12), now, 10.0) == 2.0
    assert pace.left(asked(1900, 1900), now, 10.0) == 1890.0
    assert pace.left(asked(10), now, 10.0) == 0.0


def test_one_longer_than_the_mean_takes_as_long_again(pace: Pace) -> None:
    assert pace.left(asked(1000), progress((1.0, 1), (99.0, 99)), 100.0) == 100.0
    assert pace.left(asked(120), progress((1.0, 1), (99.0, 99)), 100.0) == 20.0


def test_a_prompt_that_is_being_read(pace: Pace) -> None:
    assert pace.left(asked(8), Progress(), 0.5) == 1.5 + 8 / 4
    assert pace.left(asked(8), Progress(), 5.0) == 5.0 + 8 / 4
    assert math.isfinite(pace.left(asked(8), progress((1.0, 8)), 1.0))
