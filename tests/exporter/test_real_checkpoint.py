"""SmolLM2-135M-Instruct from its GGUF file, as a user would build it: text equal to that of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.runtime.load import load
from specexport.runtime.session import Session
from support.real import missing, smollm2_gguf

pytestmark = [pytest.mark.real, pytest.mark.slow]
QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
PROMPTS = ["def fibonacci(n):", "The capital of France is", QUESTION]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    if lacking := missing():
        pytest.skip(f"needs {', '.join(lacking)}")
    return find_checkpoint(str(smollm2_gguf()))


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Any:
    return checkpoint.load("fp32")


@pytest.fixture(scope="module")
def session(smollm2_bundle: Path) -> Iterator[Session]:
    with load(smollm2_bundle) as session:
        yield session


@pytest.mark.parametrize("prompt", PROMPTS, ids=["code", "prose", "chat"])
def test_the_text_is_that_of_transformers(prompt: Any, session: Session, model: Any, checkpoint: Checkpoint) -> None:
    given = session.encode(prompt)
    if prompt is QUESTION:
        template = checkpoint.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        assert given == checkpoint.tokenizer(template, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        expected = model.generate(torch.tensor([given]), max_new_tokens=24, do_sample=False)[0, len(given) :].tolist()
    for options in ({"speculate": False}, {"drafter": "ngram"}):
        session.reset()
        assert list(session.generate(prompt, max_new_tokens=24, **options).tokens) == expected  # type: ignore[arg-type]


def test_lookups_draft_where_the_answer_repeats_the_prompt(session: Session) -> None:
    text = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog near the river bank."
    chat = [{"role": "user", "content": text}]
    answer = session.generate(chat, max_new_tokens=64, drafter="ngram", num_draft_tokens=4)
    assert answer.statistics.accepted > 0


def test_an_answer_with_numbers_is_encoded_as_it_was_generated(session: Session) -> None:
    """So that the next turn begins with the rows of this one. Split as GPT-2 does, only 64 of them were its own."""
    chat = [{"role": "user", "content": "How do I bake bread? Give me the steps."}]
    session.reset()
    answer = session.generate(chat, max_new_tokens=96)
    assert "\n\n1." in answer.text
    cached = answer.statistics.prompt_tokens + answer.statistics.emitted
    chat += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "Thanks."}]
    following = session.generate(chat, max_new_tokens=1)
    assert following.statistics.reused_tokens >= cached - 2


def test_the_ids_are_those_of_llama_cpp(checkpoint: Checkpoint) -> None:
    pytest.importorskip("llama_cpp")
    from gguf_ids import differences, mixed_lines

    assert differences(smollm2_gguf(), mixed_lines()) == []


def test_the_answer_ends_at_the_models_own_stop_token(session: Session) -> None:
    answer = session.generate([{"role": "user", "content": "Say only: yes"}], max_new_tokens=128)
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text
