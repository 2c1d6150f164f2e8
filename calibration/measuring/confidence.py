"""The draft's confidence on recorded requests, for replays.

It is known at tokens that were judged. At other tokens, that of another token of the request with the same outcome is
used, and after a round's first miss, that of the miss.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...runtime.policy.survival import Survival
from .record import Record
from .traces import known


@dataclass(frozen=True)
class Reading:
    """The draft's confidence on recorded requests.

    survival: turns it into a probability of acceptance. logits: for each request, in the order of the traces, the
    confidence at every output token.
    """

    survival: Survival
    logits: tuple[tuple[float, ...], ...]

    def only(self, numbers: Sequence[int]) -> Reading:
        """For the requests with these numbers only."""
        return replace(self, logits=tuple(self.logits[number] for number in numbers))


def read_confidence(record: Record) -> tuple[float, ...]:
    """The draft's confidence at every output token."""
    logits: list[float | None] = [None] * record.trace.output_tokens
    place = 0
    for (_, accepted), told in zip(record.rounds, record.confidence, strict=True):
        for index, one in enumerate(told, place):
            if index < len(logits):
                logits[index] = one
        place += accepted + 1
    agrees = known(record.trace)
    pools: dict[bool, list[float]] = {True: [], False: []}
    for logit, right in zip(logits, agrees, strict=True):
        if logit is not None:
            pools[right].append(logit)
    draw, every = random.Random(record.line), pools[True] + pools[False] or [0.0]
    return tuple(
        draw.choice(pools[right] or every) if logit is None else logit
        for logit, right in zip(logits, agrees, strict=True)
    )
