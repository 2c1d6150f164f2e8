"""Which precision of the weights is worth having: speed and quality of combinations of a target's and a draft's, measured together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from ..bundle import Format
from ..runtime.auto_precision import PRECISION, PrecisionCandidate, PrecisionTable
from ..runtime.session import Session
from ..runtime.state.statistics import Statistics


class PrecisionPair(NamedTuple):
    """draft: None where drafts are looked up in the text."""

    target: Format
    draft: Format | None


def write_precision(folder: Path, table: PrecisionTable) -> None:
    (folder / PRECISION).write_text(json.dumps(asdict(table), indent=1) + "\n", encoding="utf-8")


def pick(candidates: Sequence[PrecisionCandidate], max_divergence: float) -> PrecisionCandidate:
    """The fastest of those whose target has not moved by more than `max_divergence` nats; one that is not quantized has not moved.

    With drafts, as sessions decode until a policy says otherwise.

    By the divergence and not by the perplexity of a text: it is the rise of log perplexity that is to be expected of
    text that the target itself would write, without the chance of what a text happens to hold.
    """
    allowed = [candidate for candidate in candidates if candidate.divergence <= max_divergence]
    return max(allowed, key=lambda candidate: candidate.speculative)


class Speed(NamedTuple):
    """tokens a second; low and high: the tenth and the ninetieth percentile of the prompts.

    acceptance_length: tokens a round.
    """

    tokens_per_second: float
    low: float
    high: float
    acceptance_length: float


def measure_speeds(
    sessions: Mapping[PrecisionPair, Session],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    step: Callable[[str], None],
) -> dict[tuple[PrecisionPair, bool], Speed]:
    """Greedy generations of `new_tokens` tokens by (pair, with drafts), every prompt by all of them in turn.

    Plain decoding is measured once a format of the target. The first prompt is run once more in front, to warm up.
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
    return Speed(emitted / seconds, rates[len(rates) // 10], rates[-1 - len(rates) // 10], length)
