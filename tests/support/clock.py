"""A clock that only passes move, so that every number is known, and a decoder that moves it."""

from __future__ import annotations

from collections.abc import Sequence

from specexport.bundle import Contract
from specexport.engines.base import Logits

from support.doubles import FakeDecoder

CONTRACT = Contract(capacity=320, max_draft_tokens=3, prompt_chunk=16, precision="fp32")
DRAFT, HOST = 0.25, 0.01


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += HOST / 100  # a look takes time too: parts that nobody measured are the host's
        return self.now


class Timed(FakeDecoder):
    """A pass over m tokens takes base * (1 + 0.1 * (m - 1)), and 0.001 more for every token in the cache."""

    def __init__(
        self, clock: Clock, base: float, slope: float, contract: Contract = CONTRACT, **options: int | float
    ) -> None:
        super().__init__(contract, **options)  # type: ignore[arg-type]
        self.clock, self.base, self.slope = clock, base, slope

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        self.clock.now += self.base * (1 + 0.1 * (len(tokens) - 1)) + self.slope * position
        return super().step(tokens, position)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self.clock.now += 0.002 * self.base * len(tokens)
        super().step(tokens, position)
