"""How long requests take, from those that ended and the one that runs: what a queue can tell those that wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runtime.sampling.parameters import SamplingParameters

SHARE_OF_NEWEST = 0.3


@dataclass
class Mean:
    """A running mean; 0 while nothing is known."""

    value: float = 0.0
    known: bool = False

    def add(self, value: float) -> None:
        self.value += (SHARE_OF_NEWEST if self.known else 1.0) * (value - self.value)
        self.known = True


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

    _first: Mean = field(default_factory=Mean)
    _tokens: Mean = field(default_factory=Mean)
    _per_token: Mean = field(default_factory=Mean)

    @property
    def known(self) -> bool:
        return self._tokens.known

    def note(self, done: Progress) -> None:
        """A request has ended, for whatever reason."""
        if done.tokens:
            self._first.add(done.first)
            self._tokens.add(done.tokens)
        if done.later_tokens:
            self._per_token.add(done.later / done.later_tokens)

    def whole(self, parameters: SamplingParameters) -> float:
        """Of a request that waits."""
        return self._first.value + self._per_token.value * self._more(parameters, 0)

    def left(self, parameters: SamplingParameters, now: Progress, elapsed: float) -> float:
        """Of the one that runs since `elapsed` seconds. One that takes longer than the mean is expected to take as long
        again.
        """
        first = 0.0 if now.tokens else max(self._first.value - elapsed, elapsed)
        per_token = now.later / now.later_tokens if now.later_tokens else self._per_token.value
        return first + per_token * self._more(parameters, now.tokens)

    def _more(self, parameters: SamplingParameters, tokens: int) -> float:
        """Tokens to come, after so many."""
        expected = max(self._tokens.value - tokens, tokens, (parameters.min_new_tokens or 0) - tokens)
        return min(expected, parameters.max_new_tokens - tokens)
