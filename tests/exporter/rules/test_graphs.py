"""The compiled rules on ONNX Runtime against the numpy rules, which are float64.

float32 moves a boundary a little, so boundaries are computed in float64, and what lies within SLACK of one may fall to
either side. Whole rounds: `runtime/proofs/rule_parity.py`, which is tested by `tests/runtime/proofs`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_ir import from_proto
from specexport.bundle import Contract
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.lint import lint
from specexport.exporter.rules import graphs
from specexport.exporter.rules.graphs import fuses
from specexport.runtime.proofs.enumeration import Chain, enumerate_rounds
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import COMPILED_TOP_K, SamplingParameters, Verification
from specexport.runtime.sampling.truncation import processed_distribution

SLACK = 1e-6
VERIFICATIONS: tuple[Verification, ...] = ("token", "block")
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
PLAIN = (1.0, 0, 1.0, 0.0)
Sampling = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p


@functools.cache
def session(rule: str, *arguments: Any) -> Any:
    return open_session(getattr(graphs, rule)(*arguments).SerializeToString(), 0)


def run(rule: str, *arguments: Any, **inputs: Any) -> list[np.ndarray]:
    made = session(rule, *arguments)
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return list(
        made.run(None, {given.name: np.asarray(inputs[given.name], kinds[given.type]) for given in made.get_inputs()})
    )


def parameters(sampling: Sampling, nudge: float = 0.0) -> SamplingParameters:
    """As the graph sees them, in float32. nudge: relative, of what top_p and min_p ask for."""
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
        *((1.0, top_k, 1.0, 0.0) for top_k in (1, 2, 7, min(vocab - 1, COMPILED_TOP_K), vocab, vocab + 5)),
        *((1.0, 0, top_p, 0.0) for top_p in (1e-6, 0.1, 0.5, 0.9, 0.999)),
        *((1.0, 0, 1.0, min_p) for min_p in (1e-4, 0.05, 1.0)),
        (1e-30, 0, 1.0, 0.0),
        (1e-30, 3, 0.5, 0.1),
    ]
    together = itertools.product(temperatures, (0, 2, 20), (0.3, 0.95, 1.0), (0.0, 0.02))
    return alone + list(together)


@pytest.mark.parametrize("kind", ["normal", "tied"])
def test_without_fused_operators_the_same_is_kept_and_drawn(kind: str) -> None:
    vocab, given = 1103, kinds_of_logits(1103, 1)
    for sampling in samplings(vocab):
        inputs = dict(logits=given.get(kind, given["normal"])[None], noise=[0.4], sampling=sampling)
        some, all_of_them = (run("select", vocab, fused, **inputs) for fused in (True, False))
        for ours, theirs in zip(some, all_of_them, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("engines", "ranked"), [(("onnxruntime-cuda",), 8192), (("onnxruntime-cuda", "tensorrt"), 1024)]
)
def test_how_many_are_ranked_is_what_the_engines_do_best(
    engines: tuple[str, ...], ranked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "measure_rule", lambda *_: SimpleNamespace(passed=True))
    (tmp_path / "graphs").mkdir()
    contract = Contract(capacity=64, max_draft_tokens=1, prompt_chunk=16, precision="fp16")
    for spec in graphs.write_rules(tmp_path, contract, 10_000, lambda _: None, fuses(engines)):
        made = from_proto(onnx.load(tmp_path / spec.graph)).graph
        counts = {node.inputs[1].const_value.numpy().item() for node in made if node.op_type == "TopK"}  # type: ignore[union-attr]
        assert max(counts, default=1) == (1 if "greedy" in spec.rule else ranked)


@pytest.mark.parametrize("kind", kinds_of_logits(16, 0))
@pytest.mark.parametrize("vocab", [37, 1103])  # 1103 is prime: no round top_p falls between two of many equal tokens
def test_draft_probs_are_the_processed_distribution(vocab: int, kind: str) -> None:
    logits = kinds_of_logits(vocab, vocab)[kind]
    on_a_boundary = 0
    for index, sampling in enumerate(samplings(vocab)):
        noise = (0.0, 0.5, BELOW_ONE, 0.123)[index % 4]
        token, probs, confidence = run("select", vocab, logits=logits[None], noise=[noise], sampling=sampling)
        expected = expected_probs(logits, sampling)
        on_a_boundary += len(expected) > 1
        assert_probs(probs[0], expected)
        assert_drawn(int(token[0]), probs[0], noise)
        softmax = processed_distribution(logits, SamplingParameters(temperature=1.0)).probs
        np.testing.assert_allclose(confidence, softmax.max(), rtol=1e-5)
    assert on_a_boundary <= 4


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-30])
def test_temperatures_next_to_zero_leave_the_largest(temperature: float) -> None:
    logits = [[1.0, 2.0, -np.inf, 2.0, 1.999]]
    probs = run("select", 5, logits=logits, noise=[0.0], sampling=(temperature, 0, 0.9, 0.0))[1]
    assert probs.tolist() == [[0.0, 0.5, 0.0, 0.5, 0.0]]


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
            token = run("select", vocab, logits=logits[None], noise=[(place + share) / len(tokens)], sampling=PLAIN)[0]
            assert token == tokens[place]
    assert run("select", vocab, logits=logits[None], noise=[0.0], sampling=PLAIN)[0] == tokens[0]
    assert run("select", vocab, logits=logits[None], noise=[BELOW_ONE], sampling=PLAIN)[0] == tokens[-1]


def test_a_boundary_belongs_to_the_token_behind_it() -> None:
    for place in range(8):  # eighths are exact in float32
        assert run("select", 8, logits=np.zeros((1, 8)), noise=[place / 8], sampling=PLAIN)[0] == place


@pytest.mark.parametrize("kind", kinds_of_logits(16, 0))
def test_greedy_takes_the_lowest_id_of_the_largest(kind: str) -> None:
    for seed in range(5):
        logits = kinds_of_logits(700, seed)[kind]
        token, confidence = run("select_greedy", 700, logits=logits[None])
        assert token == logits.argmax()
        np.testing.assert_allclose(
            confidence, processed_distribution(logits, SamplingParameters(temperature=1.0)).probs.max(), rtol=1e-5
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
            assert [int(value[0]) for value in outputs] == [wrong, best[wrong], position + wrong + 1]


@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("uniform", [0.0, 0.5, BELOW_ONE])
def test_probabilities_of_exactly_zero_and_one(verification: Verification, uniform: float) -> None:
    """The target excludes the second draft token and is sure of the first; a uniform of 0 must not accept it."""
    logits = np.full((3, 6), -np.inf)
    logits[0, 2] = logits[1, 4] = logits[2, 5] = 1.0
    draft_probs = [[0, 0, 1, 0, 0, 0], [0, 0.5, 0, 0, 0.5, 0]]
    feed = dict(logits=logits, draft_probs=draft_probs, noise=[uniform] * 3, sampling=PLAIN, position=[5])
    outputs = run("accept", 6, 2, verification, draft_tokens=[2, 1], **feed)
    assert [int(value[0]) for value in outputs] == [1, 4, 7]
    outputs = run("accept", 6, 2, verification, draft_tokens=[2, 4], **feed)
    assert [int(value[0]) for value in outputs] == [2, 5, 8]
    # Drafted without any probability, by mistake only: an answer that the target allows, whatever it is.
    outputs = run("accept", 6, 2, verification, draft_tokens=[3, 3], **feed)
    assert [int(value[0]) for value in outputs] == [0, 2, 6]


@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_a_uniform_on_the_boundary_rejects(verification: Verification) -> None:
    """Target (1/2, 1/2), draft (1, 0) and its first token: the chance is exactly 1/2."""
    feed = dict(logits=np.zeros((2, 2)), draft_tokens=[0], draft_probs=[[1, 0]], sampling=PLAIN, position=[0])
    for uniform, accepted in ((0.5, 0), (float(np.nextafter(np.float32(0.5), np.float32(0))), 1)):
        assert run("accept", 2, 1, verification, noise=[uniform, 0.25], **feed)[0] == accepted


def compiled_rounds(verification: Verification, k: int, target: Chain, draft: Chain) -> Any:
    def judge(draft_tokens: tuple[int, ...], uniforms: Sequence[float]) -> tuple[int, int]:
        with np.errstate(divide="ignore"):
            logits = np.log([target.after(draft_tokens[:index]) for index in range(k + 1)])
        probs = [draft.after(draft_tokens[:index]) for index in range(k)]
        feed = dict(
            logits=logits, draft_tokens=draft_tokens, draft_probs=probs, noise=uniforms, sampling=PLAIN, position=[0]
        )
        num_accepted, next_token, _ = run("accept", target.vocab, k, verification, **feed)
        return int(num_accepted[0]), int(next_token[0])

    return judge


@pytest.mark.parametrize(("verification", "k"), [("token", 1), ("block", 1), ("token", 2), ("block", 2)])
def test_the_output_is_the_targets_by_enumeration(verification: Verification, k: int) -> None:
    """L0 of the compiled graph: float32 uniforms, multiples of 2**-24, integrated out."""
    target, draft = Chain(3, 1), Chain(3, 101)
    result = enumerate_rounds(compiled_rounds(verification, k, target, draft), target, draft, k, steps=2**24)
    assert result.error(target) < 1e-6


MODELS = [
    ("select_greedy", (128256,)),
    ("select", (128256,)),
    ("accept_greedy", (128256, 4)),
    ("accept", (128256, 4, "token")),
    ("accept", (128256, 8, "block")),
    ("accept", (128256, 1, "block")),
]


def test_the_oldest_tensorrt_has_every_operator() -> None:
    """CumSum would be a loop there, which no CUDA graph holds."""
    for spec, make in graphs._rules(2, 600):
        assert lint(from_proto(make()), "rows") == [], spec.graph


def test_no_extremum_is_of_several_rows() -> None:
    """cuDNN, which ONNX Runtime asks on a GPU, takes one thread a row: 6.4 ms instead of 26 us for a TopK."""
    for spec, make in graphs._rules(2, 600):
        graph = onnx.shape_inference.infer_shapes(make(), data_prop=True).graph
        sizes = {
            value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in graph.value_info
        }
        extrema = [node for node in graph.node if node.op_type in ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin")]
        assert extrema
        for node in extrema:
            assert set(sizes[node.output[0]]) <= {1}, (spec.graph, node.output[0])


@pytest.mark.parametrize(("rule", "arguments"), MODELS)
def test_files_are_small_and_valid(rule: str, arguments: tuple[Any, ...]) -> None:
    model = getattr(graphs, rule)(*arguments)
    onnx.checker.check_model(model, full_check=True)  # shapes and types of the outputs are what the operators give
    assert len(model.SerializeToString()) < 50_000
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18}
    assert ("draft_tokens" in {given.name for given in model.graph.input}) == (
        rule == "accept_greedy" or rule == "accept" or arguments[-1] == 4
    )
