"""Log-probabilities on the wire: tokens as text and as exact bytes."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer

from ...runtime.sampling.logprobs import TokenLogprobs
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.text.detokenizer import UNFINISHED
from ...runtime.text.token_bytes import spelled
from .answers import ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob

NEVER = -9999.0  # for an impossible token; JSON has no infinity


class TokenTexts:
    """The text and bytes of each of a tokenizer's ids. Special tokens have no bytes: they have no text in an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        description: dict[str, Any] = json.loads(tokenizer.to_str())
        self._bytes = spelled(description)
        self._special = {
            entry["id"]: entry["content"] for entry in description.get("added_tokens") or () if entry["special"]
        }

    @property
    def longest(self) -> int:
        """Number of bytes of the longest token."""
        return max(map(len, self._bytes.values()), default=1)

    def is_special(self, token: int) -> bool:
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        return b"" if token in self._special else self._bytes.get(token, b"")

    def text_of(self, token: int) -> str:
        """The text for people: half a character shows as U+FFFD, a special token by its name."""
        return self._special.get(token) or self._bytes.get(token, b"").decode(errors="replace")

    def name_of(self, token: int) -> str:
        """The text where its bytes are one; else the bytes as OpenAI's completions write them: `bytes:\\xe2\\x82`."""
        if token in self._special:
            return str(self._special[token])
        data = self._bytes.get(token, b"")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


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


def prompt_logprobs(entries: Iterable[TokenLogprobs], count: int, texts: TokenTexts) -> PromptLogprobs:
    """The `count` likeliest at each place of a prompt, and its own token."""
    found: PromptLogprobs = [None]
    for entry in entries:
        assert entry.rank is not None
        ranked = {token: (one, rank) for rank, (token, one) in enumerate(entry.likeliest[:count], 1)}
        ranked.setdefault(entry.token, (entry.logprob, entry.rank))
        found.append(
            {
                str(token): PromptLogprob(finite(one), rank, texts.text_of(token))
                for token, (one, rank) in ranked.items()
            }
        )
    return found


class Characters:
    """Where each token is in a text, as the text is made of them: U+FFFD for bytes that are no character, the names of
    special tokens that are `shown`.
    """

    def __init__(self, texts: TokenTexts, shown: Collection[int] = ()) -> None:
        self._texts, self._shown = texts, shown
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.end = 0  # of the characters that are whole

    @classmethod
    def after(cls, texts: TokenTexts, prompt: Sequence[int], parameters: SamplingParameters) -> Characters:
        """Of a request's output, to which a character belongs that its prompt leaves unfinished, but for a grammar."""
        grammar = parameters.grammar
        characters = cls(texts, {*parameters.shown, *(grammar.shown if grammar else ())})
        for token in [] if grammar else prompt[-UNFINISHED:]:
            characters.add(token)
            characters.end = 0 if characters.whole else characters.end
        return characters

    @property
    def whole(self) -> bool:
        return not self._decoder.getstate()[0]

    def add(self, token: int) -> int:
        """The place of the character in which the token begins."""
        if token in self._shown:
            start = self.end + len(self._decoder.decode(b"", final=True))
            self.end = start + len(self._texts.text_of(token))
            return start
        data = self._texts.bytes_of(token)
        # Of what was unfinished and the token's first byte, the last character is the token's.
        begun = (self._decoder.getstate()[0] + data[:1]).decode(errors="replace")
        start = self.end + (len(begun) - 1 if data else 0)
        self.end += len(self._decoder.decode(data))
        return start


class CompletionEntries:
    """The log-probabilities of one completion, part by part. characters: of its output."""

    def __init__(self, texts: TokenTexts, characters: Characters) -> None:
        self._texts, self._characters = texts, characters

    def add(self, entries: Iterable[TokenLogprobs]) -> CompletionLogprobs:
        """The offset of a token that begins inside a character is that character's."""
        logprobs = CompletionLogprobs([], [], [], [])
        for entry in entries:
            logprobs.tokens.append(self._texts.name_of(entry.token))
            logprobs.token_logprobs.append(finite(entry.logprob))
            logprobs.top_logprobs.append(self._likeliest(entry))
            logprobs.text_offset.append(self._characters.add(entry.token))
        return logprobs

    def echo(
        self, tokens: Sequence[int], entries: Iterable[TokenLogprobs], text: str, count: int
    ) -> CompletionLogprobs:
        """Of a prompt that stands before the completion; its first token has no entry. text: the prompt as it is
        echoed, in which special tokens are spelled only where the client did. count: of the likeliest of each.
        """
        logprobs, prompt = CompletionLogprobs([], [None], [None], []), Characters(self._texts)
        for token in tokens:
            logprobs.tokens.append(self._texts.name_of(token))
            start, spelled = prompt.add(token), self._texts.text_of(token)
            logprobs.text_offset.append(min(start, len(text)))
            if self._texts.is_special(token):
                prompt.end += len(spelled) if text.startswith(spelled, start) else 0
            elif not start and spelled[:1] == " " != text[:1]:  # some tokenizers write a blank before a text
                prompt.end -= 1
        for entry in entries:
            logprobs.token_logprobs.append(finite(entry.logprob))
            logprobs.top_logprobs.append(self._likeliest(replace(entry, likeliest=entry.likeliest[:count])))
        self._characters.end = len(text)
        return logprobs

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float]:
        """By name, the token itself among them: of several tokens with one name, the others are called by their ids."""
        itself = self._texts.name_of(entry.token)
        by_name: dict[str, float] = {}
        for token, logprob in entry.likeliest:
            name = self._texts.name_of(token)
            if token != entry.token and (name == itself or name in by_name):
                name = f"token_id:{token}"
            by_name[name] = finite(logprob)
        return by_name if itself in by_name else {**by_name, itself: finite(entry.logprob)}


def finite(logprob: float) -> float:
    return max(logprob, NEVER)
