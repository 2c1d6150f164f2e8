"""The draft of SmolLM2 and how it is made: prompts, answers, and the draft that is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from specexport.exporter.checkpoints.find import find_checkpoint
from support.real import DRAFT

pytestmark = pytest.mark.nightly

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPTS = EXAMPLES / "prompts/smollm2"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The example's modules."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES / "train_smollm2_draft")
    import library_prompts
    import train

    return SimpleNamespace(prompts=library_prompts, train=train)


@pytest.fixture(scope="module")
def held_out() -> dict[str, list[str]]:
    found = {}
    for path in sorted(PROMPTS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {line["route"] for line in lines} == {path.stem}
        found[path.stem] = [line["messages"][0]["content"] for line in lines]
    return found


def test_no_held_out_prompt_is_trained_on(made: SimpleNamespace, held_out: dict[str, list[str]]) -> None:
    trained = {text for _, text, _ in made.prompts.prompts(False, 100_000)}
    assert len(trained) > 1000
    assert not trained & {text for texts in held_out.values() for text in texts}


def test_prompts_of_a_file_are_all_held_out_or_none(made: SimpleNamespace) -> None:
    found = list(made.prompts.pieces())
    files = {held: {piece.file for piece in found if piece.held_out == held} for held in (True, False)}
    assert files[True]
    assert not files[True] & files[False]


# The target's tokens, of which the draft has few merges: its own tokenizer would spell them otherwise.
ASKED = "<|im_start|> user Ċ What Ġdoes Ġ` os . path . join ` Ġdo Ġin ĠPython ? <|im_end|> Ċ <|im_start|>"
ANSWER = "The Ġ` os . path . join ` Ġfunction Ġis Ġa Ġfunction Ġin Ġthe ĠPython Ġstandard Ġlibrary Ġthat Ġis Ġused Ġto"


def test_the_shipped_draft_knows_how_such_answers_go_on() -> None:
    draft = find_checkpoint(str(DRAFT))
    vocabulary = draft.tokenizer.get_vocab()
    assert len(vocabulary) == draft.config.vocab_size == 6144
    prompt, answer = ([vocabulary[token] for token in text.split()] for text in (ASKED, ANSWER))
    with torch.no_grad():
        logits = draft.load("fp32")(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    told = torch.log_softmax(logits, -1)[range(len(answer)), answer].mean()
    # Chosen after -1.6 was seen, and -2.5 with rotary halves as GGUF orders them; a draft that knows nothing has -8.7.
    assert told > -2


@pytest.mark.real
@pytest.mark.nightly
def test_the_shipped_draft_helps_its_target(smollm2_bundle: Path, held_out: dict[str, list[str]]) -> None:
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
    # 1 is a draft of which nothing is accepted; the bound was set before any figure of this draft was seen.
    assert emitted > 1.3 * rounds
