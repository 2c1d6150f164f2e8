"""What followed before: lookups against the simplest search that gives the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from specexport.runtime.drafting.lookup import LONGEST_NGRAM, NgramLookup, PredictionLookup


def go_on(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """Copy token by token, what was copied included."""
    text = list(tokens)
    for index in range(place, place + count):
        text.append(text[index])
    return text[len(tokens) :]


def ngram_by_search(tokens: list[int], count: int, shortest: int, longest: int = LONGEST_NGRAM) -> list[int]:
    for length in range(longest, shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[len(tokens) - length :]:
                return go_on(tokens, place, count)
    return []


@pytest.mark.parametrize("shortest", [1, 2, 4])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 6])
def test_the_same_as_by_search_however_the_text_grows(shortest: int, alphabet: int) -> None:
    found = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, shortest, alphabet])
        tokens = rng.integers(0, alphabet, 130).tolist()
        grown, end = NgramLookup(shortest), 0
        while end < len(tokens):
            end += int(rng.integers(1, 9))
            count = int(rng.integers(0, 9))
            text = tokens[:end]
            expected = ngram_by_search(text, count, shortest)
            assert grown.find(text, count) == expected
            assert NgramLookup(shortest).find(text, count) == expected
            assert len(expected) <= count
            found += bool(expected)
    assert found


def test_the_longest_match_wins_over_a_later_one() -> None:
    assert NgramLookup(1).find([1, 2, 3, 70, 9, 3, 80, 1, 2, 3], 1) == [70]
    assert NgramLookup(1).find([1, 2, 3, 70, 9, 3, 80, 7, 7, 3], 1) == [80]


def test_the_most_recent_of_equal_matches_wins() -> None:
    assert NgramLookup(2).find([1, 2, 70, 1, 2, 80, 1, 2], 1) == [80]


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_nothing_to_find(shortest: int) -> None:
    for tokens in ([5], [5, 6], [5, 6, 7], [5, 6, 7, 8, 9, 10]):
        assert NgramLookup(shortest).find(tokens, 4) == []
    assert NgramLookup(3).find([1, 2, 9, 1, 2], 4) == []  # shorter than asked for
    assert NgramLookup(2).find([1, 1], 4) == []  # the text itself is no place before


def test_a_match_that_reaches_the_end_repeats_itself() -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert NgramLookup(2).find(text, 2) == [1, 2]
    assert NgramLookup(2).find(text, 6) == [1, 2, 3, 1, 2, 3]
    assert NgramLookup(2).find([8, 7, 7, 7], 7) == [7] * 7


def test_a_prediction_does_not_move_on_with_what_is_only_drafted() -> None:
    lookup = PredictionLookup([9, 9], [1, 2, 3, 1, 2, 4])
    assert lookup.find([9, 9, 7], 2, [1, 2]) == [3, 1]
    assert lookup.find([9, 9, 7, 1, 2], 2) == [3, 1]
    assert lookup.find([9, 9, 7, 1, 2, 1, 2], 2) == [4]
