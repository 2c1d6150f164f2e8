"""`--precision auto`: measure the speed of combinations of target and draft precisions, and pick one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from ..bundle import Format
from ..bundle.auto_precision import PRECISION, PrecisionTable
from ..calibration.statistics.intervals import ratio_interval
from ..calibration.statistics.results import Interval
from ..runtime.session import Session
from ..runtime.state.statistics import Statistics

# Prompts that are run at least, if there are as many; and the seconds that further ones may take in a close call.
PROMPTS = 12
MORE_SECONDS = 120.0


class PrecisionPair(NamedTuple):
    """draft: None for prompt lookup."""

    target: Format
    draft: Format | None


def write_precision(folder: Path, table: PrecisionTable) -> None:
    (folder / PRECISION).write_text(json.dumps(asdict(table), indent=1) + "\n", encoding="utf-8")


def pick(speeds: Speeds, divergences: Mapping[Format, float], max_divergence: float) -> PrecisionPair:
    """The fastest pair, with drafts, whose target diverges by at most `max_divergence` nats.

    divergences: of the targets, by format; 0 if unquantized.

    Divergence is used instead of perplexity on some text, because it is the expected rise of log perplexity on text
    that the target itself would write, without the randomness of a particular text.
    """
    allowed = [pair for pair, drafts in speeds if drafts and divergences[pair.target] <= max_divergence]
    return max(allowed, key=lambda pair: speeds[pair, True].tokens_per_second)


def is_close(speeds: Speeds, divergences: Mapping[Format, float], max_divergence: float) -> bool:
    """Whether another pair that `max_divergence` allows may be as fast as the one that `pick` chooses."""
    best = pick(speeds, divergences, max_divergence)
    others = [pair for pair, drafts in speeds if drafts and pair != best and divergences[pair.target] <= max_divergence]
    return any(slower(speeds[pair, True], speeds[best, True]).low <= 1 for pair in others)


class Speed(NamedTuple):
    """low, high: 10th and 90th percentile of the prompts' tokens per second. acceptance_length: tokens per round.

    seconds: per token, for each prompt.
    """

    tokens_per_second: float
    low: float
    high: float
    acceptance_length: float
    seconds: tuple[float, ...]


Speeds = Mapping[tuple[PrecisionPair, bool], Speed]
Found = Mapping[tuple[PrecisionPair, bool], Sequence[Statistics]]


def slower(speed: Speed, taken: Speed) -> Interval:
    """A pair's time divided by that of the chosen one, over the same prompts."""
    return ratio_interval(speed.seconds, taken.seconds)


def spread(items: Sequence[str], most: int) -> list[str]:
    """At most `most` of the items, spread evenly, in an order in which each batch of PROMPTS is spread evenly too."""
    count = min(most, len(items))
    chosen = [items[number * len(items) // count] for number in range(count)]
    rounds = -(-count // PROMPTS)
    return [item for start in range(rounds) for item in chosen[start::rounds]]


def measure_speeds(
    sessions: Mapping[PrecisionPair, Session],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    step: Callable[[str], None],
    undecided: Callable[[Speeds], bool] = lambda speeds: False,
) -> dict[tuple[PrecisionPair, bool], Speed]:
    """Speeds by (pair, with drafts) of greedy generations of `new_tokens` tokens. All take turns on every prompt.

    Plain decoding is measured once per format of the target. The first prompt runs once in advance, as a warm-up.
    After the first PROMPTS prompts, further ones are run in batches of that size while the speeds are `undecided`, and
    only while one more, at the mean time so far, keeps the further ones within MORE_SECONDS.
    """
    plans: list[tuple[PrecisionPair, bool]] = [(pair, True) for pair in sessions]
    plain = {pair.target: pair for pair in reversed(list(sessions))}
    plans += [(pair, False) for pair in plain.values()]
    found: dict[tuple[PrecisionPair, bool], list[Statistics]] = {plan: [] for plan in plans}

    def settled(done: int) -> bool:
        return done % PROMPTS == 0 and not undecided(_speeds(found))

    for number, prompt in enumerate([prompts[0], *prompts]):
        done = number - 1
        if done >= PROMPTS and (_with_another(found, done) > MORE_SECONDS or settled(done)):
            break
        step(f"prompt {number} of {len(prompts)}" if number else "warm up")
        for plan in plans:
            session = sessions[plan[0]]
            session.reset()
            made = session.generate(prompt, max_new_tokens=new_tokens, stop_token_ids=(), speculate=plan[1])
            if number:
                found[plan].append(made.statistics)
    return _speeds(found)


def _with_another(found: Found, done: int) -> float:
    """Seconds that the prompts after the first PROMPTS would take, with one more that takes as long as the mean."""
    every = [one.total_seconds for statistics in found.values() for one in statistics]
    later = [one.total_seconds for statistics in found.values() for one in statistics[PROMPTS:]]
    return sum(later) + sum(every) / done


def _speeds(found: Found) -> dict[tuple[PrecisionPair, bool], Speed]:
    return {plan: _speed(statistics) for plan, statistics in found.items()}


def _speed(statistics: Sequence[Statistics]) -> Speed:
    seconds, emitted = sum(one.decode_seconds for one in statistics), sum(one.emitted for one in statistics)
    rates = sorted(one.tokens_per_second for one in statistics)
    rounds = sum(one.rounds for one in statistics)
    length = (sum(one.accepted for one in statistics) + rounds) / rounds
    each = tuple(one.decode_seconds / one.emitted for one in statistics)
    return Speed(emitted / seconds, rates[len(rates) // 10], rates[-1 - len(rates) // 10], length, each)
