from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from doubles import CONTRACT, VOCAB, FakeDecoder, fake_session
from specexport.bundle import Proof
from specexport.errors import ParameterError
from specexport.runtime.equality import Equality
from specexport.runtime.parity import ReferenceStep, contexts, save_reference, schedule
from specexport.runtime.session import Session
from specexport.runtime.verify import DEFAULT_PROMPTS, Verification, read_prompts, render, verify_session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    steps = schedule(CONTRACT, VOCAB)
    for role, decoder in (("target", FakeDecoder()), ("draft", FakeDecoder(noise=0.4))):
        reference = []
        for step, context in zip(steps, contexts(steps), strict=True):
            rows = [decoder.logits_after(context[: row + 1]) for row in range(len(context) - step.rows, len(context))]
            reference.append(ReferenceStep(step, np.array(rows, np.float32).reshape(step.rows, VOCAB)))
        save_reference(session.bundle.path(session.bundle.manifest.references[role]), reference)
    return session


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_right_bundle_passes_on_its_own_tokens(session: Session) -> None:
    result = verify_session(session, None, 6)
    assert result.passed
    assert [proof.max_error for proof in result.parity] == [0.0, 0.0]
    assert [proof.role for proof in result.parity] == ["target", "draft"]
    assert len(result.equalities) == DEFAULT_PROMPTS
    assert json.loads(json.dumps(result.as_dict()))["equal_at_width_1"] == DEFAULT_PROMPTS


def test_a_bundle_of_another_model_fails(session: Session) -> None:
    session.engine.draft.seed = 9  # type: ignore[attr-defined]
    result = verify_session(session, None, 6)
    assert not result.passed
    assert [proof.max_error <= proof.tolerance for proof in result.parity] == [True, False]


def test_prompts_of_the_users(session: Session, tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", '{"prompt": "one"}', "", '{"prompt": "two", "route": "x"}', "")
    assert len(verify_session(session, prompts, 6).equalities) == 2


def test_no_prompts_at_all_prove_nothing(session: Session, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"p\.jsonl holds no prompt"):
        verify_session(session, write(tmp_path / "p.jsonl", "", " "), 6)


def test_line_separators_within_a_string_are_text(tmp_path: Path) -> None:
    prompts = ["one\u2028two", "three\x85four", "five\r\nsix"]
    path = write(tmp_path / "p.jsonl", *(json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts))
    assert list(read_prompts(path)) == prompts
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert list(read_prompts(path)) == prompts


@pytest.mark.parametrize(
    "line", ["{", "text", "[]", "3", "null", '"prompt"', '{"text": "x"}', '{"prompt": 3}', '{"prompt": null}', "1" * 5000]
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "p.jsonl", '{"prompt": "fine"}', "", line)
    with pytest.raises(ParameterError, match=r"p\.jsonl, line 3: found") as caught:
        list(read_prompts(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(ParameterError, match=r"p\.jsonl (cannot be read|is not UTF-8); give|p\.jsonl cannot be read: "):
        list(read_prompts(tmp_path / "p.jsonl"))


def proof(error: float) -> Proof:
    return Proof("fake", "ort", "target", 10, 30, error, 1e-3)


@pytest.mark.parametrize(
    ("errors", "equalities", "passed"),
    [
        ([1e-4, 1e-3], [Equality(True, None), Equality(True, 2, 0.1, 0.1)], True),
        ([1e-4, 2e-3], [Equality(True, None)], False),
        ([float("nan")], [Equality(True, None)], False),
        ([1e-4], [Equality(True, None), Equality(False, None)], False),
        ([1e-4], [Equality(True, 2, 1.0, 0.1)], False),
    ],
)
def test_both_tiers_decide(errors: list[float], equalities: list[Equality], passed: bool) -> None:
    result = Verification(tuple(map(proof, errors)), tuple(equalities))
    assert result.passed == passed
    assert result.as_dict()["passed"] == passed
    assert render(result).splitlines()[-1].startswith("passed" if passed else "FAILED")


def test_the_counts_add_up() -> None:
    equalities = (Equality(True, None), Equality(True, 2, 0.1, 0.1), Equality(False, 3, 1.0, 0.1))
    row = Verification((proof(1e-4),), equalities).as_dict()
    counts = [row[name] for name in ("prompts", "equal_at_same_width", "equal_at_width_1", "near_ties")]
    assert counts == [3, 2, 1, 1]
