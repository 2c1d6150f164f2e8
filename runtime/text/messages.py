"""Chat messages, checked before they are given to a template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from ...errors import PromptError

Message = Mapping[str, Any]  # role and content, and other fields that the template reads
Role = Literal["system", "developer", "user", "assistant", "tool"]  # developer: OpenAI's newer name of system
SHOWN = 60


def check_messages(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """The messages, each with a role, and with a content or tool calls.

    A content is a text or a list of parts `{"type": "text", "text": ...}`, as in the OpenAI API. Raises `PromptError`.
    """
    checked: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _wrong(index, f"is {_shown(message)}; expected an object with a role and a content")
        role = message["role"]
        if role not in get_args(Role):
            raise _wrong(index, f"has the role {_shown(role)}; expected one of {', '.join(get_args(Role))}")
        role = "system" if role == "developer" else role
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_checked_part(index, part) for part in content]
        # An assistant's message may hold tool calls instead of a content.
        elif not isinstance(content, str) and "tool_calls" not in message:
            has = f"has the content {_shown(content)}" if "content" in message else "has no content"
            raise _wrong(index, f"{has}; expected a text, or a list of text parts")
        checked.append({**message, "role": role, **({"content": content} if "content" in message else {})})
    if not checked:
        raise PromptError("there are no messages; give at least one with a role and a content", "messages")
    return checked


def _checked_part(index: int, part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise _wrong(index, f'has the part {_shown(part)}; expected {{"type": "text", "text": "..."}}')
    if part["type"] != "text":
        raise _wrong(index, f"has a part of type {_shown(part['type'])}; this model reads parts of type 'text' only")
    if not isinstance(part.get("text"), str):
        raise _wrong(index, f"has a text part with the text {_shown(part.get('text'))}; expected a text")
    return dict(part)


def _wrong(index: int, what: str) -> PromptError:
    return PromptError(f"message {index} {what}", "messages")


def _shown(value: object) -> str:
    return repr(str(value)[:SHOWN])


def left_open(messages: Iterable[Message], mark: str) -> list[dict[str, Any]]:
    """With `mark` at the end of the last message, where its template's text is cut off so that an answer continues it.
    The template cannot trim what is before the mark.

    Raises `PromptError` unless the message is an assistant's text.
    """
    *others, last = map(dict, messages)
    content, role = last.get("content"), last["role"]
    if role != "assistant" or last.get("tool_calls") or content is None or content == []:
        raise PromptError(
            f"the last message, which the answer is to continue, is {role}'s; give an assistant's, with a text",
            "messages",
        )
    *parts, end = content if isinstance(content, list) else [content]
    marked = {**end, "text": end["text"] + mark} if isinstance(end, Mapping) else f"{end}{mark}"
    return [*others, {**last, "content": [*parts, marked] if isinstance(content, list) else marked}]


def joined(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Each content of parts as one text, joined by line ends."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]
