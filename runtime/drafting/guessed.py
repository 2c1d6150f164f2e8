"""Chains: a draft model for which something cheaper drafts, a lookup or a smaller model (three models in all)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Protocol

from ..sampling.rules import Proposer
from ..state.context import CachedDecoder
from ..state.statistics import Statistics
from .model_draft import AT_ONCE, ModelDraft
from .rounds import RoundPlan

# Wrong guesses cost only rows of a pass that is run anyway, so matches may be short; a pass takes this many at most.
SHORTEST_FOR_A_MODEL = 2
GUESSES = 3


class CascadeSource(Protocol):
    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """Up to `count` tokens that the model may draft after `tokens` and `drafted`."""
        ...


class ModelCascadeSource:
    """The likeliest tokens of a smaller model. Rows of its own guesses do not count in its cache: guesses that the
    larger model drafts too are fed again with the next tokens, in one pass.
    """

    def __init__(self, cached: CachedDecoder, vocab_size: int, statistics: Statistics) -> None:
        """vocab_size: the target's; the model may know more ids."""
        self._cached, self._vocab_size, self._statistics = cached, vocab_size, statistics
        self._at_once = max(2, min(AT_ONCE, cached.chunk))

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        cached, known = self._cached, [*tokens, *drafted]
        cached.prefill(known, max(len(known) - self._at_once, min(cached.rows, len(known) - 1)))
        place = min(cached.rows, len(known) - 1)
        logits = cached.step(known[place:], place)
        guesses = [int(logits[-1, : self._vocab_size].argmax())]
        while len(guesses) < count:
            logits = cached.step(guesses[-1:], len(known) + len(guesses) - 1)
            guesses.append(int(logits[-1, : self._vocab_size].argmax()))
        cached.keep(len(known))
        self._statistics.guess_passes += len(guesses)
        return guesses


class CascadeDraft(ModelDraft):
    """A draft model for which something else drafts: its passes are also fed the guesses for the tokens that come next.

    Every token is drawn from the model's own row after its own prefix, and is judged by that row's distribution. A
    guess only decides which rows a pass already has; the rows after the first token that differs from its guess are not
    used.
    """

    def __init__(self, cached: CachedDecoder, guess: CascadeSource, rule: Proposer, statistics: Statistics) -> None:
        super().__init__(cached, rule, statistics)
        assert not cached.decoder.has_states  # states cannot be rolled back to any row; `runnable_drafter` refuses
        self._guess = guess

    def one_by_one(self, tokens: Sequence[int], plan: RoundPlan) -> Iterator[int]:
        cached, drafted, count, guide = self._cached, list[int](), plan.num_draft_tokens, plan.guide
        while len(drafted) < count and (guide is None or guide.go_on(len(drafted))):
            start = perf_counter()
            if drafted:
                place, fed = len(tokens) + len(drafted) - 1, drafted[-1:]
            else:
                cached.prefill(tokens, max(len(tokens) - self._at_once, min(cached.rows, len(tokens) - 2)))
                place = max(0, min(cached.rows, len(tokens) - 2))
                fed = list(tokens[place:])
            room = min(GUESSES, count - len(drafted) - 1, cached.widest - len(fed))
            guesses = self._guess.find(tokens, room, drafted) if room > 0 else []
            logits = cached.step([*fed, *guesses], place)
            self._statistics.draft_seconds += perf_counter() - start
            self._statistics.draft_passes += 1
            first = len(logits) - len(guesses)  # the row of the first token, counted from 1
            for index, guess in enumerate([*guesses, None]):
                cached.rows = place + len(fed) + index  # rows of drafted tokens only, wherever this is abandoned
                rows = logits[: first + index]
                if guide is not None and not guide.include(len(drafted), rows):
                    return
                token = self._rule.propose(rows[-1])
                if token is None:
                    return
                drafted.append(token)
                cached.rows += token == guess
                yield token
                if token != guess or len(drafted) == count:
                    break
