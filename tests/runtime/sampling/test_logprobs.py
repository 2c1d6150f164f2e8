"""Log-probabilities against float64, and the session's against those of the target itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from specexport.runtime.sampling.logprobs import token_logprobs
from support.doubles import VOCAB, FakeDecoder, fake_session

PROMPT = "A prompt of 22 bytes.."


def exact(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


@pytest.mark.parametrize("vocab", [1, 7, 258, 49_152])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_one_row(vocab: int, count: int) -> None:
    logits = np.random.default_rng([vocab, count]).normal(scale=4, size=vocab).astype(np.float32)
    found, expected = token_logprobs(logits, vocab // 2, count), exact(logits)
    # fp32: each of `vocab` terms is off by some 1e-7 of itself, and so is their sum at most.
    assert found.logprob == pytest.approx(expected[vocab // 2], abs=1e-4)
    assert [token for token, _ in found.likeliest] == list(np.argsort(-expected, kind="stable")[:count])
    assert [value for _, value in found.likeliest] == pytest.approx(sorted(expected, reverse=True)[:count], abs=1e-4)


def test_what_cannot_come_is_minus_infinity() -> None:
    logits = np.array([0.0, -np.inf, 0.0], np.float32)
    found = token_logprobs(logits, 1, 3)
    assert found.logprob == -np.inf
    assert found.likeliest[2] == (1, -np.inf)


# The output is changed by all that may change it; the log-probabilities are of the target as it is.
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.3, "top_k": 5, "seed": 3},
        {"logit_bias": {65: 50.0}, "banned_tokens": [66], "presence_penalty": 1.5},
        {"temperature": 0.7, "frequency_penalty": 1.0, "min_new_tokens": 12, "seed": 1},
    ],
)
@pytest.mark.parametrize("drafting", [{"speculate": False}, {"drafter": "model"}, {"drafter": "ngram+model"}])
def test_they_are_the_targets_own(tmp_path: Path, options: dict, drafting: dict) -> None:
    target = FakeDecoder()
    session = fake_session(tmp_path, target, FakeDecoder(noise=0.3))
    found = session.generate(PROMPT, max_new_tokens=16, logprobs=4, **options, **drafting)
    assert len(found.logprobs) == len(found.tokens) == 16
    tokens = list(PROMPT.encode())
    for entry, token in zip(found.logprobs, found.tokens, strict=True):
        expected = exact(target.logits_after(tokens))
        assert entry.token == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [place for place, _ in entry.likeliest] == list(np.argsort(-expected, kind="stable")[:4])
        tokens.append(token)


def test_a_stop_cuts_them_with_their_tokens(tmp_path: Path) -> None:
    plain = fake_session(tmp_path / "plain", FakeDecoder(), FakeDecoder()).generate(PROMPT, max_new_tokens=9)
    stop = plain.tokens[4]
    session = fake_session(tmp_path / "stopped", FakeDecoder(), FakeDecoder(), stop_token_ids=(stop,))
    found = session.generate(PROMPT, max_new_tokens=9, logprobs=1)
    assert found.finish_reason == "stop"
    assert [entry.token for entry in found.logprobs] == list(found.tokens)
    assert found.tokens[-1] == stop
    assert all(token < VOCAB for token in found.tokens)
