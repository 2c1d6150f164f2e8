"""Prompts to token ids: a text, chat messages, or ids that are checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from tokenizers import Tokenizer

from ...bundle import Bundle
from ...errors import BundleError, PromptError
from ..sampling.options import whole_number
from .chat_template import Message, render_chat

Prompt = str | Iterable[int] | Iterable[Message]


class PromptEncoder:
    """Raises `BundleError` for a tokenizer that cannot be read."""

    def __init__(self, bundle: Bundle) -> None:
        self._manifest = bundle.manifest
        text = bundle.manifest.text
        path = bundle.path(text.tokenizer)
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises a bare Exception
            raise BundleError(f"{path} is no tokenizer: {error}") from None
        template = bundle.path(text.chat_template) if text.chat_template else None
        try:
            self._chat_template = template.read_text(encoding="utf-8") if template else None
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{template} cannot be read: {error}; build the bundle again") from None

    def encode(self, prompt: Prompt) -> list[int]:
        """Raises `PromptError`; `BundleError` for messages without a chat template."""
        tokens = self._tokens(prompt)
        vocab_size, capacity = self._manifest.target.vocab_size, self._manifest.longest
        for place, token in enumerate(tokens):
            if not 0 <= token < vocab_size:
                raise PromptError(
                    f"the prompt holds token {token} at position {place}; ids go from 0 to {vocab_size - 1}"
                )
        if not tokens:
            raise PromptError("the prompt is empty; give at least one token of text")
        if len(tokens) >= capacity:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, the bundle's capacity is {capacity} with at least one to "
                "generate; shorten it or build with a larger --max-seq-len"
            )
        return tokens

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._encode_text(prompt, add_special_tokens=True)
        if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            raise PromptError(
                f"the prompt is of type {type(prompt).__name__}; give a text, a list of messages or a list of token ids"
            )
        items = list(prompt)  # an iterator gives its items once
        if any(isinstance(item, Mapping) for item in items):
            messages = cast(list[Message], items)
            text = render_chat(self._chat_template, messages, self._manifest.text.special_tokens)
            return self._encode_text(text, add_special_tokens=False)
        return [whole_number(f"token {place} of the prompt", item) for place, item in enumerate(items)]

    def _encode_text(self, text: str, add_special_tokens: bool) -> list[int]:
        if not text:
            return []  # a start token alone is no prompt
        try:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:  # all that tokenizers says of a lone surrogate, as in an argument of broken UTF-8
            raise PromptError("the prompt is no valid Unicode; give it as UTF-8") from None
