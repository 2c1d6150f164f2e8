"""The shipped head of SmolLM2, and the prompts that it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.nightly

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPTS = EXAMPLES / "prompts/smollm2"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    import library_prompts

    return library_prompts


@pytest.fixture(scope="module")
def held_out() -> dict[str, list[str]]:
    found = {}
    for path in sorted(PROMPTS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {line["route"] for line in lines} == {path.stem}
        found[path.stem] = [line["messages"][0]["content"] for line in lines]
    return found


def test_no_held_out_prompt_is_trained_on(made: ModuleType, held_out: dict[str, list[str]]) -> None:
    trained = {text for _, text, _ in made.prompts(False, 100_000)}
    assert len(trained) > 1000
    assert not trained & {text for texts in held_out.values() for text in texts}


def test_prompts_of_a_file_are_all_held_out_or_none(made: ModuleType) -> None:
    found = list(made.pieces())
    files = {held: {piece.file for piece in found if piece.held_out == held} for held in (True, False)}
    assert files[True]
    assert not files[True] & files[False]


@pytest.mark.real
@pytest.mark.nightly
def test_the_shipped_head_helps_its_target(smollm2_bundle: Path, held_out: dict[str, list[str]]) -> None:
    from specexport.runtime.load import load

    with load(smollm2_bundle) as session:
        rounds = emitted = 0
        for text in held_out["question"][:4]:
            chat = [{"role": "user", "content": text}]
            expected = session.generate(chat, max_new_tokens=48, speculate=False)
            session.reset()
            answer = session.generate(chat, max_new_tokens=48, drafter="model", num_draft_tokens=3)
            assert answer.tokens == expected.tokens
            rounds, emitted = rounds + answer.statistics.rounds, emitted + answer.statistics.emitted
    # 1 is a draft of which nothing is accepted; the bound is that of an earlier draft, set before any figure was seen.
    assert emitted > 1.3 * rounds
