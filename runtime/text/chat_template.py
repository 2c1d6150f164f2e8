"""Chat messages to text by the tokenizer's own template, as transformers renders it but without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...errors import BundleError, MissingPackageError, PromptError

Message = Mapping[str, Any]  # role and content, and what else the template reads


def render_chat(template: str | None, messages: Sequence[Message], special_tokens: Mapping[str, str]) -> str:
    """The text of `messages` with the start of the assistant's turn behind it.

    Raises `PromptError` for messages the template refuses, `BundleError` when there is no usable template,
    `MissingPackageError` without jinja2.
    """
    if template is None:
        raise BundleError("this model's tokenizer has no chat template; give a prompt as text instead of messages")
    if not messages:
        raise PromptError("there are no messages; give at least one with a role and a content")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} is {str(message)[:60]!r}; expected an object with a role and a content")
        # An assistant's message may hold tool calls instead of a content.
        if not isinstance(message.get("content"), str | list) and "tool_calls" not in message:
            raise PromptError(f"message {index} has the content {message.get('content')!r}; expected a text")
    try:
        from jinja2 import TemplateError, TemplateSyntaxError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPackageError("jinja2", "chat") from None

    def refuse(message: str) -> str:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own escapes HTML

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; here its body is all there is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        values = dict(messages=messages, tools=None, documents=None, add_generation_prompt=True)
        return environment.from_string(template).render(**special_tokens, **values)
    except TemplateSyntaxError as error:
        raise BundleError(f"the chat template cannot be parsed: {error}") from None
    except Exception as error:  # a template is code: a content of None ends in a TypeError, and so on
        raise PromptError(f"the chat template refuses these messages: {error}") from None
