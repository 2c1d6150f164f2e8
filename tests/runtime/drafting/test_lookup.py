"""What followed before: lookups against the simplest search that gives the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from specexport.runtime.drafting.lookup import (
    LONGEST_NGRAM,
    LONGEST_SUFFIX,
    PLACES,
    Lookup,
    NgramLookup,
    PredictionLookup,
    SuffixLookup,
)

KINDS: list[Callable[[int], Lookup]] = [NgramLookup, SuffixLookup]


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


def suffix_by_search(tokens: list[int], count: int, shortest: int) -> list[int]:
    def matches(place: int, length: int) -> bool:
        return place >= length and tokens[place - length : place] == tokens[len(tokens) - length :]

    places = [place for place in range(len(tokens) - 1, 0, -1) if matches(place, shortest)][:PLACES]
    best = max(
        (length for length in range(shortest, LONGEST_SUFFIX + 1) if any(matches(place, length) for place in places)),
        default=0,
    )
    return (
        next((go_on(tokens, place, min(count, best)) for place in places if matches(place, best)), []) if best else []
    )


SEARCHES: list[tuple[Callable[[int], Lookup], Callable[[list[int], int, int], list[int]]]] = [
    (NgramLookup, ngram_by_search),
    (SuffixLookup, suffix_by_search),
]


@pytest.mark.parametrize(("kind", "search"), SEARCHES)
@pytest.mark.parametrize("shortest", [1, 2, 4])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 6])
def test_the_same_as_by_search_however_the_text_grows(
    kind: Callable[[int], Lookup], search: Callable[[list[int], int, int], list[int]], shortest: int, alphabet: int
) -> None:
    found = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, shortest, alphabet])
        tokens = rng.integers(0, alphabet, 130).tolist()
        grown, end = kind(shortest), 0
        while end < len(tokens):
            end += int(rng.integers(1, 9))
            count = int(rng.integers(0, 9))
            text = tokens[:end]
            expected = search(text, count, shortest)
            assert grown.find(text, count) == expected
            assert kind(shortest).find(text, count) == expected
            assert len(expected) <= count
            found += bool(expected)
    assert found


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_match_wins_over_a_later_one(kind: Callable[[int], Lookup]) -> None:
    assert kind(1).find([1, 2, 3, 70, 9, 3, 80, 1, 2, 3], 1) == [70]
    assert kind(1).find([1, 2, 3, 70, 9, 3, 80, 7, 7, 3], 1) == [80]


@pytest.mark.parametrize("kind", KINDS)
def test_the_most_recent_of_equal_matches_wins(kind: Callable[[int], Lookup]) -> None:
    assert kind(2).find([1, 2, 70, 1, 2, 80, 1, 2], 1) == [80]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_nothing_to_find(kind: Callable[[int], Lookup], shortest: int) -> None:
    for tokens in ([5], [5, 6], [5, 6, 7], [5, 6, 7, 8, 9, 10]):
        assert kind(shortest).find(tokens, 4) == []
    assert kind(3).find([1, 2, 9, 1, 2], 4) == []  # shorter than asked for
    assert kind(2).find([1, 1], 4) == []  # the text itself is no place before


@pytest.mark.parametrize("kind", KINDS)
def test_a_match_that_reaches_the_end_repeats_itself(kind: Callable[[int], Lookup]) -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    assert kind(2).find(text, 2) == [1, 2]
    assert kind(2).find(text, 6) == [1, 2, 3, 1, 2, 3]
    assert NgramLookup(2).find([8, 7, 7, 7], 7) == [7] * 7


def test_a_suffix_promises_no_more_than_its_length() -> None:
    text = list(range(20))
    for length in range(2, 9):
        assert SuffixLookup(2).find([*text, 99, *text[:length]], 30) == text[length : 2 * length]
    assert len(NgramLookup(2).find([*text, 99, 0, 1], 15)) == 15


def test_a_suffix_sees_the_most_recent_places_only() -> None:
    """A longer match further back than PLACES shorter ones is not looked for."""
    for others, found in ((PLACES - 1, [70]), (PLACES, [99])):
        text = [5, 1, 2, 70]
        for index in range(others):
            text += [100 + index, 1, 2, 99]
        assert SuffixLookup(2).find([*text, 5, 1, 2], 1) == found


def test_a_prediction_does_not_move_on_with_what_is_only_drafted() -> None:
    lookup = PredictionLookup([9, 9], [1, 2, 3, 1, 2, 4])
    assert lookup.find([9, 9, 7], 2, [1, 2]) == [3, 1]
    assert lookup.find([9, 9, 7, 1, 2], 2) == [3, 1]
    assert lookup.find([9, 9, 7, 1, 2, 1, 2], 2) == [4]
