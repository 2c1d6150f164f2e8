"""L3 of docs/losslessness.md: the samples of a whole session, compared with the exact distribution of its target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...bundle import Defaults
from ...engines.base import Decoder
from ...errors import ParameterError
from ..drafting.names import check_drafter
from ..sampling.adjustment import LogitAdjustment
from ..sampling.distribution import Distribution
from ..sampling.parameters import SamplingParameters
from ..sampling.truncation import processed_distribution
from ..session import Session
from ..state.cached_decoder import CachedDecoder

Joint = dict[tuple[int, ...], float]

# About how often a correct sampler fails a case.
FALSE_ALARM = 1e-6
NORMAL_QUANTILE = 4.753424  # of 1 - FALSE_ALARM
# Sequences with fewer expected counts share a cell: the statistic's tail would be heavier than chi-squared's.
SMALLEST_CELL = 20


@dataclass(frozen=True)
class Sampled:
    """One chi-squared test. limit: the value that the statistic exceeds with probability FALSE_ALARM if nothing is
    wrong.

    drafted: draft tokens of all trials; 0 proves nothing about drafting.
    """

    drafter: str
    verification: str
    trials: int
    cells: int
    statistic: float
    limit: float
    mean_acceptance_length: float
    drafted: int

    @property
    def passed(self) -> bool:
        return self.statistic <= self.limit


def exact_joint(
    target: Decoder,
    prompt: Sequence[int],
    parameters: SamplingParameters,
    length: int,
    chunk: int,
) -> Joint:
    """The probability of every sequence of `length` tokens after `prompt`, from passes of the target alone.

    min_new_tokens forbids nothing in it: stop tokens do not end a sequence.
    """
    cached, adjustment = (
        CachedDecoder(target, chunk),
        LogitAdjustment(parameters, prompt, (), target.vocab_size),
    )

    def after(tokens: tuple[int, ...]) -> Distribution:
        sequence = [*prompt, *tokens]
        cached.keep(len(prompt) - 1)
        cached.prefill(sequence, len(sequence) - 1)
        row = cached.step(sequence[-1:], len(sequence) - 1)[0]
        return processed_distribution(adjustment(row, tokens), parameters)

    joint: Joint = {(): 1.0}
    for _ in range(length):
        joint = {
            (*tokens, token): probability * share
            for tokens, probability in joint.items()
            for token, share in after(tokens).items()
        }
    return joint


def sample_session(
    session: Session,
    prompt: Sequence[int],
    params: SamplingParameters,
    expected: Joint,
    trials: int,
) -> Sampled:
    """Generate `trials` times with seeds of their own, and compare the result with `expected`.

    params: drafter, verification, and the settings of the processed distribution in `expected`. Raises `ParameterError`
    if so few trials cannot tell anything.
    """
    needed = fewest_trials(expected)
    if trials < needed:
        raise ParameterError(
            f"{trials} trials are too few to test the target's distribution after this prompt; it takes at least "
            f"{needed}",
            "trials",
        )
    length = len(next(iter(expected)))
    counts: Counter[tuple[int, ...]] = Counter()
    rounds = accepted = drafted = 0
    # One round's tokens more than are examined, so that the last round that matters drafts as many as any other.
    most = length + session.max_draft_tokens
    drafter = check_drafter(params.drafter, session.bundle.manifest.draft_names)
    params = replace(params, max_new_tokens=most, stop_token_ids=(), drafter=drafter).with_defaults(Defaults())
    for seed in range(trials):
        generation = session.generate(prompt, params, seed=seed)
        counts[generation.tokens[:length]] += 1
        rounds += generation.statistics.rounds
        accepted += generation.statistics.accepted + generation.statistics.caught
        drafted += generation.statistics.drafted
    statistic, limit, cells = chi_squared(expected, counts)
    length_accepted = (rounds + accepted) / rounds
    return Sampled(drafter, params.verification, trials, cells, statistic, limit, length_accepted, drafted)


def fewest_trials(expected: Joint) -> int:
    """The least number of trials for two cells; with fewer, every sample would pass."""
    largest = max(expected.values())
    return math.ceil(SMALLEST_CELL / min(largest, 1.0 - largest)) if largest < 1.0 - 1e-9 else 1


def chi_squared(expected: Joint, counts: Counter[tuple[int, ...]]) -> tuple[float, float, int]:
    """`(statistic, its 1 - FALSE_ALARM quantile, cells)`; rare sequences share a cell.

    The quantile is that of Wilson and Hilferty (1931). An impossible sequence makes the statistic infinite.
    """
    trials = counts.total()
    large = [tokens for tokens, probability in expected.items() if probability * trials >= SMALLEST_CELL]
    cells = [(expected[tokens] * trials, counts[tokens]) for tokens in large]
    rest = trials - sum(mean for mean, _ in cells)
    if rest >= SMALLEST_CELL:
        cells.append((rest, trials - sum(count for _, count in cells)))
    impossible = any(not expected.get(tokens) for tokens in counts)
    freedom = max(1, len(cells) - 1)
    limit = freedom * (1 - 2 / (9 * freedom) + NORMAL_QUANTILE * (2 / (9 * freedom)) ** 0.5) ** 3
    statistic = float("inf") if impossible else sum((count - mean) ** 2 / mean for mean, count in cells)
    return statistic, limit, len(cells)
