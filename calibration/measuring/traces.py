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
    the position, that token, and the draft's tokens after it, as far as they are known. smaller: by name, drafts that
    may draft for this one in a cascade.
    """

    line: int
    route: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    limit: int
    missed: tuple[tuple[int, ...], ...] = ()
    smaller: Mapping[str, CascadeSource] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True)
class CascadeSource:
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
    return next((place for place, one in enumerate(agrees[:count]) if not one), min(count, len(agrees)))


def matching(tokens: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens the two have in common at their start."""
    return agreeing([one == other for one, other in zip(tokens, text, strict=False)], len(tokens))
