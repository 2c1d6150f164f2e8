"""Whole rounds on the device: how many calls the host makes, how long it waits, and how long the GPU works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from specexport.engines.base import RoundNoise, Rounds
from specexport.engines.rules import RuleName

from ..meter import Counts, Meter
from ..timing import Sample, Spread
from .passes import RuleKey, Size

GREEDY, BLOCK = "greedy", "block"


@dataclass(frozen=True)
class RoundKey:
    """rule: `greedy` or `block`. k: draft tokens. span: of its passes."""

    rule: str
    k: int
    span: int

    @property
    def select(self) -> RuleKey:
        return ("select_greedy" if self.rule == GREEDY else "select"), 0

    @property
    def accept(self) -> RuleKey:
        name: RuleName = "accept_greedy" if self.rule == GREEDY else "accept_block"
        return name, self.k

    @property
    def rules(self) -> Iterator[RuleKey]:
        """The rules in order: selecting a token after each draft pass, then acceptance; without a draft, only selecting
        the next token.
        """
        yield from [self.select] * max(1, self.k)
        if self.k:
            yield self.accept

    @property
    def drafts(self) -> list[Size]:
        return [(2, self.span), *[(1, self.span)] * (self.k - 1)] if self.k else []

    @property
    def verify(self) -> Size:
        return self.k + 1, self.span

    def parts(self, target: Mapping[Size, float], draft: Mapping[Size, float], rules: Mapping[RuleKey, float]) -> float:
        """The sum of the single times of all passes and rules of the round."""
        return target[self.verify] + sum(draft[size] for size in self.drafts) + sum(rules[key] for key in self.rules)


@dataclass(frozen=True)
class TimedRound:
    """gpu: samples of the time of its graph. wall: samples of the time of the host's call. Both in milliseconds."""

    counts: Counts
    gpu: Sample
    wall: Sample


@dataclass(frozen=True)
class RoundTime:
    """Times in milliseconds. parts: the sum of the single times of its passes and rules."""

    rule: str
    k: int
    span: int
    counts: Counts
    gpu: Spread
    wall: Spread
    parts: float

    @property
    def host(self) -> float:
        """What the host adds to the GPU's time."""
        return self.wall.median - self.gpu.median

    @property
    def over_parts(self) -> float:
        return self.gpu.median / self.parts


def timed_round(meter: Meter, rounds: Rounds, key: RoundKey) -> TimedRound:
    tokens = [1] * (key.span - key.k)
    noise = np.full(key.k + 1, 0.5, np.float32)
    chances = (
        None if key.rule == GREEDY else RoundNoise("block", np.array([1.0, 0, 1.0, 0], np.float32), noise[1:], noise)
    )

    def run() -> None:
        rounds.run(tokens, key.k, chances)

    run()
    run()  # the first one may have captured it
    meter.counts = counts = Counts()
    run()
    meter.counts = Counts()
    replay = meter.graph_time(meter.last_graph)

    def gpu() -> float:
        run()  # puts the round's inputs where the graph reads them
        return replay()

    def wall() -> float:
        start = perf_counter()
        run()
        return (perf_counter() - start) * 1e3

    return TimedRound(counts, gpu, wall)
