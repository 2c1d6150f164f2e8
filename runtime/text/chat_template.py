"""Chat messages to text by the tokenizer's own template, as transformers renders it but without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import BundleError, MissingPackageError, ParameterError, PromptError
from .messages import Message, joined

Variables = Mapping[str, Any]  # variables of a template, by name: texts, numbers, booleans and None
PROBE = "0\n0"  # shown by Python with a backslash
SAID = "probe_said"
ADD, CONTINUE = "add_generation_prompt", "continue_final_message"
OWN = frozenset({"messages", "tools", "documents", ADD, CONTINUE, "chat_template"})


class ChatTemplate:
    """special_tokens: by their names in the template, such as `bos_token`."""

    _set: Variables = MappingProxyType({})

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source, self._special_tokens = source, special_tokens

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that it reads besides messages, tools and special tokens, such as `enable_thinking`.

        Raises `BundleError` when it cannot be parsed, `MissingPackageError` without jinja2.
        """
        environment = self._template.environment
        from jinja2 import meta

        undeclared = meta.find_undeclared_variables(environment.parse(self.source))
        return frozenset(name for name in undeclared if not is_reserved(name))

    def setting(self, variables: Variables) -> ChatTemplate:
        """The same template with `variables` set, as far as it reads them: the renderer's own cannot be replaced."""
        if not variables:
            return self
        _ = self._template  # parsed once
        template = copy(self)
        template._set = {name: value for name, value in variables.items() if name in self.variables}
        return template

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of checked `messages`, and the start of the assistant's turn. tools: as `Tool.for_template`.

        Contents that are lists of parts are passed on to a template that accepts them, as in transformers, and joined
        for one that accepts texts only, as in `transformers serve`.

        Raises `PromptError` for messages the template refuses, `BundleError` when it cannot be parsed,
        `MissingPackageError` without jinja2.
        """
        has_parts = any(isinstance(message.get("content"), list) for message in messages)
        return self.render_unchanged(
            joined(messages) if has_parts and not self._takes_parts(messages) else messages,
            tools,
            add_generation_prompt,
        )

    def _takes_parts(self, messages: Sequence[Message]) -> bool:
        """Whether it writes the text of the parts in these messages, rather than the parts in Python's notation."""
        part = {"type": "text", "text": PROBE}
        probe = [
            {**message, "content": [part]} if isinstance(message.get("content"), list) else message
            for message in messages
        ]
        try:
            text = self.render_unchanged(probe)
        except PromptError:
            return False
        return PROBE in text and repr(PROBE)[1:-1] not in text

    def render_unchanged(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Like `render`, with contents of parts unchanged."""
        template = self._template
        try:
            values = dict(messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt)
            rendered: str = template.render({**self._set, **self._special_tokens, **values})
            return rendered
        except Exception as error:  # a template is code: a content of None ends in a TypeError, and so on
            raise PromptError(f"the chat template refuses these messages: {error}", "messages") from None

    @cached_property
    def _template(self) -> Any:
        try:
            from jinja2 import TemplateError, TemplateSyntaxError, nodes
            from jinja2.ext import Extension, loopcontrols
            from jinja2.parser import Parser
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise MissingPackageError("jinja2", "chat") from None

        def refuse(message: str) -> str:
            raise TemplateError(message)

        class Generation(Extension):
            """`{% generation %}` marks the assistant's words for training; here only its body is rendered."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Parser) -> nodes.Node:
                line = next(parser.stream).lineno
                return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
        try:
            return environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise BundleError(f"the chat template cannot be parsed: {error}") from None


def is_reserved(name: str) -> bool:
    """Whether the variable belongs to the renderer, and cannot be set by requests."""
    return name in OWN or name.endswith(("_token", "_tokens"))


def read_template(path: Path, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """The template in a file. Raises `ParameterError` if there is none, or if it cannot render a message."""
    try:
        template = ChatTemplate(path.read_text(encoding="utf-8-sig"), special_tokens)
        written = template.render([{"role": "user", "content": SAID}])
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ParameterError(
            f"chat_template {path} cannot be read: {reason}; give a file with a template", "chat_template"
        ) from None
    except (BundleError, PromptError) as error:
        raise ParameterError(f"chat_template {path} cannot be used: {error}", "chat_template") from None
    if SAID not in written:  # an empty file, or the wrong one
        raise ParameterError(
            f"chat_template {path} does not render what a message says; give a file with a template", "chat_template"
        )
    return template


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own escapes HTML
