"""What tests of replays compare with: text that repeats itself, and the rounds that a session really runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from specexport.engines.base import Logits
from specexport.runtime.drafting.rounds import RoundOutcome
from specexport.runtime.policy.schedule import FixedSchedule

from .doubles import FakeDecoder


class Periodic(FakeDecoder):
    """Repeats itself with a period of some tokens, now and then not: so that lookups find something."""

    def logits_after(self, context: Sequence[float] | np.ndarray) -> Logits:
        return super().logits_after([token % 5 for token in list(context)[-3:]])


class Watched(FixedSchedule):
    """A fixed schedule that remembers the rounds."""

    def __init__(self, num_draft_tokens: int) -> None:
        super().__init__(num_draft_tokens)
        self.rounds: list[tuple[int, int]] = []

    def observe(self, outcome: RoundOutcome) -> None:
        self.rounds.append((outcome.num_drafted, outcome.num_accepted))
