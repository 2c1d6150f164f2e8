"""A recorded request as tokens, and where a draft agrees with the target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...runtime.policy.cost_model import Costs, RoundCosts

# Number of tokens in the caches -> what rounds cost there.
CostsAt = Callable[[int], RoundCosts]


@dataclass(frozen=True)
class Trace:
    """A generated request. tokens: prompt and output. agrees: for every output token, see `agreement`. limit: its
    max_new_tokens.
    """

    line: int
    route: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    limit: int

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


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
    return next((place for place, one in enumerate(agrees[:count]) if not one), min(count, len(agrees)))


def matching(tokens: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens the two have in common at their start."""
    return agreeing([one == other for one, other in zip(tokens, text, strict=False)], len(tokens))
