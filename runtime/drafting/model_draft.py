"""The draft model, one token at a time, or in a cascade: with something cheaper that drafts for it.

`HiddenDraft` is one that reads the target's hidden states: true ones for the rows of the text, its own for drafted
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ..sampling.rules import Proposer
from ..state.cached_decoder import CachedDecoder
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics
from .lookup import Lookup
from .rounds import RoundPlan

# How many tokens a model catches up with in the first pass of its draft, rather than in an additional one.
AT_ONCE = 8
# Wrong guesses cost only rows of a pass that is run anyway, so matches may be short; a pass takes this many at most.
SHORTEST_FOR_A_MODEL = 2
GUESSES = 3


def _caught_up(cached: CachedDecoder, tokens: Sequence[int], fed: int) -> int:
    """Where the next pass begins, which feeds the last `fed` of `tokens` at least, and a few more that the cache lacks.

    Longer gaps are fed before it. States must be able to continue where the pass begins.
    """
    at_once = max(2, min(AT_ONCE, cached.chunk))
    cached.prefill(tokens, max(len(tokens) - at_once, min(cached.rows, len(tokens) - fed)))
    return max(0, min(cached.rows, len(tokens) - fed))


class SmallerModel:
    """Drafts the likeliest tokens of a smaller model. Rows of its own guesses do not count in its cache: guesses that
    the larger model drafts too are fed again with the next tokens, in one pass.
    """

    def __init__(self, cached: CachedDecoder, vocab_size: int, statistics: Statistics) -> None:
        """vocab_size: the target's; the model may know more ids."""
        self._cached, self._vocab_size, self._statistics = cached, vocab_size, statistics

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """Up to `count` tokens that the model may draft after `tokens` and `drafted`."""
        cached, known = self._cached, [*tokens, *drafted]
        place = _caught_up(cached, known, 1)
        logits = cached.step(known[place:], place)
        guesses = [int(logits[-1, : self._vocab_size].argmax())]
        while len(guesses) < count:
            logits = cached.step(guesses[-1:], len(known) + len(guesses) - 1)
            guesses.append(int(logits[-1, : self._vocab_size].argmax()))
        cached.keep(len(known))
        self._statistics.guess_passes += len(guesses)
        return guesses


class ModelDraft:
    """Its first pass of a round feeds two tokens at least: after full acceptance its cache lacks the last token's row;
    after rounds that were looked up it lacks more.

    In a cascade, passes are also fed the tokens that `source` expects next. Every token is drawn from the model's own
    row after its own prefix, and is judged by that row's distribution. A guess only decides which rows a pass already
    has; the rows after the first token that differs from its guess are not used.
    """

    def __init__(
        self,
        cached: CachedDecoder,
        rule: Proposer,
        statistics: Statistics,
        source: Lookup | SmallerModel | None = None,
    ) -> None:
        # States cannot be rolled back to any row within a round; `runnable_drafter` refuses.
        assert source is None or not cached.decoder.has_states
        self._cached, self._rule, self._statistics, self._source = cached, rule, statistics, source

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        if plan.draft_stop is None or plan.draft_stop.go_on(0):
            self._cached.prefill(tokens, len(tokens) - 2)

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        """Draft tokens, lazily: a pass runs only when its token is requested."""
        cached, drafted, count, draft_stop = self._cached, list[int](), plan.num_draft_tokens, plan.draft_stop
        while len(drafted) < count and (draft_stop is None or draft_stop.go_on(len(drafted))):
            start = perf_counter()
            place = len(tokens) + len(drafted) - 1 if drafted else _caught_up(cached, tokens, 2)
            fed = drafted[-1:] or tokens[place:]
            max_guesses = (
                min(GUESSES, count - len(drafted) - 1, cached.widest - len(fed)) if self._source is not None else 0
            )
            guesses = (
                self._source.find(tokens, max_guesses, drafted) if self._source is not None and max_guesses > 0 else []
            )
            logits = cached.step([*fed, *guesses], place)
            self._statistics.draft_seconds += perf_counter() - start
            self._statistics.draft_passes += 1
            first = len(logits) - len(guesses)  # the row of the first token, counted from 1
            for index, guess in enumerate([*guesses, None]):
                cached.rows = place + len(fed) + index  # rows of drafted tokens only, wherever this is abandoned
                rows = logits[: first + index]
                if draft_stop is not None and not draft_stop.include(len(drafted), rows):
                    return
                token = self._rule.propose(rows[-1])
                if token is None:
                    return
                drafted.append(token)
                cached.rows += token == guess
                yield token
                if token != guess or len(drafted) == count:
                    break


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
