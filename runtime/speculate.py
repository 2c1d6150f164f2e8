"""The speculative loop: draft, verify, accept, roll back.

Rejected rows need no repair: `rows` does not advance over them and the next write overwrites them. When all k draft
tokens stand, the draft lacks the row of its last one, so its first step always feeds the last two tokens again.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from .acceptance import Rule
from .context import Context
from .statistics import Statistics


def decode(context: Context, rule: Rule, num_draft_tokens: int, limit: int, chunk: int, statistics: Statistics) -> Iterator[list[int]]:
    """Yield the tokens of each round until `limit` tokens have come; `num_draft_tokens` 0 is plain decoding.

    The context must hold at least one token. Tokens are in `context` when they are yielded, and the context stays
    valid wherever the iteration is abandoned.
    """
    start = perf_counter()
    tokens, target, draft = context.tokens, context.target, context.draft
    target.prefill(tokens, len(tokens) - 1, chunk)
    if num_draft_tokens:
        draft.prefill(tokens, len(tokens) - 2, chunk)
    statistics.prefill_seconds += perf_counter() - start

    while limit > 0:
        start = perf_counter()
        draft_tokens: list[int] = []
        for _ in range(min(num_draft_tokens, limit - 1)):
            if draft_tokens:
                logits = draft.decoder.step(draft_tokens[-1:], len(tokens) + len(draft_tokens) - 1)
            else:
                logits = draft.decoder.step(tokens[-2:], max(0, len(tokens) - 2))
            statistics.draft_seconds += perf_counter() - start
            draft_tokens.append(rule.propose(logits[-1]))
            start = perf_counter()

        logits = target.decoder.step([tokens[-1], *draft_tokens], len(tokens) - 1)
        statistics.target_seconds += perf_counter() - start
        num_accepted, next_token = rule.accept(logits, draft_tokens)

        if draft_tokens:
            # The draft was fed all of its tokens but the last.
            draft.rows = len(tokens) + min(num_accepted, len(draft_tokens) - 1)
        tokens += [*draft_tokens[:num_accepted], next_token]
        target.rows = len(tokens) - 1
        statistics.add_round(len(draft_tokens), num_accepted)
        limit -= num_accepted + 1
        yield tokens[-num_accepted - 1 :]
