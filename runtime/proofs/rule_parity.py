"""The verification rules of a device, compared with their numpy counterparts case by case.

They work in float32 and the numpy rules in float64, so a uniform next to a boundary may fall on its other side:
an answer is correct if the numpy rule gives it for the uniforms as they are, for all of them moved by NUDGE, or for
some in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Arrays, RunGraph
from ...engines.rules import RuleName, RuleSpec
from ..sampling.acceptance import verify_block, verify_tokens
from ..sampling.distribution import Distribution
from ..sampling.parameters import SamplingParameters
from ..sampling.rules import GreedyRule
from ..sampling.truncation import processed_distribution

NUDGE = 2e-5
# Tolerance of a probability.
RULE_TOLERANCE = 1e-5
PARAMETERS = (
    SamplingParameters(temperature=1.0),
    SamplingParameters(temperature=0.7, top_k=50),
    SamplingParameters(temperature=1.0, top_p=0.9),
    SamplingParameters(temperature=1.3, top_k=40, top_p=0.8, min_p=0.02),
    SamplingParameters(temperature=1.0, top_k=1024),
)


@dataclass(frozen=True)
class RuleProof:
    """cases: compared. wrong: those with a token or count that differs from the numpy rule's.

    max_error: largest error of a probability.
    """

    rule: str
    num_draft_tokens: int
    cases: int
    wrong: int
    max_error: float

    @property
    def passed(self) -> bool:
        return self.wrong == 0 and self.max_error <= RULE_TOLERANCE


def measure_rule(run: RunGraph, spec: RuleSpec, vocab_size: int) -> RuleProof:
    """Run a rule over fixed cases, among them ties, uniforms of 0, drafts that leave an empty residual, and
    logits that are not numbers, of which a round must learn.
    """
    compared = list(_COMPARISONS[spec.rule](run, spec, vocab_size))
    return RuleProof(
        spec.rule,
        spec.num_draft_tokens,
        len(compared),
        sum(not right for right, _ in compared),
        max(error for _, error in compared),
    )


# A comparison yields, for every case, whether the answer is correct, and the largest error of a number.
Compared = Iterator[tuple[bool, float]]


def _logits(rng: np.random.Generator, rows: int, vocab_size: int) -> NDArray[np.float32]:
    """A few likely tokens above a broad rest, in steps, so that some are equal."""
    logits = 2.0 * rng.normal(size=(rows, vocab_size))
    for row in logits:
        row[rng.integers(0, vocab_size, 12)] += 8.0
    return (np.round(logits * 64) / 64).astype(np.float32)


def _tied(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Repeats the largest logit of every row."""
    for row in logits:
        best = int(row.argmax())
        row[(best + len(row) // 2) % len(row)] = row[best]
    return logits


def _not_numbers(vocab_size: int) -> Iterator[NDArray[np.float32]]:
    """A row `[1, vocab]` with one in its middle, and one of them alone, which is what most broken passes give."""
    logits = _logits(np.random.default_rng(0), 1, vocab_size)
    logits[0, vocab_size // 2] = np.nan
    yield from (logits, np.full_like(logits, np.nan))


def _sampling(parameters: SamplingParameters) -> NDArray[np.float32]:
    return np.array(parameters.device_row, np.float32)


def _nudged(uniforms: NDArray[np.float32]) -> Iterator[NDArray[np.float64]]:
    for step in (0.0, -NUDGE, NUDGE):
        yield np.clip(uniforms.astype(np.float64) + step, 0.0, np.nextafter(1.0, 0.0))


def _between(token: int, drawn: Collection[int]) -> bool:
    """Draws follow the ids, so a uniform between the nudged ones draws a token between theirs.

    In a large vocabulary these may be several.
    """
    return bool(drawn) and min(drawn) <= token <= max(drawn)


def _dense(distribution: Distribution, vocab_size: int) -> NDArray[np.float32]:
    probs = np.zeros(vocab_size, np.float32)
    probs[slice(None) if distribution.tokens is None else distribution.tokens] = distribution.probs
    return probs


def _confidence_error(confidence: NDArray[np.generic], logits: NDArray[np.float32]) -> float:
    best = processed_distribution(logits[0], SamplingParameters(temperature=1.0)).probs.max()
    return float(np.abs(confidence - best).max())


def _select_greedy(run: RunGraph, spec: RuleSpec, vocab_size: int) -> Compared:
    for seed in range(4):
        logits = _tied(_logits(np.random.default_rng(seed), 1, vocab_size))
        outputs = run({"logits": logits})
        yield int(outputs["token"][0]) == int(logits[0].argmax()), _confidence_error(outputs["confidence"], logits)
    for lost in _not_numbers(vocab_size):
        yield bool(np.isnan(run({"logits": lost})["confidence"]).all()), 0.0


def _select(run: RunGraph, spec: RuleSpec, vocab_size: int) -> Compared:
    for seed, parameters in product(range(3), PARAMETERS):
        rng = np.random.default_rng(seed)
        logits, noise = _logits(rng, 1, vocab_size), rng.random(1, np.float32) * np.float32(seed > 0)
        outputs = run({"logits": logits, "noise": noise, "sampling": _sampling(parameters)})
        probs = processed_distribution(logits[0], parameters)
        error = float(np.abs(outputs["draft_probs"][0] - _dense(probs, vocab_size)).max())
        right = _between(int(outputs["token"][0]), {probs.draw(float(uniform[0])) for uniform in _nudged(noise)})
        yield right, max(error, _confidence_error(outputs["confidence"], logits))
    for lost in _not_numbers(vocab_size):
        outputs = run({"logits": lost, "noise": np.zeros(1, np.float32), "sampling": _sampling(PARAMETERS[0])})
        yield bool(np.isnan(outputs["confidence"]).all()), 0.0


def _positions(outputs: Arrays, position: int) -> bool:
    return int(outputs["next_position"][0]) == position + int(outputs["num_accepted"][0]) + 1


def _accept_greedy(run: RunGraph, spec: RuleSpec, vocab_size: int) -> Compared:
    k = spec.num_draft_tokens
    for wrong in range(k + 1):
        logits = _tied(_logits(np.random.default_rng(wrong), spec.rows, vocab_size))
        draft_tokens = logits[:k].argmax(axis=1)
        draft_tokens[wrong:] = (draft_tokens[wrong:] + 1) % vocab_size
        outputs = run({"logits": logits, "draft_tokens": draft_tokens, "position": np.array([7])})
        expected = GreedyRule(vocab_size).accept(logits, draft_tokens.tolist())
        answer = int(outputs["num_accepted"][0]), int(outputs["next_token"][0])
        yield answer == expected and _positions(outputs, 7), 0.0


@dataclass(frozen=True)
class _Round:
    """The input of `accept`. draft_probs `[k, vocab]`: the distributions that the tokens are said to be drawn from."""

    parameters: SamplingParameters
    draft_tokens: list[int]
    draft_probs: NDArray[np.float32]
    noise: NDArray[np.float32]


def _rounds(rng: np.random.Generator, logits: NDArray[np.float32], k: int) -> Iterator[_Round]:
    vocab_size = logits.shape[1]
    for parameters in PARAMETERS:
        rows = (logits[:k] + rng.normal(size=(k, vocab_size))).astype(np.float32)
        drawn = [processed_distribution(row, parameters) for row in rows]
        tokens = [probs.draw(float(rng.random())) for probs in drawn]
        yield _Round(
            parameters, tokens, np.stack([_dense(probs, vocab_size) for probs in drawn]), rng.random(k + 1, np.float32)
        )
    likely, unlikely = logits[:k].argmax(axis=1), logits[:k].argmin(axis=1)
    ids = np.arange(vocab_size)
    # Looked up: once a likely token of the target, once one that it excludes, which not even a uniform of 0 may accept.
    yield _Round(
        PARAMETERS[0], likely.tolist(), (ids == likely[:, None]).astype(np.float32), rng.random(k + 1, np.float32)
    )
    yield _Round(
        PARAMETERS[1], unlikely.tolist(), (ids == unlikely[:, None]).astype(np.float32), np.zeros(k + 1, np.float32)
    )
    # The draft is said to give every token more than the target does, so that the residual of a rejection is empty.
    more = np.stack(
        [_dense(processed_distribution(row, PARAMETERS[1]), vocab_size) for row in logits[:k]]
    ) * np.float32(1.25)
    yield _Round(PARAMETERS[1], likely.tolist(), more, np.full(k + 1, 0.97, np.float32))


def _accept(run: RunGraph, spec: RuleSpec, vocab_size: int) -> Compared:
    k, verify = spec.num_draft_tokens, verify_block if spec.rule == "accept_block" else verify_tokens
    rng = np.random.default_rng(k)
    logits = _logits(rng, spec.rows, vocab_size)
    for inputs in _rounds(rng, logits, k):
        outputs = run(
            {
                "logits": logits,
                "draft_tokens": np.array(inputs.draft_tokens),
                "draft_probs": inputs.draft_probs,
                "noise": inputs.noise,
                "sampling": _sampling(inputs.parameters),
                "position": np.array([7]),
            }
        )
        target = [processed_distribution(row, inputs.parameters) for row in logits]
        draft_probs = [Distribution(row.astype(np.float64)) for row in inputs.draft_probs]
        answers = {
            verify(target.__getitem__, draft_probs, inputs.draft_tokens, uniforms) for uniforms in _nudged(inputs.noise)
        }
        tokens = {token for count, token in answers if count == int(outputs["num_accepted"][0])}
        yield _between(int(outputs["next_token"][0]), tokens) and _positions(outputs, 7), 0.0


_COMPARISONS: dict[RuleName, Callable[[RunGraph, RuleSpec, int], Compared]] = {
    "select": _select,
    "select_greedy": _select_greedy,
    "accept_greedy": _accept_greedy,
    "accept_token": _accept,
    "accept_block": _accept,
}
