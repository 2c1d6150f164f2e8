"""The speculative loop: draft, verify, accept, roll back.

Rejected rows need no repair: `keep` does not count them, and the next write overwrites them.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from .context import Context
from .drafts import Draft
from .rules import Rule
from .statistics import Statistics


def decode(
    context: Context, draft: Draft, rule: Rule, num_draft_tokens: int, limit: int, chunk: int, statistics: Statistics
) -> Iterator[list[int]]:
    """Yield the tokens of each round until `limit` tokens have come; at most `num_draft_tokens` are drafted a round.

    The context must hold at least one token. Tokens are in `context` when they are yielded, and the context stays
    valid wherever the iteration is abandoned.
    """
    start = perf_counter()
    tokens, target = context.tokens, context.target
    target.prefill(tokens, len(tokens) - 1, chunk)
    draft.prefill(tokens)
    statistics.prefill_seconds += perf_counter() - start

    while limit > 0:
        draft_tokens = draft.propose(tokens, min(num_draft_tokens, limit - 1))

        start = perf_counter()
        logits = target.step([tokens[-1], *draft_tokens], len(tokens) - 1)
        statistics.target_seconds += perf_counter() - start
        num_accepted, next_token = rule.accept(logits, draft_tokens)

        context.keep(len(tokens) + num_accepted)  # the row of the next token is still to come
        tokens += [*draft_tokens[:num_accepted], next_token]
        statistics.add_round(len(draft_tokens), num_accepted)
        limit -= num_accepted + 1
        yield tokens[-num_accepted - 1 :]
