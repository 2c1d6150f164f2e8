"""The draft model, one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ..sampling.rules import Proposer
from ..state.context import CachedDecoder
from ..state.statistics import Statistics
from .rounds import Proposal, RoundPlan

# How many tokens a model catches up with in the first pass of its draft, rather than in an additional one.
AT_ONCE = 8


class ModelDraft:
    """The draft model.

    Its first pass of a round feeds two tokens at least: after full acceptance its cache lacks the last token's row;
    after rounds that were looked up it lacks more.
    """

    def __init__(self, cached: CachedDecoder, rule: Proposer, statistics: Statistics) -> None:
        self._cached, self._rule, self._statistics = cached, rule, statistics
        self._at_once = max(2, min(AT_ONCE, cached.chunk))

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        if plan.guide is None or plan.guide.go_on(0):
            self._cached.prefill(tokens, len(tokens) - 2)

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        drafted = list(self.one_by_one(tokens, plan))
        return Proposal(drafted, ["model"] * len(drafted))

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        """The tokens of `propose`, lazily: a pass runs only when its token is requested."""
        count, guide = plan.num_draft_tokens, plan.guide
        if not count or (guide is not None and not guide.go_on(0)):
            return
        start = perf_counter()
        # The first pass also feeds what rounds without the model have left out, where that is little. States must be
        # able to continue where the pass begins.
        self._cached.prefill(tokens, max(len(tokens) - self._at_once, min(self._cached.rows, len(tokens) - 2)))
        place = max(0, min(self._cached.rows, len(tokens) - 2))
        logits = self._cached.step(tokens[place:], place)
        drafted = 0
        while True:
            self._statistics.draft_seconds += perf_counter() - start
            self._statistics.draft_passes += 1
            if guide is not None and not guide.include(drafted, logits):
                return
            token = self._rule.propose(logits[-1])
            if token is None:
                return
            drafted += 1
            yield token
            if drafted == count or (guide is not None and not guide.go_on(drafted)):
                return
            start = perf_counter()
            logits = self._cached.step([token], len(tokens) + drafted - 1)
