"""`--precision auto`: measure the speed of combinations of target and draft precisions, and pick one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from ..bundle import Format
from ..runtime.auto_precision import PRECISION, PrecisionCandidate, PrecisionTable
from ..runtime.session import Session
from ..runtime.state.statistics import Statistics
from .statistics.intervals import ratio_interval


class PrecisionPair(NamedTuple):
    """draft: None for prompt lookup."""

    target: Format
    draft: Format | None


def write_precision(folder: Path, table: PrecisionTable) -> None:
    (folder / PRECISION).write_text(json.dumps(asdict(table), indent=1) + "\n", encoding="utf-8")


def pick(candidates: Sequence[PrecisionCandidate], max_divergence: float) -> PrecisionCandidate:
    """The fastest candidate, with drafts, whose target diverges by at most `max_divergence` nats.

    Unquantized targets do not diverge. Divergence rather than perplexity on some text: it is the expected rise of log
    perplexity on text that the target itself would write, without the chance of a particular text.
    """
    allowed = [candidate for candidate in candidates if candidate.divergence <= max_divergence]
    return max(allowed, key=lambda candidate: candidate.speculative)


class Speed(NamedTuple):
    """low, high: 10th and 90th percentile of the prompts' tokens per second. acceptance_length: tokens per round.

    seconds: by prompt, a token.
    """

    tokens_per_second: float
    low: float
    high: float
    acceptance_length: float
    seconds: tuple[float, ...]


def against(taken: Speed, candidate: PrecisionCandidate, speed: Speed) -> PrecisionCandidate:
    """The candidate with its time over that of the pair that was taken, over the same prompts."""
    found = ratio_interval(speed.seconds, taken.seconds)
    return replace(candidate, slower=found.value, slower_low=found.low, slower_high=found.high)


def measure_speeds(
    sessions: Mapping[PrecisionPair, Session],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    step: Callable[[str], None],
) -> dict[tuple[PrecisionPair, bool], Speed]:
    """Speeds by (pair, with drafts) of greedy generations of `new_tokens` tokens. All take turns on every prompt.

    Plain decoding is measured once per format of the target. The first prompt runs once more at the start, to warm up.
    """
    plans: list[tuple[PrecisionPair, bool]] = [(pair, True) for pair in sessions]
    plain = {pair.target: pair for pair in reversed(list(sessions))}
    plans += [(pair, False) for pair in plain.values()]
    found: dict[tuple[PrecisionPair, bool], list[Statistics]] = {plan: [] for plan in plans}
    for number, prompt in enumerate([prompts[0], *prompts]):
        step(f"prompt {number} of {len(prompts)}" if number else "warm up")
        for plan in plans:
            session = sessions[plan[0]]
            session.reset()
            made = session.generate(prompt, max_new_tokens=new_tokens, stop_token_ids=(), speculate=plan[1])
            if number:
                found[plan].append(made.statistics)
    return {plan: _speed(statistics) for plan, statistics in found.items()}


def _speed(statistics: Sequence[Statistics]) -> Speed:
    seconds, emitted = sum(one.decode_seconds for one in statistics), sum(one.emitted for one in statistics)
    rates = sorted(one.tokens_per_second for one in statistics)
    rounds = sum(one.rounds for one in statistics)
    length = (sum(one.accepted for one in statistics) + rounds) / rounds
    each = tuple(one.decode_seconds / one.emitted for one in statistics)
    return Speed(emitted / seconds, rates[len(rates) // 10], rates[-1 - len(rates) // 10], length, each)
