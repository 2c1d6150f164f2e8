"""A request's grammar along its output: what may follow the tokens so far, and the tokens of a draft after them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import GrammarError
from .matcher import Matcher

Row = NDArray[np.float32]  # [vocab], logits


class Constraint:
    """One state for each position of the round's draft, made from a copy of the one before it.

    So a rejected token leaves no trace: the state after the output was reached by output alone. Stop tokens may follow
    where the text is complete, and nowhere else. After one, or when the grammar is finished, the request ends: what
    would follow is cut off, so every token is allowed there.
    """

    def __init__(self, matcher: Matcher, stop_tokens: Collection[int], vocab_size: int) -> None:
        self._stop_tokens = frozenset(token for token in stop_tokens if 0 <= token < vocab_size)
        self._stops = np.array(sorted(self._stop_tokens), np.int64)
        self._path: list[int] = []
        # states[i]: after the output and path[:i]; None where the request has ended
        self._states: list[Matcher | None] = [None if matcher.done else matcher]

    def emit(self, tokens: Sequence[int]) -> None:
        """`tokens` are now output. Raises `GrammarError` for one that the grammar forbids."""
        self._states = [self._behind(tokens)]
        self._path = []

    def over(self, drafted: Sequence[int]) -> bool:
        """Whether the request ends with `drafted`."""
        return self._behind(drafted) is None

    def allows(self, token: int, drafted: Sequence[int]) -> bool:
        """Whether `token` may follow the output and then `drafted`."""
        state = self._behind(drafted)
        if state is None:
            return True
        return state.accepting if token in self._stop_tokens else state.accepts(token)

    def mask(self, logits: Row, drafted: Sequence[int]) -> Row:
        """The logits `[vocab]` (a draft may have fewer), with -inf where `allows` says no."""
        state = self._behind(drafted)
        if state is None:
            return logits
        size = len(logits)
        row: Row = np.where(state.allowed()[:size], logits, np.float32(-np.inf))
        stops = self._stops[self._stops < size]
        row[stops] = logits[stops] if state.accepting else -np.inf
        return row

    def legal(self, tokens: Sequence[int], drafted: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, may follow `drafted`, up to where the request ends.

        If the grammar cannot tell, no more of them are allowed: they are only proposals.
        """
        path = list(drafted)
        try:
            for count, token in enumerate(tokens):
                if self.over(path) or not self.allows(token, path):
                    return count
                path.append(token)
        except GrammarError:
            return len(path) - len(drafted)
        return len(tokens)

    def forced(self, drafted: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that the grammar forces after `drafted`."""
        try:
            state = self._behind(drafted)
            found = [] if state is None or state.accepting else state.forced()[:most]
        except GrammarError:
            return []
        return found[: self.legal(found, drafted)]

    def _behind(self, drafted: Sequence[int]) -> Matcher | None:
        """The state after the output and then `drafted`."""
        path, states = self._path, self._states
        for place, token in enumerate(drafted):
            if place < len(path):
                if path[place] == token:
                    continue
                del path[place:], states[place + 1 :]
            states.append(self._next(states[place], token))
            path.append(token)
        return states[len(drafted)]

    def _next(self, state: Matcher | None, token: int) -> Matcher | None:
        if state is None or token in self._stop_tokens:
            return None
        state = state.copy()
        state.advance(token)
        return None if state.done else state
