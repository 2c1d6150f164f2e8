"""L3 of docs/losslessness.md: what a session samples, end to end, against the target's exact distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import FakeDecoder, fake_session
from specexport.bundle import Contract
from specexport.runtime.sampling import SamplingParameters, processed_probabilities

VOCAB, LENGTH, TRIALS = 5, 3, 6000
PROMPT = [1, 4, 2]
SMALL = Contract(capacity=16, max_draft_tokens=3, prompt_chunk=4, precision="fp32")
# A correct sampler fails with probability 1e-6 a case; the seeds are fixed, so a case that passes keeps passing.
NORMAL_QUANTILE = 4.753


def exact(target: FakeDecoder, parameters: SamplingParameters) -> dict[tuple[int, ...], float]:
    def after(context: tuple[int, ...]) -> np.ndarray:
        return processed_probabilities(target.logits_after([*PROMPT, *context])[None], parameters)[0]

    return {
        tokens: float(np.prod([after(tokens[:i])[token] for i, token in enumerate(tokens)]))
        for tokens in itertools.product(range(VOCAB), repeat=LENGTH)
    }


def chi_squared(expected: dict[tuple[int, ...], float], found: Counter[tuple[int, ...]], trials: int) -> tuple[float, float]:
    """The statistic and its 1 - 1e-6 quantile (Wilson and Hilferty 1931); cells below five expected are one."""
    large = [tokens for tokens, probability in expected.items() if probability * trials >= 5]
    rest = 1 - sum(expected[tokens] for tokens in large)
    cells = [(expected[tokens] * trials, found[tokens]) for tokens in large]
    if rest * trials >= 5:
        cells.append((rest * trials, trials - sum(found[tokens] for tokens in large)))
    freedom = len(cells) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + NORMAL_QUANTILE * (2 / (9 * freedom)) ** 0.5) ** 3
    return sum((seen - mean) ** 2 / mean for mean, seen in cells), limit


@pytest.mark.parametrize(
    ("options", "noise", "k"),
    [
        ({"temperature": 1.0}, 0.7, 3),
        ({"temperature": 0.8, "top_k": 3}, 2.0, 2),
        ({"temperature": 1.3, "top_p": 0.8}, 0.7, 1),
        ({"temperature": 1.0}, 0.7, 0),
    ],
)
def test_sampled_output_has_the_targets_distribution(tmp_path: Path, options: dict[str, Any], noise: float, k: int) -> None:
    target, draft = FakeDecoder(SMALL, VOCAB, seed=1), FakeDecoder(SMALL, VOCAB, seed=1, noise=noise)
    session = fake_session(tmp_path, target, draft)
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(TRIALS):
        # One more token than is looked at, so that the last round still drafts.
        generation = session.generate(PROMPT, max_new_tokens=LENGTH + 1, seed=seed, num_draft_tokens=k, **options)
        found[generation.tokens[:LENGTH]] += 1
        accepted += generation.statistics.accepted
    expected = exact(target, SamplingParameters(**options))
    assert not set(found) - {tokens for tokens, probability in expected.items() if probability}
    statistic, limit = chi_squared(expected, found, TRIALS)
    assert statistic < limit
    assert (accepted > TRIALS / 4) == (k > 0)


def test_the_test_has_power() -> None:
    """The draft's own distribution, or one token's probability off by a third, would not pass."""
    parameters = SamplingParameters(temperature=1.0)
    target = FakeDecoder(SMALL, VOCAB, seed=1)
    expected = exact(target, parameters)
    rng = np.random.default_rng(0)
    favourite = max(expected, key=lambda tokens: expected[tokens])
    tilted = {tokens: probability * (1.33 if tokens[0] == favourite[0] else 1.0) for tokens, probability in expected.items()}
    for wrong in (exact(FakeDecoder(SMALL, VOCAB, seed=1, noise=0.7), parameters), tilted):
        weights = np.array(list(wrong.values()))
        drawn = rng.choice(len(weights), TRIALS, p=weights / weights.sum())
        keys = list(wrong)
        statistic, limit = chi_squared(expected, Counter(keys[index] for index in drawn), TRIALS)
        assert statistic > limit
