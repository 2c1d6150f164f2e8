"""What is read in calibration: the shipped set, the user's file, and what is wrong with too little of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.errors import ParameterError
from specexport.exporter.weights.fidelity import calibration_tokens
from specexport.exporter.weights.texts import DEFAULT, MIN_TOKENS, read_texts, require_length
from support.refusals import refused
from support.tiny import make_tokenizer


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_the_shipped_set() -> None:
    texts = read_texts(None)
    assert DEFAULT.suffix == ".jsonl"
    assert 38 <= len(texts) <= 60
    assert len(set(texts)) == len(texts)
    # A byte-level vocabulary of a hundred thousand tokens takes some four characters of English and two of Chinese a
    # token.
    assert sum(map(len, texts)) > 20_000
    assert all(
        any(part in text for text in texts) for part in ("def ", "#include", "SELECT", "User:", "茶", "снег", "Zug")
    )


def test_texts_and_the_contents_of_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    path = written(tmp_path, {"route": "a", "prompt": "text"}, {"route": "b", "messages": messages})
    assert read_texts(path) == ("text", "one\n\ntwo")
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert read_texts(written(tmp_path, {"messages": parts})) == ("one\ntwo",)
    with refused(ParameterError, field="messages"):
        read_texts(written(tmp_path, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}))


def test_token_ids_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"route": "a", "prompt": "text"}, {"route": "a", "prompt": [1, 2]})
    with refused(ParameterError, "2", field="prompt"):
        read_texts(path)


def test_a_token_without_an_embedding_is_refused() -> None:
    with refused(ParameterError, field="calibration_prompts"):
        calibration_tokens(make_tokenizer(), ["xy" * MIN_TOKENS], vocab_size=2)


def test_too_few_tokens_are_told() -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(ParameterError) as caught:
        calibration_tokens(tokenizer, ["x" * 100, "y" * 50])
    assert str(caught.value).startswith(
        "the calibration prompts have 150 tokens, expected at least 512; give more or longer ones"
    )
    assert sum(batch.numel() for batch in calibration_tokens(tokenizer, ["xy" * (MIN_TOKENS // 2)])) == MIN_TOKENS


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    for line in ({"prompt": "\ud800"}, {"messages": [{"role": "user", "content": "\ud800"}]}):
        with refused(ParameterError, "line 1", field="prompt"):
            read_texts(written(tmp_path, line))


def test_too_little_text_is_told_without_loading_a_model(tmp_path: Path) -> None:
    """By the tokenizer's file, whatever it cuts off, or else at most a token for each byte."""
    tokenizer = make_tokenizer().backend_tokenizer  # a token for each character
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for file in ("tokenizer.json", "none"):
        require_length(["x" * (MIN_TOKENS - 2)], tmp_path / file)
        with refused(ParameterError, MIN_TOKENS - 1, MIN_TOKENS, field="calibration_prompts"):
            require_length(["x" * (MIN_TOKENS - 3)], tmp_path / file)


def test_every_piece_begins_as_a_prompt_does() -> None:
    class Marked:
        bos_token_id = 7

        def __call__(self, text: str, verbose: bool) -> dict[str, list[int]]:
            return {"input_ids": [7, *range(10, 10 + len(text))]}

    batches = calibration_tokens(Marked(), ["x" * 600], length=256)
    assert [batch.shape[1] for batch in batches] == [256, 256, 91]
    assert all(int(batch[0, 0]) == 7 for batch in batches)
    assert torch.cat([batch[0, 1:] for batch in batches]).tolist() == list(range(10, 610))
