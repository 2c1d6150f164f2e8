"""What rounds cost on one host and engine, by the number of draft tokens and by the length of the sequence.

`specexport calibrate` measures them (`runtime/costs/meter.py`); `costs.json` in the bundle holds them by draft.
Notation of the rules: d is a draft pass, v(m) a target pass over m tokens, h what the host adds to a round, t1 a plain
round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

COSTS = "costs.json"
COSTS_VERSION = 2


@dataclass(frozen=True)
class MeasuredTime:
    """A time in seconds: median, tenth and ninetieth percentile of the measurements."""

    median: float
    p10: float
    p90: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.p90) and 0 <= self.p10 <= self.median <= self.p90):
            raise ValueError(
                f"{self.p10}, {self.median}, {self.p90} are not the percentiles 10, 50 and 90 of a time in seconds"
            )

    def scaled(self, factor: float) -> MeasuredTime:
        return MeasuredTime(factor * self.median, factor * self.p10, factor * self.p90)


@dataclass(frozen=True)
class CostPoint:
    """Costs when the caches hold `context` tokens.

    k goes from 0 to the bundle's max_draft_tokens in `rounds` and `host`.

    rounds[k]: a whole round that drafts k tokens with the model, the host's part included; rounds[0] is a plain one,
    t1. draft: one draft pass, d, in the mean; of a draft of blocks what each token after the first adds. verify[m - 1]:
    a target pass over m tokens, v(m). host[k]: the round without its passes, h. Where the device runs whole rounds,
    draft and verify follow from the differences between rounds: d = 0, v(m) = rounds[m - 1].
    """

    context: int
    rounds: tuple[MeasuredTime, ...]
    draft: MeasuredTime
    verify: tuple[MeasuredTime, ...]
    host: tuple[MeasuredTime, ...]

    def __post_init__(self) -> None:
        if not len(self.rounds) == len(self.verify) == len(self.host) >= 1:
            raise ValueError(
                f"{len(self.rounds)} rounds, {len(self.verify)} verify passes and {len(self.host)} host times "
                "do not match"
            )
        if self.context < 1:
            raise ValueError(f"a context of {self.context} tokens is too short; it must be at least 1")
        for name in ("rounds", "verify"):
            for index, time in enumerate(getattr(self, name)):
                if time.median <= 0:
                    raise ValueError(
                        f"{name}[{index}] takes {time.median} seconds; it must be above 0, so measure the costs again"
                    )

    def scaled(self, factor: float) -> CostPoint:
        def scaled(times: tuple[MeasuredTime, ...]) -> tuple[MeasuredTime, ...]:
            return tuple(time.scaled(factor) for time in times)

        draft = self.draft.scaled(factor)
        return CostPoint(self.context, scaled(self.rounds), draft, scaled(self.verify), scaled(self.host))


@dataclass(frozen=True)
class RoundCosts:
    """Medians in seconds at one context length, for schedules. Indices as in `CostPoint`."""

    rounds: tuple[float, ...]
    draft: float
    verify: tuple[float, ...]
    host: tuple[float, ...]
    draft_prefill: float  # per token

    @property
    def plain(self) -> float:
        """t1: a plain round, the host's part included."""
        return self.rounds[0]

    def looked_up(self, num_draft_tokens: int) -> float:
        """A round whose draft was looked up: v(k + 1) + h."""
        return self.verify[num_draft_tokens] + self.host[num_draft_tokens]

    def seconds(self, num_draft_tokens: int, passes: int) -> float:
        """A round after as many passes of the draft as in rounds that draft `passes` tokens with the model: more if a
        token was left out, fewer if others were looked up.
        """
        rows = self.looked_up(num_draft_tokens) - self.looked_up(passes)
        return max(self.verify[num_draft_tokens], self.rounds[passes] + rows)


@dataclass(frozen=True)
class Costs:
    """Costs of rounds with one draft, or with lookups alone in a bundle without one.

    bundle: `bundle_identity` with that draft. host: `describe_host`. engine: its name. threads: as given to `load`.

    target_prefill, draft_prefill: seconds per prompt token. points: by rising context.
    """

    schema_version: int
    bundle: str
    host: str
    engine: str
    threads: int
    made: str
    target_prefill: float
    draft_prefill: float
    points: tuple[CostPoint, ...]

    def __post_init__(self) -> None:
        if self.schema_version != COSTS_VERSION:
            raise ValueError(f"schema version {self.schema_version}, this specexport reads {COSTS_VERSION}")
        contexts = [point.context for point in self.points]
        if not contexts or contexts != sorted(set(contexts)):
            raise ValueError(f"costs at the contexts {contexts}; expected one or more, rising")
        for name in ("target_prefill", "draft_prefill"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be the seconds per token")
        if len({len(point.rounds) for point in self.points}) > 1:
            raise ValueError("the contexts have costs of different numbers of tokens")

    @property
    def max_draft_tokens(self) -> int:
        return len(self.points[0].rounds) - 1

    def like(self, other: Costs) -> Costs:
        """Scaled so that plain rounds take as long as in `other`, which has the same contexts: drafts are compared with
        each other, and the host may have been slower while one of them was measured.
        """
        pairs = zip(self.points, other.points, strict=True)
        points = tuple(ours.scaled(theirs.rounds[0].median / ours.rounds[0].median) for ours, theirs in pairs)
        return replace(self, points=points)

    def at(self, context: int) -> RoundCosts:
        """Medians at `context` tokens: interpolated linearly between two measured contexts, else those of the
        nearest.
        """
        above = next((i for i, point in enumerate(self.points) if point.context >= context), len(self.points) - 1)
        high = self.points[above]
        low = self.points[above - 1] if above and context < high.context else high
        share = 1.0 if low is high else (context - low.context) / (high.context - low.context)

        def mix(one: MeasuredTime, other: MeasuredTime) -> float:
            return one.median + share * (other.median - one.median)

        def mixed(one: tuple[MeasuredTime, ...], other: tuple[MeasuredTime, ...]) -> tuple[float, ...]:
            return tuple(map(mix, one, other))

        return RoundCosts(
            mixed(low.rounds, high.rounds),
            mix(low.draft, high.draft),
            mixed(low.verify, high.verify),
            mixed(low.host, high.host),
            self.draft_prefill,
        )
