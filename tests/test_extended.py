"""The ways that benchmarks/extended.py compares: what each looks up, and when."""

from __future__ import annotations

import sys
from pathlib import Path

from specexport.calibration.measuring.trace_replay import replay
from specexport.calibration.measuring.traces import Trace
from specexport.runtime.drafting.drafters import LOOKUPS

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from extended import Way, fixed

# The text repeats itself, and the draft is right everywhere.
TEXT = (1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7)


def passes(way: Way, prompt_tokens: int) -> list[int]:
    trace = Trace(0, "code", prompt_tokens, TEXT, (True,) * (len(TEXT) - prompt_tokens), 20)
    with way.lookups():
        return [one.passes for one in replay(trace, "ngram+model", 3)]


def test_in_front_only_the_next_round_looks_up_and_only_what_matches_four_tokens() -> None:
    front, behind = fixed()
    assert passes(front, 9) == [3, 0]  # 1 2 match too little; the next round begins with 3 4 5 6
    assert passes(behind, 9) == [1, 0]  # with the draft's 3 it is enough at once
    assert passes(front, 10) == [3]
    assert passes(behind, 10) == [0]


def test_lookups_are_as_before_behind_a_way() -> None:
    before = dict(LOOKUPS)
    with fixed()[0].lookups():
        assert dict(LOOKUPS) != before
    assert dict(LOOKUPS) == before
