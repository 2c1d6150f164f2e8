"""How long requests take, from those that ended and the one that runs: what a queue can tell those that wait."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.sampling.parameters import SamplingParameters

SHARE_OF_NEWEST = 0.3


@dataclass
class Progress:
    """A request's rounds so far. Times in seconds. first: until the end of the first round; later: of all others."""

    tokens: int = 0
    first: float = 0.0
    later: float = 0.0
    later_tokens: int = 0

    def add(self, seconds: float, tokens: int) -> None:
        if not self.tokens:
            self.first = seconds
        else:
            self.later += seconds
            self.later_tokens += tokens
        self.tokens += tokens


@dataclass
class Pace:
    """Expected seconds of requests. Not thread-safe: its owner holds a lock."""

    known: bool = False  # whether a request has ended
    _first: float = 0.0
    _tokens: float = 0.0
    _per_token: float = 0.0

    def note(self, done: Progress) -> None:
        """A request has ended, for whatever reason."""
        if done.later_tokens:
            self._per_token = _mean(self._per_token, done.later / done.later_tokens)
        if done.tokens:
            self._first, self._tokens = _mean(self._first, done.first), _mean(self._tokens, done.tokens)
            self.known = True

    def whole(self, parameters: SamplingParameters) -> float:
        """Of a request that waits."""
        return self._first + self._per_token * self._more(parameters, 0)

    def left(self, parameters: SamplingParameters, now: Progress, elapsed: float) -> float:
        """Of the one that runs since `elapsed` seconds. One that takes longer than the mean is expected to take as long
        again.
        """
        first = 0.0 if now.tokens else max(self._first - elapsed, elapsed)
        per_token = now.later / now.later_tokens if now.later_tokens else self._per_token
        return first + per_token * self._more(parameters, now.tokens)

    def _more(self, parameters: SamplingParameters, tokens: int) -> float:
        """Tokens to come, after so many."""
        expected = max(self._tokens - tokens, tokens, (parameters.min_new_tokens or 0) - tokens)
        return min(expected, parameters.max_new_tokens - tokens)


def _mean(known: float, newest: float) -> float:
    """A running mean; 0 while nothing is known."""
    return known + SHARE_OF_NEWEST * (newest - known) if known else newest
