"""The texts that a model reads while its layers are observed: the user's prompts, or a set that is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ParameterError
from ..prompts import PromptLine, read_prompt_lines

DEFAULT = Path(__file__).parent / "default_texts.jsonl"
# Fewer say too little of which channels are large; more change nothing that can be measured and take minutes on large models.
FEWEST_TOKENS = 512
MOST_TOKENS = 8192


def read_texts(path: Path | None) -> tuple[str, ...]:
    """The prompts of a JSONL file, as `specexport bench` reads it; None: the shipped set (prose, code, chat, many languages).

    Of messages, their contents. Raises `ParameterError` for a file that cannot be used, and for token ids: target and draft may
    speak different ones.
    """
    lines, _ = read_prompt_lines(DEFAULT if path is None else path, skip_invalid=False, routed=False)
    return tuple(_text(line, path) for line in lines)


def calibration_tokens(tokenizer: Any, texts: Sequence[str], length: int = 256) -> list[Tensor]:
    """Batches [1, T] int64 with T <= length, at most MOST_TOKENS in all, taken evenly from all texts.

    tokenizer: a Hugging Face one. Every piece begins as a prompt does, with the special tokens that the tokenizer puts in front:
    channels that only a first token makes large are seen. Raises `ParameterError` for fewer than FEWEST_TOKENS.
    """
    pieces: list[list[int]] = []
    for text in texts:
        tokens = list(tokenizer(text, verbose=False)["input_ids"])
        first = tokens[:1] if tokens and tokens[0] == tokenizer.bos_token_id else []
        rest, room = tokens[len(first) :], length - len(first)
        pieces += [first + rest[start : start + room] for start in range(0, len(rest), room)]
    found = sum(map(len, pieces))
    if found < FEWEST_TOKENS:
        raise ParameterError(
            f"the calibration prompts have {found} tokens, expected {FEWEST_TOKENS} at least; "
            "give more or longer ones, or leave --calibration-prompts out for the shipped set"
        )
    followed = [piece for piece in pieces if len(piece) > 1]  # one token says nothing of what follows
    return [torch.tensor([piece]) for piece in _evenly(followed or pieces, MOST_TOKENS)]


def _evenly(pieces: list[list[int]], most: int) -> list[list[int]]:
    """Every nth piece, with the smallest n that keeps the tokens within `most`; the first piece in any case."""
    for step in range(1, len(pieces) + 1):
        taken = pieces[::step]
        if sum(map(len, taken)) <= most:
            return taken
    return pieces[:1]


def _text(line: PromptLine, path: Path | None) -> str:
    prompt = line.prompt
    if isinstance(prompt, str):
        return prompt
    contents = [message.get("content") for message in prompt if isinstance(message, dict)]
    if not contents:
        raise ParameterError(f"{path}, line {line.line}: found token ids, expected a text or messages; the draft may have other ids")
    return "\n\n".join(content for content in contents if isinstance(content, str))
