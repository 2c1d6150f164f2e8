"""The speculative loop: draft, verify, accept, roll back.

Rejected rows need no repair: `keep` does not count them, and the next write overwrites them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Protocol

from ..drafting.drafters import Draft
from ..policy.schedule import Schedule
from ..sampling.rules import Rule
from ..state.context import Context
from ..state.statistics import Statistics


class Round(Protocol):
    def prefill(self, tokens: Sequence[int]) -> None:
        """Prepare to draft after `tokens`."""
        ...

    def run(self, tokens: Sequence[int], count: int) -> tuple[list[int], int, list[int]]:
        """Draft up to `count` tokens after `tokens` and verify them: `(draft_tokens, num_accepted, following)`.

        following: the target's own tokens after those: one, or two where the first of them was a caught leaf.
        """
        ...


def decode(
    context: Context, round: Round, schedule: Schedule, limit: int, statistics: Statistics
) -> Iterator[list[int]]:
    """Yield the tokens of each round until `limit` tokens have come; `schedule` says how many are drafted.

    The context must hold at least one token. Tokens are in `context` when they are yielded, and the context stays
    valid wherever the iteration is abandoned.
    """
    start = perf_counter()
    tokens = context.tokens
    try:
        context.target.prefill(tokens, len(tokens) - 1)
        count = schedule.next(len(tokens), context.behind)
        if count:
            round.prefill(tokens)  # else when a round first drafts
    finally:
        statistics.prefill_seconds += perf_counter() - start

    while limit > 0:
        draft_tokens, num_accepted, following = round.run(tokens, min(count, limit - 1))
        context.keep(len(tokens) + num_accepted)  # the rows of what follows are still to come
        new = [*draft_tokens[:num_accepted], *following]
        tokens += new
        statistics.add_round(len(draft_tokens), num_accepted, len(following) - 1)
        schedule.observe(len(draft_tokens), num_accepted)
        limit -= len(new)
        yield new
        count = schedule.next(len(tokens), context.behind)


class HostRound:
    """Pass by pass: the host looks at the logits of each."""

    def __init__(self, context: Context, draft: Draft, rule: Rule, statistics: Statistics) -> None:
        self._target, self._draft, self._rule, self._statistics = context.target, draft, rule, statistics
        self.prefill = draft.prefill

    def run(self, tokens: Sequence[int], count: int) -> tuple[list[int], int, list[int]]:
        draft_tokens = self._draft.propose(tokens, count)
        start = perf_counter()
        logits = self._target.step([tokens[-1], *draft_tokens], len(tokens) - 1)
        self._statistics.target_seconds += perf_counter() - start
        num_accepted, next_token = self._rule.accept(logits, draft_tokens)
        return draft_tokens, num_accepted, [next_token]
