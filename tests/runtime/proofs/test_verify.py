from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Bundle, Proof
from specexport.errors import ParameterError
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.proofs import verify
from specexport.runtime.proofs.chi_squared import Sampled
from specexport.runtime.proofs.enumeration import Exactness
from specexport.runtime.proofs.equality import Equality, RowExactness
from specexport.runtime.proofs.parity import ReferenceStep, contexts, schedule
from specexport.runtime.proofs.reference_file import save_reference
from specexport.runtime.proofs.verify import DEFAULT_PROMPTS, Report, render, verify_session
from specexport.runtime.session import Session
from specexport.runtime.text.encode import PromptEncoder
from support.doubles import CONTRACT, VOCAB, FakeDecoder, fake_session
from support.refusals import refused


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    steps = schedule(CONTRACT, VOCAB)
    for role, decoder in (("target", FakeDecoder()), ("draft", FakeDecoder(noise=0.4))):
        reference = []
        for step, context in zip(steps, contexts(steps), strict=True):
            rows = [decoder.logits_after(context[: row + 1]) for row in range(len(context) - step.rows, len(context))]
            reference.append(ReferenceStep(step, np.array(rows, np.float32).reshape(step.rows, VOCAB)))
        save_reference(session.bundle.path(session.bundle.manifest.pair[role].reference), reference)
    return session


@pytest.fixture
def no_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second, and is the same for every bundle."""
    monkeypatch.setattr(verify, "check_rules", list)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_right_bundle_passes_on_its_own_tokens(session: Session) -> None:
    result = verify_session(session, None, 6)
    assert result.passed
    assert [proof.max_error for proof in result.parity] == [0.0, 0.0]
    assert [proof.role for proof in result.parity] == ["target", "draft"]
    assert len(result.equalities) == DEFAULT_PROMPTS
    row = json.loads(json.dumps(result.as_dict()))
    assert row["equal_at_width_1"] == DEFAULT_PROMPTS
    assert [entry["rule"] for entry in row["exactness"]] == ["block", "token"]
    assert row["sampled"] == []


@pytest.mark.usefixtures("no_enumeration")
def test_a_bundle_of_another_model_fails(session: Session) -> None:
    session.engine.draft.decoder.seed = 9  # type: ignore[attr-defined]
    result = verify_session(session, None, 6)
    assert not result.passed
    assert [proof.max_error <= proof.tolerance for proof in result.parity] == [True, False]


@pytest.mark.usefixtures("no_enumeration")
def test_a_bundle_without_a_draft(session: Session, tmp_path: Path) -> None:
    alone = fake_session(tmp_path / "alone", FakeDecoder(), None)
    reference = session.bundle.path(session.bundle.manifest.target.reference)
    alone.bundle.path(alone.bundle.manifest.target.reference).write_bytes(reference.read_bytes())
    result = verify_session(alone, None, 6)
    assert result.passed
    assert [proof.role for proof in result.parity] == ["target"]
    assert len(result.equalities) == DEFAULT_PROMPTS


@pytest.mark.usefixtures("no_enumeration")
def test_rules_that_are_wrong_fail_a_bundle_that_is_right(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "check_rules", lambda: [Exactness("token", 5, 1e-3, 2.0)])
    assert not verify_session(session, None, 2).passed


@pytest.mark.slow
@pytest.mark.usefixtures("no_enumeration")
def test_every_way_to_draft_and_verify_is_sampled(session: Session) -> None:
    session.generate([1, 2, 3], max_new_tokens=3)
    announced: dict[str, list[str]] = {}
    steps: dict[str, int] = {}

    def stage(label: str, count: int) -> AbstractContextManager[Callable[[str], None]]:
        steps[label] = count
        return nullcontext(announced.setdefault(label, []).append)

    result = verify_session(session, None, 2, trials=1000, stage=stage)
    assert announced["L3"] == ["block verification", "token verification"]
    assert steps == {label: len(names) for label, names in announced.items()}
    assert [(entry.drafter, entry.verification) for entry in result.sampled] == [
        ("draft", "block"),
        ("draft", "token"),
    ]
    assert {entry.trials for entry in result.sampled} == {1000}
    assert session.generate([1, 2, 3], max_new_tokens=3).statistics.reused_tokens == 0


@pytest.mark.usefixtures("no_enumeration")
def test_prompts_of_the_users(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that `bench` and `calibrate` take, with or without routes."""
    asked: list[tuple[int, int]] = []

    def check(session: Session, prompt: Sequence[int], max_new_tokens: int, drafter: str | None) -> Equality:
        asked.append((len(prompt), max_new_tokens))
        return Equality(True, None, drafted=9)

    monkeypatch.setattr(verify, "check_equality", check)
    monkeypatch.setattr(session, "_encoder", PromptEncoder(with_template(session.bundle)))
    chat = json.dumps({"route": "chat", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]})
    lines = ('{"prompt": "one"}', "", '{"prompt": "four", "route": "x", "max_new_tokens": 3}', '{"prompt": [1]}', chat)
    assert verify_session(session, write(tmp_path / "p.jsonl", *lines), 6).passed
    assert asked == [(3, 6), (4, 3), (1, 6), (8, 6)]


def with_template(bundle: Bundle) -> Bundle:
    (bundle.root / "tokenizer/chat.jinja").write_text("{{ messages[0].role }}: {{ messages[0].content }}")
    text = replace(bundle.manifest.text, chat_template="tokenizer/chat.jinja")
    return replace(bundle, manifest=replace(bundle.manifest, text=text))


@pytest.mark.parametrize(
    "line", ["{", '{"text": "x"}', '{"messages": [{"role": "user", "content": "no template"}]}', '{"prompt": [99999]}']
)
def test_a_line_that_cannot_be_a_prompt_is_named(session: Session, tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "p.jsonl", '{"prompt": "fine"}', "", line)
    with refused(ParameterError, "3", field=(None, "prompt", "text")):
        verify_session(session, path, 6)


OFF = Policy(POLICY_VERSION, "x", "fake", "", 0.0, 0.9, RoutePolicy("off", "draft", 0, "fixed", (0.5,), None), {})


@pytest.mark.slow
@pytest.mark.usefixtures("no_enumeration")
@pytest.mark.parametrize("drafter", [None, "model", "ngram"])
def test_every_check_speculates_whatever_the_policy(session: Session, drafter: str | None) -> None:
    session.decisions = Decisions(OFF)
    assert session.generate([1, 2, 3], max_new_tokens=6).statistics.drafted == 0
    asked: list[tuple[Any, Any]] = []
    real = session.stream

    def stream(prompt: Any, params: Any, *rest: Any, **overrides: Any) -> Any:
        asked.append((params.num_draft_tokens, params.drafter))
        return real(prompt, params, *rest, **overrides)

    session.stream = stream  # type: ignore[method-assign]
    result = verify_session(session, None, 8, trials=1000, drafter=drafter)
    named = "ngram" if drafter == "ngram" else "draft"
    assert set(asked) == {(CONTRACT.max_draft_tokens, named)}
    assert result.passed
    assert f"L1         drafter {named}: " in render(result)
    if drafter != "ngram":  # which may find nothing
        assert all(entry.drafted > 0 for entry in (*result.equalities, *result.sampled))
        assert result.undrafted == ()


def proof(error: float) -> Proof:
    return Proof("fake", "ort", "target", 10, 30, error, 1e-3)


def exact(error: float) -> Exactness:
    return Exactness("block", 5, error, 2.3)


def sampled(statistic: float) -> Sampled:
    return Sampled("model", "block", 100, 9, statistic, 30.0, 2.0, 150)


def verification(**tiers: Sequence[Any]) -> Report:
    """Those tiers, and nothing of the others."""
    names = [field.name for field in fields(Report) if field.name not in ("drafters", "rows")]
    rows = RowExactness(10, 9, 1e-3)  # which decides nothing
    return Report(drafters=("model",), rows=rows, **{name: tuple(tiers.get(name, ())) for name in names})


@pytest.mark.parametrize(
    ("tiers", "passed"),
    [
        ({}, True),
        (
            {"parity": [proof(1e-4), proof(1e-3)], "equalities": [Equality(True, None), Equality(True, 2, 0.1, 0.1)]},
            True,
        ),
        ({"parity": [proof(1e-4), proof(2e-3)]}, False),
        ({"parity": [proof(float("nan"))]}, False),
        ({"equalities": [Equality(True, None), Equality(False, None)]}, False),
        ({"equalities": [Equality(True, 2, 1.0, 0.1)]}, False),
        ({"exactness": [exact(1e-13), exact(0.0)], "sampled": [sampled(29.9)]}, True),
        ({"exactness": [exact(1e-13), exact(1e-11)]}, False),
        ({"exactness": [exact(float("nan"))]}, False),
        ({"sampled": [sampled(29.9), sampled(30.1)]}, False),
        ({"sampled": [sampled(float("inf"))]}, False),
    ],
)
def test_every_tier_decides(tiers: dict[str, Sequence[Any]], passed: bool) -> None:
    result = verification(**tiers)
    assert result.passed == passed
    assert result.as_dict()["passed"] == passed
    assert render(result).splitlines()[-1].startswith("passed" if passed else "FAILED")
