"""The rules' kernels against the numpy rules, which are float64. The kernels run on the CPU, from their own source.

float32 moves a boundary a little, so boundaries are computed in float64, and what lies within SLACK of one may fall to
either side. Whole rounds: `runtime/proofs/rule_parity.py`, which is tested by `tests/runtime/proofs`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from specexport.engines.base import RunGraph
from specexport.engines.cuda import rule_kernels
from specexport.engines.cuda.device import CudaDevice
from specexport.engines.cuda.engine import device_graph
from specexport.engines.cuda.rule_kernels import RuleKernels
from specexport.engines.rules import RuleName, RuleSpec
from specexport.errors import EngineError
from specexport.runtime.proofs.enumeration import Chain, enumerate_rounds
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters, Verification
from specexport.runtime.sampling.truncation import processed_distribution
from support.cuda_on_host import SOURCE
from support.fake_device import FakeDevice
from support.refusals import refused

SLACK = 1e-6
VERIFICATIONS: tuple[Verification, ...] = ("token", "block")
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
PLAIN = (1.0, 0, 1.0, 0.0)
Sampling = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p


RULES: dict[str, RuleName] = {"token": "accept_token", "block": "accept_block"}


def opened(rule: RuleName, vocab: int, k: int = 0) -> RunGraph:
    device = FakeDevice()
    kernels = RuleKernels(RuleSpec(rule, k), vocab, device)
    with device.entered():
        scratch = device.allocate(kernels.scratch_bytes, "scratch")
    return device_graph(kernels, device, scratch)


kept = functools.cache(opened)


def run(rule: RuleName, vocab: int, k: int = 0, **inputs: Any) -> dict[str, np.ndarray]:
    shapes = RuleKernels(RuleSpec(rule, k), vocab, FakeDevice())
    arrays = {name: np.asarray(value, shapes.array(name)[0]) for name, value in inputs.items()}
    assert {*arrays} == {*shapes.inputs}
    return dict(kept(rule, vocab, k)(arrays))


def counts(outputs: dict[str, np.ndarray]) -> list[int]:
    return [int(outputs[name][0]) for name in ("num_accepted", "next_token", "next_position")]


def parameters(sampling: Sampling, nudge: float = 0.0) -> SamplingParameters:
    """As the kernels see them, in float32. nudge: relative, of what top_p and min_p ask for."""
    temperature, top_k, top_p, min_p = sampling
    top_p, min_p = (float(np.float32(value)) for value in (top_p, min_p))
    if top_p < 1.0:
        top_p *= 1 + nudge
    return SamplingParameters(
        temperature=float(np.float32(temperature)),
        top_k=top_k,
        top_p=min(top_p, 1.0),
        min_p=min_p * (1 + nudge) if min_p < 1.0 else min_p,
    )


def dense(distribution: Distribution, vocab: int) -> np.ndarray:
    """`[vocab] float64`"""
    if distribution.tokens is None:
        return distribution.probs
    probs = np.zeros(vocab)
    probs[distribution.tokens] = distribution.probs
    return probs


def expected_probs(logits: np.ndarray, sampling: Sampling) -> list[np.ndarray]:
    """What the probabilities `[vocab]` may be: one answer, or those on either side of a boundary of top-p or min-p."""
    found: list[np.ndarray] = []
    for nudge in (0.0, -2 * SLACK, 2 * SLACK):
        probs = dense(processed_distribution(logits, parameters(sampling, nudge)), len(logits))
        if not any(np.array_equal(probs > 0, other > 0) for other in found):
            found.append(probs)
    return found


def assert_probs(got: np.ndarray, expected: list[np.ndarray]) -> None:
    assert np.isfinite(got).all()
    possible = [np.array_equal(got > 1e-30, probs > 1e-30) and np.all(got[probs == 0] == 0) for probs in expected]
    assert any(possible), [int((probs > 0).sum()) for probs in [got, *expected]]
    np.testing.assert_allclose(got, expected[possible.index(True)], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got, expected[possible.index(True)], rtol=0, atol=1e-6)


def assert_drawn(token: int, mass: np.ndarray, noise: float, slack: float = SLACK) -> None:
    """mass `[vocab]`, not normalised. slack: of the whole mass of 1 that `mass` is part of, for sums in float32."""
    assert mass[token] > 0
    cumulative = mass.cumsum(dtype=np.float64)
    goal = float(np.float32(noise)) * cumulative[-1]
    assert cumulative[token] - mass[token] - slack <= goal < cumulative[token] + slack


def kinds_of_logits(vocab: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    normal = 3 * rng.normal(size=vocab)
    few = np.full(vocab, -np.inf)
    few[rng.choice(vocab, 5, replace=False)] = normal[:5]
    one = np.full(vocab, -np.inf)
    one[vocab - 1] = 2.5
    banned = normal.copy()
    banned[::2] = -np.inf
    masked = np.where(rng.random(vocab) < 0.5, normal, -1e9)
    neighbours = np.full(vocab, 4.0, np.float32)
    neighbours[vocab // 2] = np.nextafter(np.float32(4), np.float32(5))
    neighbours[vocab // 3] = np.nextafter(np.float32(4), np.float32(3))
    neighbours[0] = -60.0  # so that the search has far to go
    zero = np.full(vocab, -20.0)  # next to 0, float32 is finer than the search
    zero[vocab // 2], zero[vocab // 3] = 0.0, -1e-9
    certain = np.full(vocab, -300.0)
    certain[vocab // 2] = 40.0
    kinds = dict(
        normal=normal,
        ties=normal.round(),
        coarse_ties=(normal / 3).round() * 3,
        equal=np.full(vocab, -1.25),
        few=few,
        one=one,
        banned=banned,
        masked=masked,
        neighbours=neighbours,
        zero=zero,
        certain=certain,
        narrow=1e-4 * normal,
        wide=3e3 * normal,
        shifted=normal + 1e4,
    )
    return {name: logits.astype(np.float32) for name, logits in kinds.items()}


def samplings(vocab: int) -> list[Sampling]:
    temperatures: tuple[float, ...] = (1e-3, 0.7, 1.0, 100.0)
    alone: list[Sampling] = [
        PLAIN,
        *((1.0, top_k, 1.0, 0.0) for top_k in (1, 2, 7, vocab - 1, vocab, vocab + 5)),
        *((1.0, 0, top_p, 0.0) for top_p in (1e-6, 0.1, 0.5, 0.9, 0.999)),
        *((1.0, 0, 1.0, min_p) for min_p in (1e-4, 0.05, 1.0)),
        (1e-30, 0, 1.0, 0.0),
        (1e-30, 3, 0.5, 0.1),
    ]
    together = itertools.product(temperatures, (0, 2, 20), (0.3, 0.95, 1.0), (0.0, 0.02))
    return alone + list(together)


@pytest.mark.parametrize("kind", kinds_of_logits(16, 0))
@pytest.mark.parametrize("vocab", [37, 1103])  # 1103 is prime: no round top_p falls between two of many equal tokens
def test_draft_probs_are_the_processed_distribution(vocab: int, kind: str) -> None:
    logits = kinds_of_logits(vocab, vocab)[kind]
    on_a_boundary = 0
    for index, sampling in enumerate(samplings(vocab)):
        noise = (0.0, 0.5, BELOW_ONE, 0.123)[index % 4]
        found = run("select", vocab, logits=logits[None], noise=[noise], sampling=sampling)
        token, probs, confidence = found["token"], found["draft_probs"], found["confidence"]
        expected = expected_probs(logits, sampling)
        on_a_boundary += len(expected) > 1
        assert_probs(probs[0], expected)
        assert_drawn(int(token[0]), probs[0], noise)
        softmax = processed_distribution(logits, SamplingParameters(temperature=1.0)).probs
        np.testing.assert_allclose(confidence, softmax.max(), rtol=1e-5)
    assert on_a_boundary <= 4


@pytest.mark.parametrize("top_p", [0.0, 1e-45, 1e-38])
def test_a_top_p_next_to_zero_leaves_the_largest(top_p: float) -> None:
    """Also one that is 0 in float32, as a request's 1e-50."""
    found = run("select", 5, logits=[[1.0, 2.0, -np.inf, 2.0, 1.999]], noise=[0.0], sampling=(1.0, 0, top_p, 0.0))
    assert found["draft_probs"].tolist() == [[0.0, 0.5, 0.0, 0.5, 0.0]]
    assert found["token"] == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-30])
def test_temperatures_next_to_zero_leave_the_largest(temperature: float) -> None:
    logits = [[1.0, 2.0, -np.inf, 2.0, 1.999]]
    probs = run("select", 5, logits=logits, noise=[0.0], sampling=(temperature, 0, 0.9, 0.0))["draft_probs"]
    assert probs.tolist() == [[0.0, 0.5, 0.0, 0.5, 0.0]]


def drawn(logits: np.ndarray, noise: float) -> int:
    return int(run("select", len(logits), logits=logits[None], noise=[noise], sampling=PLAIN)["token"][0])


def test_every_uniform_draws_its_own_token() -> None:
    """The middle of every token's share, and its first uniform; tokens without mass lie between, before and behind."""
    vocab = 1200
    probs = np.zeros(vocab)
    probs[np.arange(3, vocab - 150, 5)] = 1.0
    probs[520:1030] = 0.0  # an empty block
    logits = np.log(probs, where=probs > 0, out=np.full(vocab, -np.inf))
    tokens = np.flatnonzero(probs)
    for place in range(0, len(tokens), 7):
        for share in (0.01, 0.5, 0.99):
            assert drawn(logits, (place + share) / len(tokens)) == tokens[place]
    assert drawn(logits, 0.0) == tokens[0]
    assert drawn(logits, BELOW_ONE) == tokens[-1]


def test_a_boundary_belongs_to_the_token_behind_it() -> None:
    for place in range(8):  # eighths are exact in float32
        assert drawn(np.zeros(8), place / 8) == place


@pytest.mark.parametrize("kind", kinds_of_logits(16, 0))
def test_greedy_takes_the_lowest_id_of_the_largest(kind: str) -> None:
    for seed in range(5):
        logits = kinds_of_logits(700, seed)[kind]
        found = run("select_greedy", 700, logits=logits[None])
        assert found["token"] == logits.argmax()
        np.testing.assert_allclose(
            found["confidence"],
            processed_distribution(logits, SamplingParameters(temperature=1.0)).probs.max(),
            rtol=1e-5,
        )


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_greedy_accepts_up_to_the_first_difference(k: int) -> None:
    vocab, position = 90, 1000
    rng = np.random.default_rng(k)
    for kind in ("normal", "ties", "banned", "equal"):
        logits = np.stack([kinds_of_logits(vocab, int(seed))[kind] for seed in rng.integers(1000, size=k + 1)])
        best = logits.argmax(axis=1)
        for wrong in range(k + 1):
            # Right again behind the first wrong one, which must not count.
            draft_tokens = np.array([(token + (index == wrong)) % vocab for index, token in enumerate(best[:-1])])
            outputs = run("accept_greedy", vocab, k, logits=logits, draft_tokens=draft_tokens, position=[position])
            assert counts(outputs) == [wrong, best[wrong], position + wrong + 1]


@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("uniform", [0.0, 0.5, BELOW_ONE])
def test_probabilities_of_exactly_zero_and_one(verification: Verification, uniform: float) -> None:
    """The target excludes the second draft token and is sure of the first; a uniform of 0 must not accept it."""
    logits = np.full((3, 6), -np.inf)
    logits[0, 2] = logits[1, 4] = logits[2, 5] = 1.0
    draft_probs = [[0, 0, 1, 0, 0, 0], [0, 0.5, 0, 0, 0.5, 0]]
    feed = dict(logits=logits, draft_probs=draft_probs, noise=[uniform] * 3, sampling=PLAIN, position=[5])
    outputs = run(RULES[verification], 6, 2, draft_tokens=[2, 1], **feed)
    assert counts(outputs) == [1, 4, 7]
    outputs = run(RULES[verification], 6, 2, draft_tokens=[2, 4], **feed)
    assert counts(outputs) == [2, 5, 8]
    # Drafted without any probability, by mistake only: an answer that the target allows, whatever it is.
    outputs = run(RULES[verification], 6, 2, draft_tokens=[3, 3], **feed)
    assert counts(outputs) == [0, 2, 6]


@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_a_uniform_on_the_boundary_rejects(verification: Verification) -> None:
    """Target (1/2, 1/2), draft (1, 0) and its first token: the chance is exactly 1/2."""
    feed = dict(logits=np.zeros((2, 2)), draft_tokens=[0], draft_probs=[[1, 0]], sampling=PLAIN, position=[0])
    for uniform, accepted in ((0.5, 0), (float(np.nextafter(np.float32(0.5), np.float32(0))), 1)):
        assert run(RULES[verification], 2, 1, noise=[uniform, 0.25], **feed)["num_accepted"] == accepted


@pytest.mark.parametrize(("uniform", "token"), [(0.1, 2), (0.5, 3)])
def test_behind_a_block_that_the_target_finds_less_likely_less_is_left(uniform: float, token: int) -> None:
    """P_1 is 1/2, and half of the target's row is left over the draft's in the last two tokens alone: 0.05 and 0.1."""
    logits = np.log([[0.4, 0.2, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4], [0.25] * 4])
    drafted = [[0.8, 0.1, 0.1, 0.0], [0.7, 0.1, 0.1, 0.1]]
    feed = dict(logits=logits, draft_tokens=[0, 0], draft_probs=drafted, sampling=PLAIN, position=[0])
    assert counts(run("accept_block", 4, 2, noise=[0.1, 0.99, uniform], **feed)) == [1, token, 2]


def compiled_rounds(verification: Verification, k: int, target: Chain, draft: Chain) -> Any:
    def judge(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        with np.errstate(divide="ignore"):
            logits = np.log([target.after(draft_tokens[:index]) for index in range(k + 1)])
        probs = [draft.after(draft_tokens[:index]) for index in range(k)]
        feed = dict(
            logits=logits, draft_tokens=draft_tokens, draft_probs=probs, noise=uniforms, sampling=PLAIN, position=[0]
        )
        num_accepted, next_token, _ = counts(run(RULES[verification], target.vocab, k, **feed))
        return num_accepted, next_token

    return judge


@pytest.mark.parametrize(("verification", "k"), [("token", 1), ("block", 1), ("token", 2), ("block", 2)])
def test_the_output_is_the_targets_by_enumeration(verification: Verification, k: int) -> None:
    """L0 of the kernels: float32 uniforms, multiples of 2**-24, integrated out."""
    target, draft = Chain(3, 1), Chain(3, 101)
    result = enumerate_rounds(compiled_rounds(verification, k, target, draft), target, draft, k, steps=2**24)
    assert result.error(target) < 1e-6


# Logits that are no numbers: the rules stop in front of them and say so; no host looks at the logits.

VOCAB, K = 300, 2


def sound() -> np.ndarray:
    return np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)


def broken(kind: str) -> np.ndarray:
    row = sound()
    if kind == "nan":
        row[:] = np.nan
    elif kind == "one nan":
        row[5] = np.nan
    elif kind == "one inf":
        row[5] = np.inf
    else:
        row[:] = -np.inf
    return row


KINDS = ("nan", "one nan", "one inf", "nothing")


def judged(rule: str, logits: np.ndarray, token: int, draft_probs: np.ndarray, uniform: float) -> list[int]:
    inputs: dict[str, Any] = {"logits": logits, "draft_tokens": [token] * K, "position": [3]}
    if rule == "greedy":
        return counts(run("accept_greedy", VOCAB, K, **inputs))
    inputs |= {"draft_probs": draft_probs, "noise": [uniform] * (K + 1), "sampling": PLAIN}
    return counts(run(RULES[rule], VOCAB, K, **inputs))


@pytest.mark.parametrize("rule", ["greedy", "token", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_ends_in_front_of_a_broken_row(kind: str, rule: str) -> None:
    probs = np.full((K, VOCAB), 1e-9, np.float32)  # the target accepts for certain, as long as it is asked
    for place in range(K + 1):
        logits = np.stack([broken(kind) if row == place else sound() for row in range(K + 1)])
        assert judged(rule, logits, int(sound().argmax()), probs, 0.0) == [place, VOCAB, 3 + place + 1]


@pytest.mark.parametrize("rule", ["greedy", "token", "block"])
def test_a_broken_row_behind_the_rejected_does_no_harm(rule: str) -> None:
    logits, worst = np.stack([sound(), sound(), broken("nan")]), int(sound().argmin())
    certain = np.zeros((K, VOCAB), np.float32)
    certain[:, worst] = 1.0
    num_accepted, next_token, _ = judged(rule, logits, worst, certain, 0.99)
    assert num_accepted == 0
    assert 0 <= next_token < VOCAB


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_token_stays_an_id_and_its_confidence_tells(kind: str) -> None:
    drawn: dict[str, Any] = {"noise": [0.5], "sampling": PLAIN}
    for rule, more in (("select_greedy", {}), ("select", drawn)):
        found = run(rule, VOCAB, logits=broken(kind)[None], **more)  # type: ignore[arg-type]
        assert 0 <= int(found["token"][0]) < VOCAB
        assert np.isnan(found["confidence"][0])


# How they are run.


def test_what_a_row_was_before_does_not_matter() -> None:
    """Scratch memory is shared: a search must not see what an earlier one left, also where it is off."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(1, VOCAB)).astype(np.float32) for _ in range(8)]
    shared, some = opened("select", VOCAB), itertools.cycle(samplings(VOCAB)[::5])
    for logits, sampling in zip(rows, some, strict=False):
        inputs = {"logits": logits, "noise": np.float32([0.3]), "sampling": np.float32(sampling)}
        again, fresh = shared(inputs), opened("select", VOCAB)(inputs)
        for name, value in fresh.items():
            np.testing.assert_array_equal(again[name], value)


def test_more_rows_than_threads() -> None:
    vocab, k = 40, 32
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(k + 1, vocab)).astype(np.float32)
    best = logits.argmax(axis=1)
    feed: dict[str, Any] = dict(logits=logits, draft_tokens=best[:k], position=[0])
    assert counts(run("accept_greedy", vocab, k, **feed)) == [k, best[k], k + 1]
    feed |= dict(draft_probs=np.zeros((k, vocab)), noise=[0.0] * (k + 1), sampling=(1.0, 1, 1.0, 0.0))
    for rule in RULES.values():
        assert counts(run(rule, vocab, k, **feed)) == [k, best[k], k + 1]


def test_numbers_of_the_source_and_of_python_are_the_same() -> None:
    defined = dict(re.findall(r"#define (\w+) (\d+)\n", SOURCE.read_text()))
    assert int(defined["EACH"]) == rule_kernels.EACH
    assert int(defined["BITS"]) == rule_kernels.BITS
    assert int(defined["MOST_ROWS"]) == rule_kernels.MOST_ROWS
    assert int(defined["THREADS"]) == CudaDevice.rule_threads


def test_more_rows_than_the_kernels_have_room_for() -> None:
    with refused(EngineError, "63"):
        RuleKernels(RuleSpec("accept_block", 64), 40, FakeDevice())
