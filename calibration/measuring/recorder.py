"""Records what a draft model says and what becomes of it, while rounds of a fixed number of draft tokens run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Head, Logits
from ...runtime.drafting.guide import Guide
from ...runtime.policy.survival import top_logit


@dataclass(frozen=True)
class RecordedRound:
    """probability: `top_logit` of every draft pass.

    guess: what the draft would have said, greedily, in place of the last token before
    the round; None where its first pass fed one token only.
    """

    num_drafted: int
    num_accepted: int
    probability: tuple[float, ...]
    guess: int | None


@dataclass
class Recorder:
    """A schedule and guide that changes nothing. rounds, and features `[F] float16` of every draft pass in order."""

    num_draft_tokens: int
    head: Head | None
    rounds: list[RecordedRound] = field(default_factory=list)
    features: list[NDArray[np.float16]] = field(default_factory=list)
    needs_host: bool = True

    def __post_init__(self) -> None:
        self.guide: Guide | None = self
        self._probability: list[float] = []
        self._guess: int | None = None

    def next(self, length: int, behind: int) -> int:
        self._probability, self._guess = [], None
        return self.num_draft_tokens

    def include(self, index: int, logits: Logits) -> bool:
        if index == 0 and len(logits) > 1:
            self._guess = int(logits[0].argmax())
        self._probability.append(top_logit(logits[-1]))
        if self.head is not None:
            self.features.append(self.head.features()[-1].astype(np.float16))
        return True

    def go_on(self, num_drafted: int) -> bool:
        return True

    def looked_up(self, count: int) -> int:
        return count

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        self.rounds.append(RecordedRound(num_drafted, num_accepted, tuple(self._probability), self._guess))


def agreement(rounds: Sequence[RecordedRound], output: Sequence[int], greedy: bool) -> list[bool | None]:
    """For every token of the output, whether the draft model, asked behind the tokens in front of it, gives it; None where unknown.

    Draft tokens say it up to the first that was rejected; of the token behind a wholly accepted draft the next round's
    first pass says it, when decoding greedily.
    """
    found: list[bool | None] = [None] * len(output)
    place = 0
    for round in rounds:
        if greedy and round.guess is not None and 0 < place <= len(output) and found[place - 1] is None:
            found[place - 1] = round.guess == output[place - 1]
        for index in range(min(round.num_accepted + 1, round.num_drafted)):
            if place + index < len(output):
                found[place + index] = index < round.num_accepted
        place += round.num_accepted + 1
    return found
