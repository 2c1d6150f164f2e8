"""The draft model, one token at a time.

`HiddenDraft` is one that reads the target's hidden states: true ones for the rows of the text, its own for drafted
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ...engines.base import Logits
from ..sampling.rules import Proposer
from ..state.cached_decoder import CachedDecoder
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics
from .rounds import RoundPlan

# How many tokens a model catches up with in the first pass of its draft, rather than in an additional one.
AT_ONCE = 8


class ModelDraft:
    """Its first pass of a round feeds two tokens at least: after full acceptance its cache lacks the last token's row;
    after rounds that were looked up it lacks more.
    """

    def __init__(self, cached: CachedDecoder, rule: Proposer, statistics: Statistics) -> None:
        self._cached, self._rule, self._statistics = cached, rule, statistics

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        """Feed the prompt but its last two tokens, which the first pass feeds."""
        if plan.draft_stop is None or plan.draft_stop.go_on(0):
            self._cached.prefill(tokens, len(tokens) - 2)

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        """Draft tokens, lazily: a pass runs only when its token is requested."""
        drafted, draft_stop = list[int](), plan.draft_stop
        while len(drafted) < plan.num_draft_tokens and (draft_stop is None or draft_stop.go_on(len(drafted))):
            start = perf_counter()
            logits = self._pass(tokens, drafted)
            if logits is None:
                return
            self._statistics.draft_passes += not (drafted and self._cached.slots)
            self._statistics.draft_seconds += perf_counter() - start
            if draft_stop is not None and not draft_stop.include(len(drafted), logits):
                return
            token = self._rule.propose(logits[-1])
            if token is None:
                return
            drafted.append(token)
            yield token

    def _pass(self, tokens: Sequence[int], drafted: Sequence[int]) -> Logits | None:
        """The logits after `tokens` and `drafted`, in the last row; None where the draft cannot go on.

        Gaps longer than `AT_ONCE` are fed before the first pass. States must be able to continue where it begins.
        """
        cached = self._cached
        if drafted:
            return cached.step(drafted[-1:], len(tokens) + len(drafted) - 1)
        at_once = max(2, min(AT_ONCE, cached.chunk))
        cached.prefill(tokens, max(len(tokens) - at_once, min(cached.rows, len(tokens) - 2)))
        place = max(0, min(cached.rows, len(tokens) - 2))
        return cached.step(tokens[place:], place)


class HiddenDraft(ModelDraft):
    """Its first pass of a round reads what the target has given since, all accepted tokens at once (EAGLE-3,
    arXiv 2503.01840, section 3.1). A block's tokens all come of it (DFlash, arXiv 2602.06036).
    Where hidden states are missing, it drafts nothing.
    """

    _cached: HiddenDecoder

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        return super().one_by_one(tokens, plan.limited(self._cached.slots or plan.num_draft_tokens))

    def _pass(self, tokens: Sequence[int], drafted: Sequence[int]) -> Logits | None:
        if drafted:
            return self._cached.next(drafted[-1], len(tokens) + len(drafted) - 2)
        return self._cached.first(tokens, self._cached.widest)
