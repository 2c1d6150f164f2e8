"""Prompts to token ids: a text, chat messages, or ids that are checked."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, SupportsFloat

from tokenizers import Tokenizer

from ...bundle import Bundle
from ...errors import BundleError, LongPromptError, PromptError, ToolsError
from ..grammar.thinking import Thinking
from ..sampling.options import items, whole_number
from ..tools.formats import recognize
from ..tools.tool import Tool
from ..tools.tool_format import ToolFormat
from .chat_template import ADD, CONTINUE, ChatTemplate, Variables, read_template
from .infill import Infill
from .messages import Message, check_messages, left_open
from .special_tokens import SpecialTokens
from .thinking import find_thinking, of_prompt

Prompt = str | Iterable[int] | Iterable[Message]
KEPT = 16  # sets of variables for which the thinking is cached
TAIL = 32  # last tokens of a prompt, which show whether it begins or ends the thinking


class PromptEncoder:
    """Raises `BundleError` for a tokenizer that cannot be read."""

    def __init__(self, bundle: Bundle, chat_template: Path | None = None) -> None:
        """chat_template: a file to use instead of the bundle's, tried at once."""
        self._manifest = bundle.manifest
        self._thinking: dict[str, Thinking | None] = {}  # by the template's variables
        text = bundle.manifest.text
        path = bundle.path(text.tokenizer)
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises a bare Exception
            raise BundleError(f"{path} is not a tokenizer: {error}") from None
        if chat_template is not None:
            self._template: ChatTemplate | None = read_template(chat_template, text.special_tokens)
            self._tools_template: ChatTemplate | None = self._template
        else:
            self._template = _template(bundle, text.chat_template)
            self._tools_template = _template(bundle, text.tools_template) or self._template

    def chats(self, tools: bool = False) -> bool:
        """Whether there is a template for messages, or for messages with tools."""
        return self._template_for(tools) is not None

    @property
    def template_variables(self) -> frozenset[str]:
        each = (one.variables for one in (self._template, self._tools_template) if one is not None)
        return frozenset[str]().union(*each)

    def _template_for(self, tools: bool) -> ChatTemplate | None:
        return self._tools_template if tools else self._template

    def encode(self, prompt: Prompt, tools: Sequence[Tool] = (), variables: Variables | None = None) -> list[int]:
        """tools: those that the template presents to the model. variables: of the template, and as in transformers
        `add_generation_prompt` and `continue_final_message`, which leaves the last message open.

        Raises `PromptError`; `BundleError` for messages without a chat template.
        """
        if others := [type(tool).__name__ for tool in tools if type(tool) is not Tool]:
            raise ToolsError(f"a tool is of type {others[0]}; send tools over HTTP, or to the app of create_app")
        tokens, field = self._tokens(prompt, tools, variables or {})
        capacity = self._manifest.longest
        self._check_ids("prompt", tokens)
        if not tokens:
            raise PromptError("the prompt is empty; give at least one token of text, or a message", "prompt")
        if len(tokens) >= capacity:
            raise LongPromptError(
                f"the prompt has {len(tokens)} tokens, the bundle's capacity is {capacity}, including at least one to "
                "generate; shorten it or build with a larger --max-seq-len",
                field,
                tokens=len(tokens),
                capacity=capacity,
            )
        return tokens

    def encode_prediction(self, prediction: str | Iterable[int] | None) -> list[int]:
        """Token ids of a text that the output may repeat, no more than a sequence can hold. Raises `PromptError`."""
        if prediction is None:
            return []
        longest = self._manifest.longest
        if not isinstance(prediction, str):
            tokens = list(islice(prediction, longest))
            self._check_ids("prediction", tokens)
            return tokens
        with _unicode("prediction"):
            return self.tokenizer.encode(prediction, add_special_tokens=False).ids[:longest]

    @cached_property
    def infill(self) -> Infill | None:
        return Infill.of(self.tokenizer)

    def _check_ids(self, what: str, tokens: Sequence[int]) -> None:
        size = self._manifest.target.vocab_size
        if not tokens or (min(tokens) >= 0 and max(tokens) < size):
            return
        place, token = next((place, token) for place, token in enumerate(tokens) if not 0 <= token < size)
        raise PromptError(f"the {what} holds token {token} at position {place}; ids go from 0 to {size - 1}", what)

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How the chat template writes tool calls. Raises `ToolsError`."""
        if self._tools_template is None:
            raise ToolsError("this model has no chat template")
        special = self._special_tokens
        form = recognize(self._tools_template.render, special.atoms, special.ids.values())
        for name in (name for name, number in special.ids.items() if number in self._manifest.text.stop_token_ids):
            form = replace(form, end=form.end.partition(name)[0])  # it ends the turn by itself
        return form

    def thinking(
        self, prompt: Sequence[int], variables: Variables | None = None, tools: bool = False
    ) -> Thinking | None:
        """How the model thinks after the token ids of messages; None if it does not, or no longer.

        tools: whether the messages were encoded with tools.
        """
        key = repr((tools, sorted((variables or {}).items())))
        try:
            thinking = self._thinking[key]
        except KeyError:
            thinking = self._find_thinking(variables or {}, tools)
            if len(self._thinking) >= KEPT:
                self._thinking.clear()
            self._thinking[key] = thinking
        if thinking is None:
            return None
        return of_prompt(thinking, self.tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False))

    def _find_thinking(self, variables: Variables, tools: bool) -> Thinking | None:
        """With these variables, since a template may write thoughts only if they say so."""
        template = self._template_for(tools)
        if template is None:
            return None
        special = self._special_tokens
        thinking = find_thinking(template.setting(variables), special.atoms, special.ids.values())
        stops = set(self._manifest.text.stop_token_ids)
        # If the end marker ends the answer as well, nothing follows it.
        return None if thinking is None or stops & {number for _, number in thinking.atoms} else thinking

    def _tokens(
        self, prompt: Prompt, tools: Sequence[Tool], variables: Variables
    ) -> tuple[list[int], Literal["prompt", "messages"]]:
        """Also what they were made of."""
        if isinstance(prompt, str):
            return self._encode_text(prompt), "prompt"
        parts = None if isinstance(prompt, bytes | Mapping) else items(prompt)  # an iterator yields its items only once
        if parts is None:
            raise PromptError(
                f"the prompt is of type {type(prompt).__name__}; give a text, a list of messages or of token ids",
                "prompt",
            )
        if any(isinstance(item, Mapping) for item in parts):
            return self._encode_messages(check_messages(parts), tools, variables), "messages"
        if all(type(item) is int for item in parts):  # as `encode` returns them: a server gives them back
            return list(parts), "prompt"
        for place, item in enumerate(parts):
            if not isinstance(item, SupportsFloat):
                kind = f"item {place} of the prompt is of type {type(item).__name__}"
                raise PromptError(f"{kind}; give token ids, or messages as dicts (pydantic's model_dump())", "prompt")
        tokens = [whole_number(f"token {place} of the prompt", item, "prompt") for place, item in enumerate(parts)]
        return tokens, "prompt"

    def _encode_text(self, text: str) -> list[int]:
        """Special tokens that the text spells become tokens, as in transformers."""
        if not text:
            return []  # a start token alone is not a prompt
        with _unicode():
            return self.tokenizer.encode(text).ids

    def _encode_messages(self, messages: Sequence[Message], tools: Sequence[Tool], variables: Variables) -> list[int]:
        """The template's special tokens become tokens; text of a message that looks like one stays text."""
        # A template for messages alone may write no calls: those of a history would be lost.
        called = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        template = self._template_for(bool(tools) or called)
        if template is None:
            lacks = "this model's tokenizer has no chat template"
            if self.chats(tools=True):
                raise BundleError(
                    f"{lacks} for messages without tools; give one with --chat-template FILE, or a prompt as text"
                )
            raise BundleError(f"{lacks}; give a prompt as text instead of messages")
        masked, mark = self._special_tokens.mask(messages)
        masked_tools = [self._special_tokens.mask_more(tool.for_template, mark) for tool in tools]
        set_template = template.setting(self._special_tokens.mask_more(variables, mark))
        if not variables.get(CONTINUE):
            text = set_template.render(masked, masked_tools or None, bool(variables.get(ADD, True)))
        else:
            end = f"{secrets.randbelow(10**20):020}"
            text, found, _ = set_template.render(left_open(masked, end), masked_tools or None, False).rpartition(end)
            if not found:
                raise PromptError(
                    "the chat template leaves the last message out, so no answer continues it", "messages"
                )
        with _unicode():
            return self._special_tokens.encode(text, mark)

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        return SpecialTokens(self.tokenizer)


def _template(bundle: Bundle, name: str | None) -> ChatTemplate | None:
    if name is None:
        return None
    path = bundle.path(name)
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), bundle.manifest.text.special_tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} cannot be read: {error}; build the bundle again") from None


@contextmanager
def _unicode(what: str = "prompt") -> Iterator[None]:
    try:
        yield
    except TypeError:  # the only message of tokenizers for a lone surrogate, as in an argument of broken UTF-8
        raise PromptError(f"the {what} is not valid Unicode; give it as UTF-8", what) from None
