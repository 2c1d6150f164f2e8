"""Chat messages to text by the tokenizer's own template, as transformers renders it but without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..errors import BundleError, MissingPackageError, PromptError

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
    try:
        from jinja2 import TemplateError, TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPackageError("jinja2", "chat") from None

    def refuse(message: str) -> str:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special_tokens)
    except TemplateSyntaxError as error:
        raise BundleError(f"the chat template cannot be parsed: {error}") from None
    except TemplateError as error:
        raise PromptError(f"the chat template refuses these messages: {error}") from None
