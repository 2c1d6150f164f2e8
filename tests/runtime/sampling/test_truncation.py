"""The chain behind the penalties, against transformers' own warpers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.truncation import NUCLEUS, processed_distribution
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def dense(found: Distribution, vocab: int) -> np.ndarray:
    """All probabilities `[vocab]` of a distribution, whose own form is checked on the way."""
    assert found.probs.dtype == np.float64
    assert found.probs.sum() == pytest.approx(1.0, abs=1e-12)
    if found.tokens is None:
        assert len(found.probs) == vocab
        return found.probs
    assert len(found.tokens) == len(found.probs)
    assert (np.diff(found.tokens) > 0).all()
    whole = np.zeros(vocab)
    whole[found.tokens] = found.probs
    return whole


def process(logits: np.ndarray, parameters: SamplingParameters) -> np.ndarray:
    before = logits.copy()
    found = dense(processed_distribution(logits, parameters), len(logits))
    assert np.array_equal(logits, before)
    return found


def by_transformers(logits: np.ndarray, parameters: SamplingParameters) -> np.ndarray:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(parameters.temperature))])
    if parameters.top_k:
        warpers.append(TopKLogitsWarper(parameters.top_k))
    if parameters.top_p < 1:
        warpers.append(TopPLogitsWarper(parameters.top_p))
    if parameters.min_p:
        warpers.append(MinPLogitsWarper(parameters.min_p))
    scores = warpers(torch.zeros((1, 0), dtype=torch.long), torch.from_numpy(logits[None]).double())
    return scores.softmax(-1)[0].numpy()


def row(vocab: int, seed: int, scale: float = 2.0) -> np.ndarray:
    """Different logits, so that no tie makes two right answers."""
    return np.random.default_rng([seed, vocab]).normal(scale=scale, size=vocab).astype(np.float32)


@given(
    temperature=some.floats(0.05, 100.0),
    top_k=some.sampled_from([0, 1, 7, 39, 40, 1000]),
    top_p=some.floats(1e-9, 1.0),
    min_p=some.floats(0.0, 1.0),
    seed=some.integers(0, 1000),
    banned=some.sets(some.integers(0, 39), max_size=37),
)
@settings(max_examples=150)
def test_small_vocabularies_as_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int, banned: set[int]
) -> None:
    """Some tokens impossible, as a draft of another tokenizer and bans give."""
    parameters = SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row(40, seed)
    logits[list(banned)] = -np.inf
    assert process(logits, parameters) == pytest.approx(by_transformers(logits, parameters), abs=1e-12)


# scale 8 gives nuclei of a few tokens, 2 of hundreds to thousands, 0.5 of more than half of the vocabulary.
@pytest.mark.parametrize("scale", [8.0, 2.0, 0.5])
@pytest.mark.parametrize("vocab", [5000, 70_000])
def test_large_vocabularies_as_transformers(vocab: int, scale: float) -> None:
    logits = row(vocab, 1, scale)
    for top_k, top_p, min_p in itertools.product([0, 50, 3000], [0.5, 0.95, 1.0], [0.0, 0.05]):
        if vocab > 5000 and (top_k == 3000 or (top_k and min_p)):
            continue  # the same again, and slow to sort
        parameters = SamplingParameters(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
        found, expected = process(logits, parameters), by_transformers(logits, parameters)
        assert np.array_equal(found > 0, expected > 0), parameters
        assert np.abs(found - expected).max() < 1e-12, parameters


@pytest.mark.parametrize("size", [NUCLEUS - 1, NUCLEUS, NUCLEUS + 1, 1025, 2049, 8193, 20_000])
def test_a_nucleus_of_any_size_is_found_whole(size: int) -> None:
    """`size` tokens share 90 % of the mass; where they are looked for must not matter."""
    rng, vocab = np.random.default_rng(size), 70_000
    weights = np.full(vocab, 0.1 / (vocab - size))
    nucleus = np.sort(rng.choice(vocab, size, replace=False))
    weights[nucleus] = 0.9 / size * rng.uniform(0.9, 1.1, size)
    logits = np.log(weights).astype(np.float32)
    share = weights[nucleus].sum() - weights[nucleus].min() / 2  # all but half of the last
    assert np.array_equal(
        process(logits, SamplingParameters(temperature=1.0, top_p=share / weights.sum())).nonzero()[0], nucleus
    )


@pytest.mark.parametrize("vocab", [4095, 4096, 4097, 6143, 8191, 70_001])
@pytest.mark.parametrize("count", [1, 5, 300])
def test_the_largest_are_found_wherever_they_stand(vocab: int, count: int) -> None:
    """All in neighbouring places, all in one group, and in the rest that no group holds."""
    for places in (np.arange(count), vocab - 1 - np.arange(count), np.arange(count) * 2048 % vocab):
        logits, places = row(vocab, 3), np.unique(places)
        logits[places] = 20 + np.arange(len(places))
        assert (
            process(logits, SamplingParameters(temperature=1.0, top_k=len(places))).nonzero()[0].tolist()
            == places.tolist()
        )


@pytest.mark.parametrize("vocab", [6, 10_000])
def test_top_k_keeps_every_tie_as_transformers_does(vocab: int) -> None:
    tie = np.full(vocab, -1.0, np.float32)
    tie[[1, 2, vocab - 1]] = 1.0
    parameters = SamplingParameters(temperature=1.0, top_k=2)
    found = process(tie, parameters)
    assert found.nonzero()[0].tolist() == [1, 2, vocab - 1]
    assert found == pytest.approx(by_transformers(tie, parameters))


@pytest.mark.parametrize("vocab", [6, 10_000])
@pytest.mark.parametrize("top_k", [0, 5])
def test_top_p_keeps_every_tie_of_its_last_token(vocab: int, top_k: int) -> None:
    """Where transformers keeps as many of them as the mass needs, by their place."""
    logits = np.full(vocab, -30.0, np.float32)
    logits[0] = np.log(2)
    logits[[2, 3, vocab - 1]] = 0.0
    found = process(logits, SamplingParameters(temperature=1.0, top_k=top_k, top_p=0.5))
    assert found.nonzero()[0].tolist() == [0, 2, 3, vocab - 1]
    assert found[[0, 2, 3]] == pytest.approx([0.4, 0.2, 0.2])
    assert process(logits, SamplingParameters(temperature=1.0, top_k=top_k, top_p=0.39)).nonzero()[0].tolist() == [0]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_min_p_keeps_what_equals_its_share_of_the_largest(temperature: float) -> None:
    logits = (temperature * np.log([0.2, 0.1, 0.1, np.nextafter(np.float32(0.1), np.float32(0)) * 0.999])).astype(
        np.float32
    )
    assert process(logits, SamplingParameters(temperature=temperature, min_p=0.5)).nonzero()[0].tolist() == [0, 1, 2]
    assert process(logits, SamplingParameters(temperature=temperature, min_p=0.501)).nonzero()[0].tolist() == [0]


def test_a_mass_that_reaches_top_p_exactly_is_enough() -> None:
    exact = 0
    for logit in np.linspace(-3, -0.5, 40, dtype=np.float32):
        whole = 1.0 + float(np.exp(np.float64(logit)))
        if 1.0 / whole * whole == 1.0:  # the first token alone has just the part that is asked for
            exact += 1
            # -800 has no mass in float64, and makes a top-k of the other two.
            found = process(
                np.array([0.0, logit, -800.0], np.float32),
                SamplingParameters(temperature=1.0, top_k=2, top_p=1.0 / whole),
            )
            assert found.tolist() == [1.0, 0.0, 0.0]
    assert exact > 10


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-6])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.9, 0.0), (3, 0.9, 0.0), (0, 1.0, 0.1), (3, 0.9, 0.1)],
)
def test_a_temperature_next_to_zero_leaves_the_largest(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0], np.float32)
    assert process(
        logits, SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ).tolist() == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (2, 0.9, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1)])
def test_the_largest_floats(top_k: int, top_p: float, min_p: float) -> None:
    """Masks in front of a softmax are often the smallest float and not -inf."""
    lowest = np.finfo(np.float32).min
    found = process(
        np.array([5.0, lowest, -np.inf], np.float32),
        SamplingParameters(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p),
    )
    assert found.tolist() == [1.0, 0.0, 0.0]
    found = process(
        np.array([3e38, -3e38, -np.inf], np.float32),
        SamplingParameters(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p),
    )
    assert found.tolist() == [1.0, 0.0, 0.0]
