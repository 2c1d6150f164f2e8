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
from ...runtime.text.detokenizer import HELD, REPLACEMENT, UNFINISHED
from ...runtime.text.token_bytes import fallback_tokens, spelled
from .answers import ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob

NEVER = -9999.0  # for an impossible token; JSON has no infinity


class TokenTexts:
    """The text and bytes of each of a tokenizer's ids. Special tokens have no bytes: they have no text in an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        description: dict[str, Any] = json.loads(tokenizer.to_str())
        self._bytes = spelled(description)
        self._fallback = fallback_tokens(description)
        self._special = {
            entry["id"]: entry["content"] for entry in description.get("added_tokens") or () if entry["special"]
        }

    @property
    def longest(self) -> int:
        """Number of bytes of the longest token."""
        return max(map(len, self._bytes.values()), default=1)

    def is_special(self, token: int) -> bool:
        return token in self._special

    def is_fallback(self, token: int) -> bool:
        """Whether it is one byte, which the tokenizer decodes together with all such tokens beside it."""
        return token in self._fallback

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
        # With byte fallback: the bytes, and those of each token, of which the next ones tell what they are; and whether
        # the tokens of bytes before have one that belongs to no character, so that all that follow are U+FFFD.
        self._open = b""
        self._parts: list[bytes] = []
        self._broken = False
        self.end = 0  # of the characters that are whole

    @classmethod
    def after(cls, texts: TokenTexts, prompt: Sequence[int], parameters: SamplingParameters) -> Characters:
        """Of a request's output, to which a character belongs that its prompt leaves unfinished, but for a grammar."""
        grammar = parameters.grammar
        characters = cls(texts, {*parameters.shown, *(grammar.shown if grammar else ())})
        size = min(UNFINISHED, len(prompt))
        while 0 < size < len(prompt) and texts.is_fallback(prompt[-size]):
            size += 1  # what the tokens of bytes are follows from all of them
        for token in [] if grammar else prompt[len(prompt) - size :]:
            characters.add(token)
            open_, data = len(characters._decoder.getstate()[0]), texts.bytes_of(token)
            if open_ <= len(data):  # the unfinished character, if there is one, begins in this token
                characters.end = len(data[: len(data) - open_].decode(errors="replace")) if open_ else 0
            characters._forget()
        return characters

    @property
    def whole(self) -> bool:
        return not self._open and not self._decoder.getstate()[0]

    def _forget(self) -> None:
        """Leaves of what is open only the unfinished character: a U+FFFD is the prompt's own."""
        self._open = self._open[len(self._open.decode(errors="ignore").encode()) :]
        self._parts = [self._open[place : place + 1] for place in range(len(self._open))]

    def add(self, token: int) -> list[int]:
        """The places, in order, of the tokens of which they are known now: those of the characters in which they begin.
        With byte fallback that of a byte depends on the next ones: U+FFFD stands for each byte of no character.
        """
        data, shown = self._texts.bytes_of(token), token in self._shown
        if self._texts.is_fallback(token):
            return self._add_byte(data)
        if self._parts and not data and not shown:  # as if it were not there
            self._parts.append(data)
            return []
        places = self.rest()
        self.end += self._length()
        self._open, self._parts, self._broken = b"", [], self._broken and not data
        if shown:
            start = self.end + len(self._decoder.decode(b"", final=True))
            self.end = start + len(self._texts.text_of(token))
            return [*places, start]
        # Of what was unfinished and the token's first byte, the last character is the token's.
        begun = (self._decoder.getstate()[0] + data[:1]).decode(errors="replace")
        start = self.end + (len(begun) - 1 if data else 0)
        self.end += len(self._decoder.decode(data))
        return [*places, start]

    def rest(self) -> list[int]:
        """The places of the tokens of which none is known, if no byte comes."""
        places, before = [], b""
        for part in self._parts:
            places.append(self.end + (len(before.decode(errors="ignore")) if self._valid() else len(before)))
            before += part
        return places

    def _add_byte(self, data: bytes) -> list[int]:
        self._open += data
        self._parts.append(data)
        try:
            known = self._broken or not self._open.decode().endswith(REPLACEMENT)
        except UnicodeDecodeError as error:
            known = self._broken = error.reason != "unexpected end of data"
        if not known and len(self._parts) > HELD:  # as the detokenizer, which emits all but the last ones then
            known = self._broken = True
        if not known:
            return []
        places = self.rest()
        self.end += self._length()
        self._open, self._parts = b"", []
        return places

    def _length(self) -> int:
        """Of the text of what is open."""
        return len(self._open.decode()) if self._valid() else len(self._open)

    def _valid(self) -> bool:
        try:
            self._open.decode()
        except UnicodeDecodeError:
            return False
        return not self._broken


class CompletionEntries:
    """The log-probabilities of one completion, part by part. characters: of its output."""

    def __init__(self, texts: TokenTexts, characters: Characters) -> None:
        self._texts, self._characters = texts, characters

    def add(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The offset of a token that begins inside a character is that character's; none is unfinished at the end of
        the entries, but of the last ones.
        """
        logprobs = CompletionLogprobs([], [], [], [])
        places: list[int] = []
        for entry in entries:
            logprobs.tokens.append(self._texts.name_of(entry.token))
            logprobs.token_logprobs.append(finite(entry.logprob))
            logprobs.top_logprobs.append(self._likeliest(entry))
            places += self._characters.add(entry.token)
        places += self._characters.rest()
        logprobs.text_offset.extend(places[len(places) - len(entries) :])  # the first may be a prompt's
        return logprobs

    def echo(
        self, tokens: Sequence[int], entries: Iterable[TokenLogprobs], text: str, count: int
    ) -> CompletionLogprobs:
        """Of a prompt that stands before the completion; its first token has no entry. text: the prompt as it is
        echoed, in which special tokens are spelled only where the client did. count: of the likeliest of each.
        """
        logprobs, prompt = CompletionLogprobs([], [None], [None], []), Characters(self._texts)
        places: list[int] = []
        for token in tokens:
            logprobs.tokens.append(self._texts.name_of(token))
            known, spelled = prompt.add(token), self._texts.text_of(token)
            places += known
            if self._texts.is_special(token):
                prompt.end += len(spelled) if text.startswith(spelled, prompt.end) else 0
            elif known and not known[-1] and spelled[:1] == " " != text[:1]:  # some write a blank before a text
                prompt.end -= 1
        logprobs.text_offset.extend(min(place, len(text)) for place in [*places, *prompt.rest()])
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
