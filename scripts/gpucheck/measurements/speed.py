"""Tokens per second, speculative against plain decoding: the same prompts, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specexport.bundle import ALIAS
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics

from ..timing import Spread


@dataclass(frozen=True)
class Speed:
    """k: draft tokens per round, 0 for plain decoding. tokens_per_second: after the prefill, one value per generation.

    mean_acceptance_length: tokens per round, the bonus token included. host: milliseconds per round outside the engine.
    """

    k: int
    tokens_per_second: Spread
    over_plain: float
    mean_acceptance_length: float
    host: float


def measure_speed(session: Session, prompts: Sequence[Sequence[int]], new_tokens: int, repetitions: int) -> list[Speed]:
    """Measure greedy generations; the result for plain decoding comes first.

    Pairs of random weights accept almost nothing, so only the demo pair's ratio is meaningful.
    """
    drafts = sorted({0, 2, 4, session.max_draft_tokens} & set(range(session.max_draft_tokens + 1)))
    found: dict[int, list[Statistics]] = {k: [] for k in drafts}
    for k in drafts:  # captures what the measurement replays
        _generate(session, prompts[0], k, new_tokens)
    for _ in range(repetitions):
        for prompt in prompts:
            for k in drafts:
                found[k].append(_generate(session, prompt, k, new_tokens))
    plain = sum(row.decode_seconds for row in found[0])
    return [
        Speed(
            k,
            Spread.of([row.tokens_per_second for row in rows]),
            plain / sum(row.decode_seconds for row in rows),
            sum(row.accepted + row.rounds for row in rows) / sum(row.rounds for row in rows),
            sum(row.host_seconds for row in rows) / sum(row.rounds for row in rows) * 1e3,
        )
        for k, rows in found.items()
    ]


def _generate(session: Session, prompt: Sequence[int], k: int, new_tokens: int) -> Statistics:
    session.reset()
    return session.generate(
        prompt, max_new_tokens=new_tokens, num_draft_tokens=k, drafter=ALIAS, stop_token_ids=()
    ).statistics
