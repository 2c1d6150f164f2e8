"""A recorded request as tokens, and where a draft agrees with the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ...runtime.policy.cost_model import Costs, RoundCosts

# Number of tokens in the caches -> what rounds cost there.
CostsAt = Callable[[int], RoundCosts]


@dataclass(frozen=True)
class Trace:
    """A generated request. tokens: prompt and output. agrees: for every output token, see `agreement`.

    limit: its max_new_tokens. missed: for each position in the output, from 0, where the draft proposes another token:
    the position, that token, and the draft's tokens after it, as far as they are known. guessers: by name, drafts that
    may guess for this one.
    """

    line: int
    route: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    limit: int
    missed: tuple[tuple[int, ...], ...] = ()
    guessers: Mapping[str, Guesser] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True)
class Guesser:
    """A smaller draft: the same request recorded with it, and what rounds with it cost."""

    trace: Trace
    at: CostsAt


def cached(costs: Costs) -> CostsAt:
    """`costs.at` in steps of 16 tokens, cached, since replays call it for every round."""
    known = lru_cache(None)(costs.at)
    return lambda context: known(max(1, context - context % 16))


def known(trace: Trace) -> list[bool]:
    """`agrees` with unknown values filled by a repeatable draw at the rate of the request's known ones."""
    judged = [agrees for agrees in trace.agrees if agrees is not None]
    share = sum(judged) / len(judged) if judged else 0.0
    draw = random.Random(trace.line)
    return [draw.random() < share if agrees is None else agrees for agrees in trace.agrees]


def agreeing(agrees: Sequence[bool], count: int) -> int:
    """How many of the first `count` tokens agree before the first that does not: the accepted draft tokens."""
    number = 0
    while number < min(count, len(agrees)) and agrees[number]:
        number += 1
    return number


def matching(found: Sequence[int], follows: Sequence[int]) -> int:
    """How many tokens `found` and `follows` have in common at their start."""
    number = 0
    while number < min(len(found), len(follows)) and found[number] == follows[number]:
        number += 1
    return number
