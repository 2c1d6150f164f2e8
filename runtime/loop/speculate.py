"""The speculative loop: plan, draft, verify, accept, roll back.

Rejected rows need no repair: `keep` does not count them, and the next write overwrites them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Protocol

from ...engines.base import Logits
from ..drafting.drafters import Draft
from ..drafting.names import model_of
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ..policy.schedule import Schedule
from ..sampling.logprobs import TokenLogprobs, token_logprobs
from ..sampling.rules import Rule
from ..state.context import Context
from ..state.statistics import Statistics


class Round(Protocol):
    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None: ...

    def run(self, tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
        """Draft after `tokens` as planned, and verify the draft."""
        ...


def decode(
    context: Context, round: Round, schedule: Schedule, limit: int, statistics: Statistics
) -> Iterator[RoundOutcome]:
    """Yield each round until `limit` tokens have come; `schedule` plans them.

    The context must hold at least one token. The tokens of a round are in `context` when it is yielded, and the context
    stays valid wherever the iteration is abandoned.
    """
    start = perf_counter()
    tokens = context.tokens

    def missing_rows(drafter: str) -> int:
        model = model_of(drafter)
        return len(tokens) - context.drafts[model].rows if model is not None else 0

    try:
        context.target.prefill(tokens, len(tokens) - 1)
        plan = schedule.plan(SequenceState(len(tokens), missing_rows))
        if plan.num_draft_tokens:
            round.prefill(tokens, plan)  # else when a round first drafts
    finally:
        statistics.prefill_seconds += perf_counter() - start

    while limit > 0:
        outcome = round.run(tokens, plan.limited(limit - 1))
        context.keep(len(tokens) + outcome.num_accepted)  # the rows of what follows are still to come
        new, place = outcome.tokens, len(tokens) - 1
        tokens += new
        context.take(place, outcome.num_accepted + 1)
        statistics.add_round(outcome.sources, outcome.num_accepted, len(outcome.following) - 1)
        schedule.observe(outcome)
        limit -= len(new)
        yield outcome
        plan = schedule.plan(SequenceState(len(tokens), missing_rows))


class HostRound:
    """Pass by pass: the host looks at the logits of each."""

    def __init__(
        self, context: Context, draft: Draft, rule: Rule, statistics: Statistics, likeliest: int | None = None
    ) -> None:
        """likeliest: for how many alternatives to each token log-probabilities are wanted, None for none at all."""
        self._target, self._draft, self._rule, self._statistics = context.target, draft, rule, statistics
        self._likeliest = likeliest
        self.prefill = draft.prefill

    def run(self, tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
        draft_tokens, sources = self._draft.propose(tokens, plan)
        start = perf_counter()
        logits = self._target.step([tokens[-1], *draft_tokens], len(tokens) - 1)
        self._statistics.target_seconds += perf_counter() - start
        num_accepted, next_token = self._rule.accept(logits, draft_tokens)
        logprobs = logprobs_of(logits, [*draft_tokens[:num_accepted], next_token], self._likeliest)
        return RoundOutcome(
            tuple(draft_tokens),
            tuple(sources),
            num_accepted,
            (next_token,),
            plan.drafter,
            logprobs=logprobs,
        )


def logprobs_of(logits: Logits, tokens: Sequence[int], likeliest: int | None) -> tuple[TokenLogprobs, ...]:
    """Of each token, by the row of `logits` before it, which rules leave as the target gave it. likeliest: see
    `HostRound`.
    """
    if likeliest is None:
        return ()
    return tuple(token_logprobs(row, token, likeliest) for row, token in zip(logits, tokens, strict=False))
