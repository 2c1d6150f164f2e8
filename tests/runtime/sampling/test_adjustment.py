"""Bias, bans, penalties and the minimum length, against transformers and the formula of the OpenAI API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from specexport.runtime.sampling.adjustment import LogitAdjustment
from specexport.runtime.sampling.parameters import SamplingParameters
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

VOCAB = 12
LOGITS = np.random.default_rng(0).normal(scale=2.0, size=VOCAB).astype(np.float32)
PROMPT = [3, 1, 4, 1, 5]


def adjustment(
    prompt: Sequence[int] = PROMPT, stops: Collection[int] = (), vocab: int = VOCAB, **parameters: Any
) -> LogitAdjustment:
    return LogitAdjustment(SamplingParameters(**parameters), prompt, stops, vocab)


def adjust(adjusts: LogitAdjustment, drafted: Sequence[int] = (), logits: np.ndarray = LOGITS) -> np.ndarray:
    before = logits.copy()
    found = adjusts(logits, drafted)
    assert found.dtype == np.float32
    assert np.array_equal(before, logits)
    assert found is not logits
    return found


def process(processor: Any, tokens: Sequence[int], logits: np.ndarray = LOGITS) -> np.ndarray:
    return processor(torch.tensor([list(tokens)]), torch.from_numpy(logits[None].copy()))[0].numpy()


def random_tokens(seed: int, length: int) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("penalty", [1.3, 0.7, 50.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_repetition_penalty_is_transformers_over_prompt_output_and_draft(penalty: float, seed: int) -> None:
    adjusts, processor = adjustment(repetition_penalty=penalty), RepetitionPenaltyLogitsProcessor(penalty)
    output = random_tokens(seed, 3)
    for emitted in range(3):
        for drafted in ([], output[emitted : emitted + 1], output[emitted:]):
            expected = process(processor, [*PROMPT, *output[:emitted], *drafted])
            assert adjust(adjusts, drafted) == pytest.approx(expected, rel=1e-6)
        adjusts.extend(output[emitted : emitted + 1])


@pytest.mark.parametrize(("presence", "frequency"), [(0.7, 0.0), (0.0, 0.4), (1.5, -0.3), (-2.0, 2.0)])
def test_presence_and_frequency_by_the_formula(presence: float, frequency: float) -> None:
    """logit - count * frequency - (count > 0) * presence of the output (OpenAI: "frequency and presence penalties")."""
    adjusts = adjustment(presence_penalty=presence, frequency_penalty=frequency)
    assert np.array_equal(adjust(adjusts), LOGITS)  # the prompt does not count
    adjusts.extend([2, 7, 2])
    adjusts.extend([2])
    for drafted in ([], [7], [2, 9], [9, 9]):
        counts = Counter([2, 7, 2, 2, *drafted])
        expected = [
            x - counts[token] * frequency - (counts[token] > 0) * presence for token, x in enumerate(LOGITS.tolist())
        ]
        assert adjust(adjusts, drafted) == pytest.approx(expected, rel=1e-6)


def test_drafted_tokens_are_forgotten_afterwards() -> None:
    adjusts = adjustment(
        presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.5, min_new_tokens=2, stops=[8]
    )
    adjusts.extend([6])
    before = adjust(adjusts)
    drafted = adjust(adjusts, [0, 6])
    assert not np.array_equal(before, drafted)
    assert np.array_equal(before, adjust(adjusts))
    assert np.array_equal(drafted, adjust(adjusts, [0, 6]))
    adjusts.extend([0, 6])
    assert np.array_equal(drafted, adjust(adjusts))


@pytest.mark.parametrize("minimum", [0, 1, 3])
@pytest.mark.parametrize("stops", [[5], [0, 11]])
def test_the_minimum_length_is_transformers(minimum: int, stops: list[int]) -> None:
    adjusts = adjustment(stops=stops, min_new_tokens=minimum)
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), minimum, stops, device="cpu")
    for emitted in range(5):
        for drafted in range(3):
            tokens = [*PROMPT, *[2] * (emitted + drafted)]
            assert adjust(adjusts, [2] * drafted).tolist() == process(processor, tokens).tolist(), (emitted, drafted)
        adjusts.extend([2])


def test_bias_comes_before_the_repetition_penalty_and_penalties_after() -> None:
    logits = np.array([1.0, 1.0], np.float32)
    adjusts = adjustment(
        [0], vocab=2, logit_bias={0: 3.0}, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    adjusts.extend([0])
    assert adjust(adjusts, [0], logits).tolist() == [(1.0 + 3.0) / 2.0 - 0.5 - 2 * 0.25, 1.0]
    turned = adjustment([0], vocab=2, logit_bias={0: -3.0}, repetition_penalty=2.0)
    assert adjust(turned, [], logits).tolist() == [(1.0 - 3.0) * 2.0, 1.0]


def test_the_whole_chain_is_transformers() -> None:
    parameters = dict(logit_bias={1: 2.5, 7: -1.0}, repetition_penalty=1.4, banned_tokens=[9], min_new_tokens=3)
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(1,): 2.5, (7,): -1.0}),
            RepetitionPenaltyLogitsProcessor(1.4),
            NoBadWordsLogitsProcessor([[9]]),
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, [6], device="cpu"),
        ]
    )
    adjusts = adjustment(stops=[6], **parameters)
    for token in (7, 6, 2, 2, 1):
        adjusts.extend([token])
        expected = process(processors, [*PROMPT, *np.repeat(np.arange(VOCAB), adjusts._output)])
        assert adjust(adjusts) == pytest.approx(expected, rel=1e-6)


def test_a_narrower_row_gets_the_same_as_far_as_it_goes() -> None:
    adjusts = adjustment(
        prompt=[3, 11],
        stops=[2, 10],
        logit_bias={1: 2.0, 9: 3.0},
        banned_tokens=[0, 8],
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        min_new_tokens=9,
    )
    adjusts.extend([4, 11, 4])
    for drafted in ([], [5, 9]):
        whole = adjust(adjusts, drafted)
        for size in (1, 4, 7, VOCAB):
            assert np.array_equal(adjust(adjusts, drafted, LOGITS[:size]), whole[:size])
