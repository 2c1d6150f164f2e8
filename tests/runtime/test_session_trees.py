"""A bundle built for trees, through its session: what leaves change, and what they must not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specexport import Session, load
from specexport.bundle import Bundle
from specexport.errors import ParameterError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.runtime.grammar.grammar import Grammar
from specexport.runtime.proofs.equality import decode_request
from specexport.runtime.proofs.verify import render, verify_session
from specexport.runtime.sampling.parameters import SamplingParameters
from support.doubles import proofs_of
from support.pair import Pair
from support.refusals import refused
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

PROMPTS = [[7, 3, 200, 41, 9], [5] * 4, list(range(20, 40))]
FREE = SamplingParameters(stop_token_ids=(), max_new_tokens=40, num_draft_tokens=3)


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


@pytest.mark.parametrize("leaves", [1, 4, 8])
def test_greedy_output_is_the_targets_own(session: Session, leaves: int) -> None:
    caught = 0
    for prompt in PROMPTS:
        params = dataclasses.replace(FREE, num_leaves=leaves)
        session.reset()
        found = decode_request(session, prompt, params)
        plain = session.generate(prompt, params, speculate=False).tokens
        assert found.tokens == plain  # a leaf has the bits that it has in a chain
        session.reset()
        caught += found.statistics.caught
        row = found.statistics
        assert len(found.tokens) == row.accepted + row.caught + row.rounds == 40
        assert row.leaves <= leaves * row.rounds
    assert caught > 2


def test_up_to_the_last_row_of_the_cache(session: Session) -> None:
    prompt = PROMPTS[2]
    params = dataclasses.replace(FREE, max_new_tokens=1000, num_leaves=8)
    found = session.generate(prompt, params)
    assert len(found.tokens) == session.capacity - len(prompt)
    assert found.tokens == session.generate(prompt, params, speculate=False).tokens


def test_a_cancelled_request_leaves_what_the_next_one_needs(session: Session) -> None:
    prompt, whole = PROMPTS[0], session.generate(PROMPTS[0], FREE, num_leaves=8).tokens
    session.reset()
    tokens: list[int] = []
    caught = False
    with session.stream(prompt, FREE, num_leaves=8) as stream:
        for chunk in stream:
            tokens += chunk.tokens
            if chunk.statistics.caught and not caught:
                caught = True
                stream.cancel()
    assert caught
    assert 0 < len(tokens) < len(whole)
    again = session.generate([*prompt, *tokens], FREE, num_leaves=8, max_new_tokens=40 - len(tokens))
    assert (*tokens, *again.tokens) == whole
    assert again.statistics.reused_tokens >= len(prompt) + len(tokens) - 2


def test_candidates_are_drawn_and_judged_with_the_draft(session: Session) -> None:
    params = dataclasses.replace(FREE, temperature=1.0, verification="spectr", seed=3)
    found = [session.generate(PROMPTS[0], params, num_leaves=leaves) for leaves in (0, 5, 5)]
    alone, row = found[0].statistics, found[1].statistics
    assert alone.leaves == 0 < row.caught < row.leaves <= 5 * row.rounds
    assert found[1].tokens == found[2].tokens
    assert len(found[1].tokens) == row.accepted + row.caught + row.rounds == 40
    assert session.generate(PROMPTS[0], params).statistics.leaves > row.leaves  # as many as the bundle has rows for
    # So cold that every draw is the likeliest token: the target's own text comes out, with nothing beside the draft.
    cold = session.generate(PROMPTS[0], params, temperature=1e-6)
    assert cold.tokens == session.generate(PROMPTS[0], FREE, speculate=False).tokens
    assert cold.statistics.leaves == 0
    greedy = session.generate(PROMPTS[0], FREE, verification="spectr", num_leaves=4)
    assert greedy.statistics.caught > 0  # second choices, as by every other verification


def test_what_a_bundle_has_no_room_for_is_refused(session: Session, built: Path) -> None:
    with refused(ParameterError, "--tree-rows", "0", field="num_leaves"):
        session.generate(PROMPTS[0], FREE, num_leaves=9)
    with refused(ParameterError, "ngram", field="num_leaves"):
        session.generate(PROMPTS[0], FREE, drafter="ngram", num_leaves=8)
    with refused(ParameterError, "num_draft_tokens", field="num_leaves"):
        session.generate(PROMPTS[0], FREE, num_draft_tokens=0, num_leaves=8)
    with refused(ParameterError, "ngram", field="verification"):
        session.generate(PROMPTS[0], temperature=1.0, verification="spectr", drafter="ngram")
    with load(built) as chains:
        with refused(ParameterError, "--tree-rows", "2", field="num_leaves"):
            chains.generate(PROMPTS[0], num_leaves=2)
        with refused(ParameterError, "--tree-rows", field="verification"):
            chains.generate(PROMPTS[0], temperature=1.0, verification="spectr")
    with refused(ParameterError, "allows", field="verification"):
        session.generate(PROMPTS[0], temperature=1.0, verification="spectr", grammar=Grammar.regex("[a-z]+"))


def test_verify_proves_trees_too(session: Session) -> None:
    report = verify_session(session, None, 8)
    assert report.passed
    rules = ["leaves after block", "leaves after token", "spectr"]
    assert [entry.rule for entry in report.exactness[2:]] == rules
    told = render(report)
    assert "parity     target, trees, on onnxruntime" in told
    assert "leaves after block verification" in told
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
