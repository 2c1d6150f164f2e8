"""One of two grammars, such as tool calls or an answer in a schema: both are followed for as long as the text fits."""

from __future__ import annotations

from collections.abc import Sequence

from .constraint import Allowed
from .guided import GuidedMatcher


class EitherMatcher:
    """Not one grammar of both, as a lexer cannot go back: after `{"` it would read on for a call's `{"name": "`, and a
    schema's `{"age"` would be lost.

    A way that fails, such as at a limit, ends the request even if the text fits the other one too: left out, it would
    have the model go where it may not have wanted to.
    """

    def __init__(self, ways: Sequence[GuidedMatcher], begun: Sequence[GuidedMatcher] = ()) -> None:
        """ways: those that the text fits. begun: all, for their time."""
        self._ways, self._begun = list(ways), begun or list(ways)
        self._allowed: Allowed | None = None

    @property
    def seconds(self) -> float:
        return sum(way.seconds for way in self._begun)

    @property
    def accepting(self) -> bool:
        return any(way.accepting for way in self._ways)

    @property
    def done(self) -> bool:
        return all(way.done for way in self._ways)

    def allowed(self) -> Allowed:
        if self._allowed is None:
            first, *others = (way.allowed() for way in self._ways)
            for other in others:
                first = first | other
            self._allowed = first
        return self._allowed

    def accepts(self, token: int) -> bool:
        return any(way.accepts(token) for way in self._ways)

    def forced(self) -> list[int]:
        """What both force: the first of these is the only token that either allows."""
        first, *others = (way.forced() for way in self._ways)
        size = len(first)
        for other in others:
            size = min(size, len(other))
            size = next((place for place in range(size) if first[place] != other[place]), size)
        return first[:size]

    def advance(self, token: int) -> None:
        self._allowed = None
        if len(self._ways) > 1:
            self._ways = [way for way in self._ways if way.accepts(token)] or self._ways[:1]
        for way in self._ways:
            way.advance(token)

    def begin(self) -> EitherMatcher:
        return EitherMatcher([way.begin() for way in self._ways])

    def copy(self) -> EitherMatcher:
        copy = EitherMatcher([way.copy() for way in self._ways], self._begun)
        copy._allowed = self._allowed
        return copy
