"""What a draft token takes where something drafts for the draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specexport.calibration.measuring.traces import Guesser, Trace, cached
from specexport.calibration.verdicts.chains import unit_of
from support.calibrated import flat_costs

# One round of three draft tokens, all of them right; a lookup guesses the last two.
TRACE = Trace(1, "code", 6, (1, 2, 3, 4, 1, 2, 3, 4, 1, 2), (True,) * 4, 4)
COSTS = flat_costs(0.2, draft_row=0.01)


def by_small(draft: float) -> Trace:
    """With a smaller draft that is as often right and whose pass takes `draft`."""
    return replace(TRACE, guessers={"small": Guesser(TRACE, cached(flat_costs(draft, draft_row=0.0)))})


def test_a_token_that_nothing_drafts_for_takes_a_pass() -> None:
    for drafter in ("model", "ngram+model", "ngram"):
        assert unit_of([TRACE], drafter, COSTS) == 1.0


def test_behind_the_first_a_token_takes_what_its_guess_takes() -> None:
    """Two tokens for two rows more of the only pass, and for two passes of whoever guessed."""
    assert unit_of([TRACE], "ngram:model", COSTS) == pytest.approx(2 * 0.01 / (2 * 0.2))
    assert unit_of([by_small(0.05)], "small:model", COSTS) == pytest.approx(2 * (0.01 + 0.05) / (2 * 0.2))


def test_a_wrong_guess_takes_its_row_and_saves_nothing() -> None:
    """The text repeats itself, and the draft says something else there."""
    other = replace(TRACE, tokens=(1, 2, 9, 4, 1, 2, 3, 4, 5, 6))
    alone, chain = (unit_of([other], drafter, COSTS) for drafter in ("model", "ngram:model"))
    assert alone == chain == 1.0  # never more than a pass
    both = unit_of([TRACE, other], "ngram:model", replace(COSTS, draft_row=0.05))
    assert 0.25 < both < 1.0


def test_it_is_never_above_a_pass_nor_of_nothing() -> None:
    assert unit_of([by_small(3.0)], "small:model", COSTS) == 1.0
    assert unit_of([replace(TRACE, limit=1, tokens=TRACE.tokens[:7])], "ngram:model", COSTS) == 1.0
    assert unit_of([], "ngram:model", COSTS) == 1.0
