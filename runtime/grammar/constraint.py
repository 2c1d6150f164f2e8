"""A request's grammar along its output: what may follow the tokens so far, and the tokens of a draft after them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import GrammarError

Row = NDArray[np.float32]  # [vocab], logits
Allowed = NDArray[np.bool_]  # [vocab]


class Matcher(Protocol):
    """The state after some tokens of text. It never sees stop tokens.

    Its answers depend on the tokens alone, not on earlier calls. Raises `GrammarError` where it cannot tell.
    """

    @property
    def seconds(self) -> float:
        """Seconds that the answers of this one and of all its copies took so far."""
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text is complete, so that it may end here."""
        ...

    @property
    def done(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        ...

    def allowed(self) -> Allowed:
        """`[vocab]`: the tokens that may follow. Must not be changed."""
        ...

    def accepts(self, token: int) -> bool:
        """`allowed()[token]`, without computing the others."""
        ...

    def forced(self) -> list[int]:
        """Tokens that the grammar forces, as far as it can tell; the first is the only one allowed."""
        ...

    def advance(self, token: int) -> None:
        """Append `token`, one of those allowed, to the text."""
        ...

    def copy(self) -> Matcher:
        """A copy that is independent from here on."""
        ...


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
        self._states = [self._state_after(tokens)]
        self._path = []

    def over(self, drafted: Sequence[int]) -> bool:
        """Whether the request ends with `drafted`."""
        return self._state_after(drafted) is None

    def allows(self, token: int, drafted: Sequence[int]) -> bool:
        """Whether `token` may follow the output and then `drafted`."""
        state = self._state_after(drafted)
        if state is None:
            return True
        return state.accepting if token in self._stop_tokens else state.accepts(token)

    def mask(self, logits: Row, drafted: Sequence[int]) -> Row:
        """The logits `[vocab]` (a draft may have fewer), with -inf where `allows` says no."""
        state = self._state_after(drafted)
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
            state = self._state_after(drafted)
            tokens = [] if state is None or state.accepting else state.forced()[:most]
        except GrammarError:
            return []
        return tokens[: self.legal(tokens, drafted)]

    def _state_after(self, drafted: Sequence[int]) -> Matcher | None:
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
