"""Log-probabilities on the wire: tokens as text and as exact bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.text.token_bytes import spelled
from .answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

NEVER = -9999.0  # for an impossible token; JSON has no infinity


class TokenTexts:
    """The text and bytes of each of a tokenizer's ids. Special tokens have no bytes: they have no text in an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        description: dict[str, Any] = json.loads(tokenizer.to_str())
        self._bytes = spelled(description)
        self._special = {
            entry["id"]: entry["content"] for entry in description.get("added_tokens") or () if entry["special"]
        }

    def bytes_of(self, token: int) -> bytes:
        return b"" if token in self._special else self._bytes.get(token, b"")

    def text_of(self, token: int) -> str:
        """The text for people: half a character shows as U+FFFD, a special token by its name."""
        return self._special.get(token) or self._bytes.get(token, b"").decode(errors="replace")

    @property
    def longest(self) -> int:
        """Number of bytes of the longest token."""
        return max(map(len, self._bytes.values()), default=1)


def chat_logprobs(entries: Iterable[TokenLogprobs], texts: TokenTexts) -> ChatLogprobs:
    def top(token: int, logprob: float) -> TopLogprob:
        return TopLogprob(texts.text_of(token), finite(logprob), list(texts.bytes_of(token)))

    return ChatLogprobs(
        [
            TokenLogprob(
                texts.text_of(entry.token),
                finite(entry.logprob),
                list(texts.bytes_of(entry.token)),
                [top(*one) for one in entry.likeliest],
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: Iterable[TokenLogprobs], texts: TokenTexts, offset: int) -> CompletionLogprobs:
    """offset: number of characters of the answer before them."""
    found = CompletionLogprobs([], [], [], [])
    for entry in entries:
        text = texts.text_of(entry.token)
        found.tokens.append(text)
        found.token_logprobs.append(finite(entry.logprob))
        # Different tokens may show as the same text; the likelier one is kept. The token itself is always among them.
        likeliest: dict[str, float] = {}
        for token, logprob in (*entry.likeliest, (entry.token, entry.logprob)):
            likeliest.setdefault(texts.text_of(token), finite(logprob))
        found.top_logprobs.append(likeliest)
        found.text_offset.append(offset)
        offset += len(text)
    return found


def finite(logprob: float) -> float:
    return max(logprob, NEVER)
