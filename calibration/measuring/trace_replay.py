"""Replays a recorded request with other drafters and other numbers of draft tokens.

The trace says at which output tokens the draft model agrees with the target, and lookups depend only on the text. So
for greedy decoding the replayed rounds are exact, except for the last token or two, where the draft was not asked. When
sampling, acceptance is partly chance, and the recorded outcome stands in. Tokens that were not judged are assumed to
agree as often as those that were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...runtime.drafting.drafters import LOOKUPS, SHORTEST_ALONE, SHORTEST_BESIDE_A_MODEL
from ...runtime.drafting.lookup import Lookup
from ...runtime.policy.cost_model import Costs, RoundCosts

# Tokens in the caches -> what rounds cost there.
CostsAt = Callable[[int], RoundCosts]


@dataclass(frozen=True)
class Trace:
    """A generated request. tokens: prompt and output. agrees: of every output token, see `agreement`.

    limit: its max_new_tokens.
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


@dataclass(frozen=True)
class ReplayedRound:
    """One round of a replay.

    context: tokens in the caches before the round, without the last token, whose row is not written yet. behind: rows
    that the draft model must catch up on first, since earlier rounds were looked up. passes: of the draft model; more
    than draft tokens where one was left out.
    """

    context: int
    num_drafted: int
    num_accepted: int
    looked_up: bool
    behind: int = 0
    passes: int = 0


def replay(trace: Trace, drafter: str, num_draft_tokens: int) -> Iterator[ReplayedRound]:
    """The rounds of `trace` with `drafter` and a fixed number of draft tokens."""
    lookup = lookup_of(drafter)
    with_model, agrees = "model" in drafter, known(trace) if "model" in drafter else []
    place, end, behind = trace.prompt_tokens, len(trace.tokens), 0
    while place < end:
        count = min(num_draft_tokens, trace.prompt_tokens + trace.limit - place - 1)
        found = lookup.find(trace.tokens[:place], count) if lookup is not None and count else []
        if found:
            accepted = matching(found, trace.tokens[place:])
            drafted = len(found)
        elif with_model:
            accepted = agreeing(agrees[place - trace.prompt_tokens :], count)
            drafted = count
        else:
            accepted = drafted = 0
        yield ReplayedRound(place - 1, drafted, accepted, bool(found), 0 if found else behind)
        behind = behind + accepted + 1 if found else 0
        place += accepted + 1


def lookup_of(drafter: str) -> Lookup | None:
    """The lookup among what `drafter` is made of."""
    name, _, _ = drafter.partition("+")
    return LOOKUPS[name](SHORTEST_ALONE if name == drafter else SHORTEST_BESIDE_A_MODEL) if name in LOOKUPS else None


def cached(costs: Costs) -> CostsAt:
    """`costs.at` in steps of 16 tokens, cached, since replays call it for every round."""
    known = lru_cache(None)(costs.at)
    return lambda context: known(max(1, context - context % 16))


def round_seconds(round: ReplayedRound, at: CostsAt) -> float:
    """The time of the round by the measured costs."""
    costs = at(round.context + 1)
    if round.looked_up:
        return costs.looked_up(round.num_drafted)
    left_out = max(0, round.passes - round.num_drafted)
    return costs.rounds[round.num_drafted] + left_out * costs.draft + round.behind * costs.draft_prefill


def plain_seconds(trace: Trace, at: CostsAt) -> float:
    """The time of plain decoding of the output by the measured costs."""
    return sum(at(place).plain for place in range(trace.prompt_tokens, len(trace.tokens)))


def known(trace: Trace) -> list[bool]:
    """`agrees` with unknown places filled by a repeatable draw at the rate of the request's known ones."""
    judged = [agrees for agrees in trace.agrees if agrees is not None]
    share = sum(judged) / len(judged) if judged else 0.0
    draw = random.Random(trace.line)
    return [draw.random() < share if agrees is None else agrees for agrees in trace.agrees]


def agreeing(agrees: Sequence[bool], count: int) -> int:
    """How many of `count` draft tokens the target would accept."""
    number = 0
    while number < min(count, len(agrees)) and agrees[number]:
        number += 1
    return number


def matching(found: Sequence[int], follows: Sequence[int]) -> int:
    """How many of `found` are what follows."""
    number = 0
    while number < min(len(found), len(follows)) and found[number] == follows[number]:
        number += 1
    return number
