"""Records a draft model's tokens and whether they are accepted, in rounds with a fixed number of draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Head, Logits
from ...runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ...runtime.policy.survival import top_logit


@dataclass(frozen=True)
class RecordedRound:
    """One round. probability: `top_logit` of every draft pass.

    guess: the draft's greedy choice for the last token before the round; None if its first pass fed only one token.
    said: the draft's greedy choice in every pass.
    """

    num_drafted: int
    num_accepted: int
    probability: tuple[float, ...]
    guess: int | None
    said: tuple[int, ...] = ()


@dataclass
class Recorder:
    """A schedule and guide that only records. features: `[F] float16` of every draft pass, in order. vocab: how many
    token ids the target has; the draft's choices are limited to these.
    """

    num_draft_tokens: int
    head: Head | None
    vocab: int | None = None
    rounds: list[RecordedRound] = field(default_factory=list)
    features: list[NDArray[np.float16]] = field(default_factory=list)
    needs_host: bool = True

    def __post_init__(self) -> None:
        self._probability: list[float] = []
        self._guess: int | None = None
        self._said: list[int] = []

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._probability, self._guess, self._said = [], None, []
        return RoundPlan(self.num_draft_tokens, guide=self)

    def include(self, index: int, logits: Logits) -> bool:
        if index == 0 and len(logits) > 1:
            self._guess = int(logits[-2, : self.vocab].argmax())
        self._said.append(int(logits[-1, : self.vocab].argmax()))
        self._probability.append(top_logit(logits[-1]))
        if self.head is not None:
            self.features.append(self.head.features()[-1].astype(np.float16))
        return True

    def go_on(self, num_drafted: int) -> bool:
        return True

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        return count

    def observe(self, outcome: RoundOutcome) -> None:
        drafted, accepted = outcome.num_drafted, outcome.num_accepted
        self.rounds.append(RecordedRound(drafted, accepted, tuple(self._probability), self._guess, tuple(self._said)))


def agreement(rounds: Sequence[RecordedRound], output: Sequence[int], greedy: bool) -> list[bool | None]:
    """For every output token, whether the draft model would have proposed it there; None where unknown.

    Known for a round's draft tokens up to the first rejected one. For the token after a fully accepted draft, it is
    known from the next round's first draft pass, under greedy decoding.
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


def misses(rounds: Sequence[RecordedRound], agrees: Sequence[bool | None]) -> tuple[tuple[int, ...], ...]:
    """`Trace.missed` of rounds that were decoded greedily. agrees: from `agreement`."""
    found: dict[int, tuple[int, ...]] = {}
    place = 0
    for round in rounds:
        if place and round.guess is not None and place <= len(agrees) and agrees[place - 1] is False:
            found.setdefault(place - 1, (round.guess,))
        if round.num_accepted < round.num_drafted:
            found[place + round.num_accepted] = round.said[round.num_accepted : round.num_drafted]
        place += round.num_accepted + 1
    return tuple((start, *said) for start, said in sorted(found.items()))
