"""L3 of docs/losslessness.md: what a session samples, end to end, against the target's exact distribution."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract, SharedVocabulary
from specexport.engines.base import Engine, OpenedDraft
from specexport.errors import ParameterError
from specexport.runtime.proofs.chi_squared import (
    Joint,
    Sampled,
    chi_squared,
    exact_joint,
    fewest_trials,
    sample_session,
)
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import FeedsByStep, write_bundle
from support.refusals import refused

VOCAB, LENGTH = 16, 2
# its last two came before, and what followed them is what the target likes best, for the lookups
PROMPT = [3, 1, 10, 14, 3, 1]
SMALL = Contract(capacity=48, max_draft_tokens=3, prompt_chunk=8, precision="fp32")
# Each run fails for nothing about once in a million times, and the seeds are fixed, so what passes keeps passing.
# FEW_TRIALS are enough to see the faults of scripts/mutation; the slow set is thorough.
FEW_TRIALS, TRIALS, MORE_TRIALS = 2000, 4000, 10_000
# Of the default rule and of candidates. Both passed with 200 000 too, which takes half an hour.
MAX_TRIALS = int(os.environ.get("SPECEXPORT_TRIALS", "20000"))


class TableDecoder(FeedsByStep):
    """A model whose next token depends on the last two, read back from its cache."""

    def __init__(self, seed: int, mix: float = 0.0, sharpness: float = 1.2) -> None:
        self.vocab_size = VOCAB
        table, other = (np.random.default_rng([seed, part]).normal(size=(VOCAB, VOCAB, VOCAB)) for part in (0, 1))
        self._table = (sharpness * ((1 - mix) * table + mix * other)).astype(np.float32)
        # one place further on, so that the first token has one before it
        self._cache = np.zeros(SMALL.capacity + 1, np.int64)
        self._buffer = np.zeros((SMALL.widest_step, VOCAB), np.float32)

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        end = position + len(tokens)
        self._cache[position + 1 : end + 1] = tokens
        rows = len(tokens) if len(tokens) <= SMALL.widest_step else 1
        self._buffer[:rows] = self._table[self._cache[end - rows : end], self._cache[end - rows + 1 : end + 1]]
        return self._buffer[:rows]

    def overwrite_rows(self, start: int, value: float) -> None:
        self._cache[start + 1 :] = 0


@pytest.fixture
def session(tmp_path: Path) -> Session:
    bundle = write_bundle(tmp_path, SMALL, VOCAB)
    return Session(bundle, Engine("table", "table", TableDecoder(1), OpenedDraft(TableDecoder(1, mix=0.4))))


class TableTrees(TableDecoder):
    """One whose steps may be trees: a candidate's row sees what lies in front of its place, and itself."""

    def step_tree(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> np.ndarray:
        chain = len(tokens) - len(parents)
        logits = self.step(tokens[:chain], position)
        for row, parent in enumerate(parents, start=chain):
            logits = self._buffer[: row + 1]
            logits[row] = self._table[self._cache[position + 1 + parent], tokens[row]]
        return logits


BRANCHING = replace(SMALL, tree_rows=6)


@pytest.fixture
def branching(tmp_path: Path) -> Session:
    """Its draft is often wrong, and its second choices often right."""
    target = TableTrees(1)
    target._buffer = np.zeros((BRANCHING.widest_step, VOCAB), np.float32)
    bundle = write_bundle(tmp_path, BRANCHING, VOCAB)
    return Session(bundle, Engine("table", "table", target, OpenedDraft(TableDecoder(1, mix=0.5)), trees=target))


@pytest.fixture
def translated(tmp_path: Path) -> Session:
    """The draft has another tokenizer: ids in reverse order, and it lacks every fifth of the target's."""
    shared = np.array([[token, VOCAB - 1 - token] for token in range(VOCAB) if token % 5]).T
    bundle = write_bundle(tmp_path, SMALL, VOCAB)
    np.savez(tmp_path / "maps.npz", to_draft=np.arange(VOCAB)[::-1].copy(), shared=shared.copy())
    vocabulary = SharedVocabulary("maps.npz", shared.shape[1], VOCAB, VOCAB)
    draft = replace(bundle.manifest.drafts[0], shared_vocabulary=vocabulary)
    bundle = replace(bundle, manifest=replace(bundle.manifest, drafts=(draft,)))
    return Session(bundle, Engine("table", "table", TableDecoder(1), OpenedDraft(Reversed(TableDecoder(1, mix=0.4)))))


class Reversed(FeedsByStep):
    """A decoder whose ids go the other way."""

    def __init__(self, decoder: TableDecoder) -> None:
        self.vocab_size, self.overwrite_rows, self._decoder = decoder.vocab_size, decoder.overwrite_rows, decoder

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        return self._decoder.step([VOCAB - 1 - token for token in tokens], position)[:, ::-1].copy()


def expected_of(session: Session, parameters: SamplingParameters) -> Joint:
    return exact_joint(session.engine.target, PROMPT, parameters, LENGTH, SMALL.prompt_chunk)


def sample(session: Session, params: SamplingParameters, trials: int) -> Sampled:
    return sample_session(session, PROMPT, params, expected_of(session, params), trials)


PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "presence_penalty": 0.8,
    "frequency_penalty": 0.9,
    "logit_bias": {3: 1.0, 10: -2.0},
    "banned_tokens": (7, 14),
}


@pytest.mark.parametrize("verification", ["block", "token"])
def test_few_trials_find_the_targets_distribution(session: Session, verification: Any) -> None:
    result = sample(session, SamplingParameters(temperature=1.0, verification=verification), FEW_TRIALS)
    assert result.passed, result


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "cells"), [(TRIALS, 40), pytest.param(MAX_TRIALS, 100, marks=pytest.mark.nightly)])
def test_the_default_way_has_the_targets_distribution(session: Session, trials: int, cells: int) -> None:
    result = sample(session, SamplingParameters(temperature=1.0), trials)
    assert result.passed, result
    assert result.cells > cells
    assert (result.drafter, result.verification) == ("draft", "block")
    assert result.mean_acceptance_length > 1.5


WAYS: list[dict[str, Any]] = [
    {"temperature": 1.0, "verification": "token"},
    {"temperature": 0.8, "top_k": 9},
    {"temperature": 1.0, **PENALTIES},
    {"temperature": 1.0, "drafter": "ngram", "frequency_penalty": 0.9},
]
MORE_WAYS: list[dict[str, Any]] = [
    {"temperature": 1.3, "top_p": 0.9, "verification": "token"},
    {"temperature": 1.0, "min_p": 0.03, "num_draft_tokens": 2},
    {"temperature": 1.0, "verification": "token", **PENALTIES},
    {"temperature": 1.0, "drafter": "ngram+model"},
    {"temperature": 1.0, "speculate": False},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "trials"),
    [
        *((way, TRIALS) for way in WAYS),
        *(pytest.param(way, MORE_TRIALS, marks=pytest.mark.nightly) for way in (*WAYS, *MORE_WAYS)),
    ],
)
def test_sampled_output_has_the_targets_distribution(session: Session, options: dict[str, Any], trials: int) -> None:
    result = sample(session, SamplingParameters(**options), trials)
    assert result.passed, result
    assert result.cells > 20
    assert (result.mean_acceptance_length > 1.05) == options.get("speculate", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "trials"),
    [
        ({"temperature": 1.0, "top_k": 9, **PENALTIES}, TRIALS),
        pytest.param({"temperature": 1.0}, MORE_TRIALS, marks=pytest.mark.nightly),
        pytest.param({"temperature": 1.0, "top_k": 9, **PENALTIES}, MORE_TRIALS, marks=pytest.mark.nightly),
    ],
)
def test_a_draft_of_another_tokenizer_leaves_the_distribution_alone(
    translated: Session, options: dict[str, Any], trials: int
) -> None:
    result = sample(translated, SamplingParameters(**options), trials)
    assert result.passed, result
    assert result.mean_acceptance_length > 1.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "trials"),
    [
        ({}, FEW_TRIALS),
        pytest.param({}, MAX_TRIALS, marks=pytest.mark.nightly),
        pytest.param({"top_k": 9, **PENALTIES}, MORE_TRIALS, marks=pytest.mark.nightly),
        pytest.param({"drafter": "ngram+model"}, MORE_TRIALS, marks=pytest.mark.nightly),
    ],
)
def test_candidates_leave_the_distribution_alone(branching: Session, options: dict[str, Any], trials: int) -> None:
    asked = SamplingParameters(temperature=1.0, verification="spectr", num_candidates=4, num_draft_tokens=2, **options)
    result = sample(branching, asked, trials)
    assert result.passed, result
    assert result.cells > 20
    alone = sample(branching, replace(asked, verification="token", num_candidates=None), FEW_TRIALS)
    assert result.mean_acceptance_length > alone.mean_acceptance_length + 0.05


def test_too_few_trials_are_refused(session: Session) -> None:
    expected = expected_of(session, SamplingParameters(temperature=1.0))
    needed = fewest_trials(expected)
    with refused(ParameterError, field="trials"):
        sample_session(session, PROMPT, SamplingParameters(temperature=1.0), expected, needed - 1)
    assert chi_squared(expected, Counter(draws(expected, needed)))[2] >= 2
    assert fewest_trials({(0,): 1.0}) == 1
    assert fewest_trials({(0,): 0.999, (1,): 0.001}) == pytest.approx(20_000, abs=1)


def draws(joint: Joint, trials: int) -> Iterator[tuple[int, ...]]:
    keys, weights = list(joint), np.array(list(joint.values()))
    for index in np.random.default_rng(0).choice(len(keys), trials, p=weights / weights.sum()):
        yield keys[index]


def test_the_statistic_tells_the_truth_from_a_small_tilt(session: Session) -> None:
    expected = expected_of(session, SamplingParameters(temperature=1.0))
    statistic, limit, cells = chi_squared(expected, Counter(draws(expected, 20_000)))
    assert statistic < limit
    assert abs(statistic - cells) < 5 * (2 * cells) ** 0.5
    favourite = max(expected, key=lambda tokens: expected[tokens])
    tilted = {
        tokens: probability * (1.3 if tokens[0] == favourite[0] else 1.0) for tokens, probability in expected.items()
    }
    statistic, limit, _ = chi_squared(expected, Counter(draws(tilted, 20_000)))
    assert statistic > limit


def test_what_cannot_be_is_infinitely_wrong() -> None:
    assert chi_squared({(0,): 1.0}, Counter({(0,): 999_999, (1,): 1}))[0] == float("inf")
    assert chi_squared({(0,): 1.0, (1,): 0.0}, Counter({(0,): 999_999, (1,): 1}))[0] == float("inf")
    assert chi_squared({(0,): 1.0}, Counter({(0,): 10}))[0] == 0.0
