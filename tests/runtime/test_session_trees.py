"""A bundle built for trees, through its session: what candidates change, and what they must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from specexport import Session, load
from specexport.bundle import Bundle
from specexport.errors import ParameterError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.runtime.grammar.grammar import Grammar
from specexport.runtime.proofs.verify import render, verify_session
from specexport.runtime.sampling.logprobs import TokenLogprobs
from specexport.runtime.sampling.parameters import SamplingParameters
from support.doubles import proofs_of
from support.pair import Pair
from support.refusals import refused
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

PROMPTS = [[7, 3, 200, 41, 9], [5] * 4, list(range(20, 40))]
SPECTR = SamplingParameters(
    temperature=1.0,
    verification="spectr",
    seed=3,
    stop_token_ids=(),
    max_new_tokens=40,
    num_draft_tokens=3,
    logprobs=0,
)


@pytest.fixture(scope="module", params=["fp32", "int8"])
def bundle(request: pytest.FixtureRequest, pair: Pair, cache: Path, once: Callable[..., Path]) -> Path:
    """The target, and itself with noise for a draft."""
    precision: str = request.param

    def make(folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(pair.target)
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.12 * parameter.abs().mean() * torch.randn_like(parameter)
        model.save_pretrained(folder / "draft")
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (pair.target / name).exists():
                (folder / "draft" / name).write_bytes((pair.target / name).read_bytes())
        options = BuildOptions(max_seq_len=72, prompt_chunk=16, tree_rows=8, precision=precision, cache=cache)
        build(str(pair.target), str(folder / "draft"), folder / "trees.bundle", options)

    return once(f"trees-{precision}", make) / "trees.bundle"


@pytest.fixture(scope="module")
def session(bundle: Path) -> Session:
    return load(bundle)


def test_the_build_proves_trees(bundle: Path) -> None:
    proofs = [proof for proof in proofs_of(Bundle.open(bundle).manifest) if proof.dialect.endswith("trees")]
    assert [(proof.role, proof.dialect) for proof in proofs] == [("target", "kernels, trees")]
    assert all(proof.passed and proof.max_error < 1e-4 for proof in proofs)


def check_rows(session: Session, prompt: Sequence[int], found: Sequence[TokenLogprobs]) -> None:
    """Every token was drawn from the logits that the target gives after those before it."""
    session.reset()
    alone = session.score([*prompt, *(one.token for one in found)]).prompt_logprobs[-len(found) :]
    assert [one.token for one in alone] == [one.token for one in found]
    np.testing.assert_allclose([one.logprob for one in found], [one.logprob for one in alone], atol=1e-6)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_rows_are_the_targets_own(session: Session, most: int) -> None:
    caught = 0
    for prompt in PROMPTS:
        session.reset()
        found = session.generate(prompt, SPECTR, num_candidates=most)
        row = found.statistics
        assert len(found.tokens) == row.accepted + row.caught + row.rounds == 40
        assert row.candidates <= most * row.rounds
        caught += row.caught
        check_rows(session, prompt, found.logprobs)
    assert caught > 2


def test_up_to_the_last_row_of_the_cache(session: Session) -> None:
    prompt = PROMPTS[2]
    found = session.generate(prompt, SPECTR, max_new_tokens=1000)
    assert len(found.tokens) == session.capacity - len(prompt)
    check_rows(session, prompt, found.logprobs[:-1])  # which leaves room to score them


def test_a_cancelled_request_leaves_what_the_next_one_needs(session: Session) -> None:
    prompt = PROMPTS[0]
    session.reset()
    tokens: list[int] = []
    with session.stream(prompt, SPECTR) as stream:
        for chunk in stream:
            tokens += chunk.tokens
            if chunk.statistics.caught:
                stream.cancel()
    assert chunk.finish_reason == "cancelled"
    again = session.generate([*prompt, *tokens], SPECTR)
    assert again.statistics.reused_tokens >= len(prompt) + len(tokens) - 2
    check_rows(session, [*prompt, *tokens], again.logprobs)


def test_candidates_are_drawn_and_judged_with_the_draft(session: Session) -> None:
    found = [session.generate(PROMPTS[0], SPECTR, num_candidates=most) for most in (0, 5, 5)]
    alone, row = found[0].statistics, found[1].statistics
    assert alone.candidates == 0 < row.caught < row.candidates <= 5 * row.rounds
    assert found[1].tokens == found[2].tokens
    # By default as many as the bundle has rows for.
    assert session.generate(PROMPTS[0], SPECTR).statistics.candidates > row.candidates
    # So cold that every draw is the likeliest token: the target's own text comes out, with nothing beside the draft.
    cold = session.generate(PROMPTS[0], SPECTR, temperature=1e-6)
    greedy = session.generate(PROMPTS[0], SPECTR, temperature=0.0)
    assert cold.tokens == greedy.tokens == session.generate(PROMPTS[0], SPECTR, temperature=0.0, speculate=False).tokens
    assert cold.statistics.candidates == greedy.statistics.candidates == 0


def test_what_a_bundle_has_no_room_for_is_refused(session: Session, built: Path) -> None:
    prompt = PROMPTS[0]
    with refused(ParameterError, "--tree-rows", "0 to 8", field="num_candidates"):
        session.generate(prompt, SPECTR, num_candidates=9)
    with refused(ParameterError, "num_draft_tokens", field="num_candidates"):
        session.generate(prompt, SPECTR, num_draft_tokens=0, num_candidates=8)
    with refused(ParameterError, "ngram", field="verification"):
        session.generate(prompt, SPECTR, drafter="ngram")
    with load(built) as chains, refused(ParameterError, "--tree-rows 2", field="verification"):
        chains.generate(prompt, SPECTR, num_candidates=2)
    with refused(ParameterError, "allows", field="verification"):
        session.generate(prompt, SPECTR, grammar=Grammar.regex("[a-z]+"))


def test_verify_proves_trees_too(session: Session) -> None:
    report = verify_session(session, None, 8)
    assert report.passed
    assert [entry.rule for entry in report.exactness] == ["block", "token", "spectr"]
    told = render(report)
    assert "parity     target, trees, on onnxruntime" in told
    assert "spectr verification" in told
    session.reset()


@pytest.mark.parametrize(
    "options",
    [
        {"tree_rows": 33},
        {"tree_rows": 4, "engines": ("onnxruntime", "tensorrt")},
        {"tree_rows": 4, "precision": "int8", "portable": True},
    ],
)
def test_builds_that_cannot_have_trees_are_refused(options: dict[str, object]) -> None:
    with refused(ParameterError, "--tree-rows", field="tree_rows"):
        BuildOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"cache_precision": "bf16"},
        {"cache_precision": "fp16", "portable": True},
        {"cache_precision": "fp32", "precision": "fp16"},
        {"cache_precision": "fp16", "engines": ("onnxruntime", "tensorrt")},
    ],
)
def test_caches_of_another_precision_that_are_refused(options: dict[str, object]) -> None:
    with refused(ParameterError, "--cache-precision", field="cache_precision"):
        BuildOptions(**options)  # type: ignore[arg-type]
