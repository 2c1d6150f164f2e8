"""The draft of SmolLM2 and how it is made: prompts, answers in batches, few tokens, and the draft that is shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from specexport.exporter.checkpoints.find import find_checkpoint
from support.real import DRAFT
from support.tiny import LLAMA, save_model
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.nightly

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPTS = EXAMPLES / "prompts/smollm2"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The example's modules."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES / "train_smollm2_draft")
    import batched
    import library_prompts
    import small_vocabulary
    import train
    import write_answers

    return SimpleNamespace(
        batched=batched, prompts=library_prompts, vocabulary=small_vocabulary, train=train, write=write_answers
    )


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


# 5 requests through 3 slots, of both banks: a slot's old rows must not be seen by the next.
def test_answers_of_a_batch_are_those_of_each_alone(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.batched, "SHORT", 6)
    config = {**LLAMA, "tie_word_embeddings": True, "initializer_range": 0.05}
    folder = save_model(tmp_path / "tiny", config=config)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rng = np.random.default_rng(0)
    prompts = {str(place): rng.integers(2, 288, 3 + 2 * place).tolist() for place in range(5)}
    requests: Iterator[Any] = iter(made.batched.Answering(key, "code", prompt, 0.0) for key, prompt in prompts.items())
    found = {one.key: one for one in made.batched.answers(made.batched.Batched(folder, 3, 40), requests, 12, 0)}
    assert found.keys() == prompts.keys()
    for key, one in found.items():
        whole = torch.tensor([prompts[key] + one.tokens])
        with torch.no_grad():
            rows = torch.log_softmax(model(whole).logits[0, len(prompts[key]) - 1 : -1], -1)
        ids, logprobs = torch.stack(one.ids).long(), torch.stack(one.logprobs).float()
        assert ids[:, 0].tolist() == one.tokens
        # bf16 has 8 bits, and the logits differ by some units: 0.1 is far above its rounding, far below a wrong row's.
        assert (rows.gather(1, ids) - logprobs).abs().mean() < 0.1
        assert len(one.tokens) == 12 or one.tokens[-1] == model.config.eos_token_id


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
