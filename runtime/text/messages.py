"""Chat messages, checked before they are given to a template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import PromptError

Message = Mapping[str, Any]  # role and content, and other fields that the template reads
SHOWN = 60


def check_messages(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """The messages, each with a role, and with a content or tool calls.

    A content is a text or a list of parts `{"type": "text", "text": ...}`, as in the OpenAI API. Raises `PromptError`.
    """
    checked: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(
                f"message {index} is {str(message)[:SHOWN]!r}; expected an object with a role and a content", "messages"
            )
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_checked_part(index, part) for part in content]
        # An assistant's message may hold tool calls instead of a content.
        elif not isinstance(content, str) and "tool_calls" not in message:
            if "content" not in message:
                raise PromptError(
                    f"message {index} has no content; expected a text, or a list of text parts", "messages"
                )
            raise PromptError(
                f"message {index} has the content {str(content)[:SHOWN]!r}; expected a text, or a list of text parts",
                "messages",
            )
        checked.append({**message, **({"content": content} if "content" in message else {})})
    if not checked:
        raise PromptError("there are no messages; give at least one with a role and a content", "messages")
    return checked


def _checked_part(index: int, part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise PromptError(
            f'message {index} has the part {str(part)[:SHOWN]!r}; expected {{"type": "text", "text": "..."}}',
            "messages",
        )
    if part["type"] != "text":
        raise PromptError(
            f"message {index} has a part of type {part['type'][:SHOWN]!r}; this model reads parts of type 'text' only",
            "messages",
        )
    if not isinstance(part.get("text"), str):
        raise PromptError(
            f"message {index} has a text part with the text {str(part.get('text'))[:SHOWN]!r}; expected a text",
            "messages",
        )
    return dict(part)


def joined(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Each content of parts as one text, joined by line ends."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]
