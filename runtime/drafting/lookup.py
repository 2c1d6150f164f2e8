"""Drafts without a model: the tokens that followed when the last tokens occurred before."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from .rounds import Source

# N-grams are searched from the longest to the shortest.
LONGEST_NGRAM = 4
# In a prediction a short match is enough: it is likely to be right.
SHORTEST_PREDICTED = 2
# Matches are measured up to this length.
LONGEST_MATCH = 64


class Lookup(Protocol):
    """odds: of the tokens that were found last; of each, that it is right if those before it are.

    source: of its tokens; a `DraftStop` is asked about those of `lookup` only.
    """

    odds: Sequence[float]
    source: Source

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """Up to `count` tokens that may follow `tokens` and then `drafted`; none without a match.

        `tokens` only grows between calls. `drafted` may differ in the next call, so positions are remembered in
        `tokens` alone.
        """
        ...


def _continued(tokens: Sequence[int], drafted: Sequence[int], place: int, count: int) -> list[int]:
    """`count` tokens from `place` of `tokens` on; if the sequence ends before that, its last stretch is repeated."""
    continuation = [*tokens[place : place + count], *drafted][:count]
    while len(continuation) < count:
        continuation += continuation[: count - len(continuation)]
    return continuation


class NgramLookup:
    """Prompt lookup (Saxena 2023): continues the longest of the last n-grams that occurred before, at its most recent
    position.
    """

    source: Source = "lookup"

    def __init__(self, shortest: int) -> None:
        self._lengths = range(LONGEST_NGRAM, shortest - 1, -1)
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after it
        self._indexed = 0
        self.odds: Sequence[float] = ()

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        for end in range(self._indexed, len(tokens)):
            for length in self._lengths:
                if end >= length:
                    self._places[tuple(tokens[end - length : end])] = end
        self._indexed = len(tokens)
        last = (*tokens[-LONGEST_MATCH:], *drafted)
        for length in self._lengths:
            place = self._places.get(last[-length:]) if len(last) >= length else None
            if place is not None:
                matched = _common_suffix(tokens, place, last)
                self.odds = range(matched - 1, matched - 1 + count)  # a match of n tokens goes on with 1 - 1/n
                return _continued(tokens, drafted, place, count)
        return []


class PredictionLookup:
    """Drafts from a prediction of the output (as in OpenAI's Predicted Outputs).

    The prediction is read as if it followed the prompt, so its beginning is the first draft. Once the output has left
    it, the longest of the last n-grams that occurs in it finds the way back, preferring the next position to earlier
    ones.
    """

    source: Source = "prediction"

    def __init__(self, prompt: Sequence[int], prediction: Sequence[int]) -> None:
        start = [*prompt[-LONGEST_NGRAM:]]
        self._tokens = [*start, *prediction]
        self._next = len(start)  # the prediction is read up to here
        self.odds: Sequence[float] = ()
        self._places: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> indices of the tokens after it
        self._places[tuple(start)].append(len(start))
        for end in range(len(start) + 1, len(self._tokens)):
            for length in range(SHORTEST_PREDICTED, min(LONGEST_NGRAM, end) + 1):
                self._places[tuple(self._tokens[end - length : end])].append(end)

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        last = (*tokens[-LONGEST_NGRAM:], *drafted)
        for length in range(min(LONGEST_NGRAM, len(last)), 0, -1):
            places = self._places.get(last[-length:])
            if places:
                place = places[min(bisect_left(places, self._next), len(places) - 1)]
                if not drafted:  # else the output may not come here
                    self._next = place + min(count, 1)  # one token at least comes before the next question
                return self._tokens[place : place + count]
        return []


def _common_suffix(tokens: Sequence[int], end: int, last: Sequence[int]) -> int:
    """How many tokens before index `end` equal those that `last` ends with."""
    length, most = 0, min(end, LONGEST_MATCH)
    while length < most and tokens[end - 1 - length] == last[-1 - length]:
        length += 1
    return length
