"""A draft that reads the target's hidden states: true ones for the rows of the text, its own for drafted tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ..sampling.rules import Proposer
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics
from .rounds import RoundPlan


class HiddenDraft:
    """Its first pass of a round reads what the target has given since, all accepted tokens at once (EAGLE-3,
    arXiv 2503.01840, section 3.1). A block's tokens all come of it (DFlash, arXiv 2602.06036).
    Where hidden states are missing, it drafts nothing.
    """

    def __init__(self, cached: HiddenDecoder, rule: Proposer, statistics: Statistics) -> None:
        self._cached, self._rule, self._statistics = cached, rule, statistics

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        """The rows of the prompt but the last, which the first pass writes."""
        if plan.draft_stop is None or plan.draft_stop.go_on(0):
            self._cached.prefill(tokens, len(tokens) - 2)

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        """Draft tokens, lazily: a pass runs only when its token is requested."""
        cached, drafted, draft_stop = self._cached, list[int](), plan.draft_stop
        most = min(plan.num_draft_tokens, cached.slots or plan.num_draft_tokens)
        while len(drafted) < most and (draft_stop is None or draft_stop.go_on(len(drafted))):
            start = perf_counter()
            if drafted:
                logits = cached.next(drafted[-1], len(tokens) + len(drafted) - 2)
            elif (first := cached.first(tokens, cached.widest)) is not None:
                logits = first
            else:
                return
            self._statistics.draft_seconds += perf_counter() - start
            self._statistics.draft_passes += 1
            if draft_stop is not None and not draft_stop.include(len(drafted), logits):
                return
            token = self._rule.propose(logits[-1])
            if token is None:
                return
            drafted.append(token)
            yield token
