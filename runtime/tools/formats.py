"""How a chat template writes tool calls, found by having it write two."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import PromptError, ToolsError
from ..grammar.lark import apart, named
from .frames import frame, writer
from .tool import Tool
from .tool_format import ToolFormat

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]

QUESTION = {"role": "user", "content": "0"}  # templates want one first
NAME = "probe_tool"
PROBE = Tool(
    NAME,
    "A probe.",
    {"type": "object", "properties": {"first": {"type": "integer", "description": "A number."}}, "required": ["first"]},
).for_template
ARGUMENTS = ({"first": 1, "second": "x"}, {"first": 2, "second": "y"})
IDS = ("abcdefgh1", "abcdefgh2")
RESULT, TEXT = "probe_result", "probe_text"
SHOWN = 80


def tried(write: Callable[..., str], *arguments: Any) -> str | None:
    """What `write` returns, None for what the template refuses."""
    try:
        return write(*arguments)
    except PromptError:
        return None


def recognize(render: Render, atoms: Mapping[str, int], special: Collection[int]) -> ToolFormat:
    """The template's format. atoms, special: of the tokenizer.

    Raises `ToolsError` if it has none, or an unknown one.
    """
    prompt = tried(render, [QUESTION], [PROBE])
    if prompt is None or NAME not in prompt:
        raise ToolsError("this model's chat template does not support tools; give one that does (--chat-template FILE)")
    text = tried(render, [QUESTION, _calling(2)], [PROBE]) or tried(render, [QUESTION, _calling(1)], [PROBE])
    if text is None:
        raise ToolsError("this model's chat template refuses tool calls")
    form = next(filter(None, (read(text, prompt) for read in (_hermes, _mistral, _llama))), None) or _framed(render)
    if form is None:
        if text.count(NAME) == prompt.count(NAME):
            raise ToolsError("this model's chat template does not render tool calls")
        start = next((place for place, letter in enumerate(text) if prompt[place : place + 1] != letter), 0)
        written = " ".join(text[start : start + SHOWN].split())
        raise ToolsError(
            f"this model's chat template writes tool calls in an unknown form: {written!r}; known forms are a name "
            "followed by its arguments, as JSON or one by one"
        )
    answered = tried(render, [QUESTION, _calling(1), _answer()], [PROBE])
    cut_off = tried(render, [QUESTION, _turn(TEXT)], [PROBE])
    names = named(form.written, atoms)
    shown = tuple(number for _, number in names if number in special)
    free = tuple(number for _, number in apart(atoms, form.written, form.trigger) if number not in special)
    form = replace(form, takes_results=RESULT in (answered or ""), takes_texts=TEXT in (cut_off or ""))
    return replace(form, atoms=names, shown=shown, free=free)


def _hermes(text: str, prompt: str) -> ToolFormat | None:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen 2.5 and 3, and many others. Hermes's
    own template writes the arguments first, which a model need not do.
    """
    opening, closing = "<tool_call>", "</tool_call>"
    for start in re.finditer(rf"{opening}(\s*)", text):
        value, end = _json(text, start.end())
        after = re.match(rf"(\s*){closing}", text[end:])
        if value != _call("arguments") or after is None:
            continue
        spaced = _spaced(text[start.end() : end])
        more = re.match(rf"(\s*){opening}", text[end + after.end() :])
        first = f'{start[1]}{{"name":{" " * spaced}"'
        return ToolFormat(
            opening,
            first,
            _between("arguments", spaced),
            f"}}{after[1]}{closing}",
            None if more is None else f"{more[1]}{opening}{first}",
            spaced=spaced,
        )
    return None


def _mistral(text: str, prompt: str) -> ToolFormat | None:
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}]`, or from v13 on `[TOOL_CALLS]name[ARGS]{...}`."""
    trigger = "[TOOL_CALLS]"
    for start in re.finditer(rf"{re.escape(trigger)}( ?)", text):
        if re.match(rf"{NAME}\[ARGS\]\{{", text[start.end() :]) and not start[1]:
            value, end = _json(text, start.end() + len(f"{NAME}[ARGS]"))
            if value == ARGUMENTS[0]:
                more = trigger if text.startswith(trigger, end) else None
                spaced = _spaced(text[start.end() : end])
                return ToolFormat(trigger, "", "[ARGS]", "", more, spaced=spaced, short_ids=True)
        value, end = _json(text, start.end())
        if not isinstance(value, list) or not value or not isinstance(value[0], dict):
            continue
        value[0].pop("id", None)
        if value[0] == _call("arguments"):
            spaced = _spaced(text[start.end() : end])
            name = f'{{"name":{" " * spaced}"'
            more = f",{' ' * spaced}{name}" if len(value) > 1 else None
            between, closing = _between("arguments", spaced), "}"
            opening = f"{start[1]}[{name}"
            return ToolFormat(trigger, opening, between, closing, more, "]", False, spaced, True)
    return None


def _llama(text: str, prompt: str) -> ToolFormat | None:
    """The turn is `{"name": ..., "parameters": ...}`: Llama 3.1 to 3.3."""
    start = len(prompt)
    if text[:start] != prompt:
        return None
    value, end = _json(text, start)
    if value != _call("parameters"):
        return None
    spaced = _spaced(text[start:end])
    trigger = f'{{"name":{" " * spaced}"'
    return ToolFormat(trigger, "", _between("parameters", spaced), "}", None, leads=True, spaced=spaced)


def _call(key: str) -> dict[str, Any]:
    return {"name": NAME, key: ARGUMENTS[0]}


def _between(key: str, spaced: bool) -> str:
    blank = " " * spaced
    return f'",{blank}"{key}":{blank}'


def _spaced(written: str) -> bool:
    return '"first": 1' in written


def _json(text: str, start: int) -> tuple[Any, int]:
    """(the value that begins there, its end), or (None, start) if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None, start


def _framed(render: Render) -> ToolFormat | None:
    """Any other form that has the name before the arguments."""
    write = writer(lambda turn: tried(render, [QUESTION, *turn], [PROBE]), _turn)
    form = None if write is None else frame(write, NAME)
    if form is None or any(name in f"{form}" for name in (*IDS, NAME)):
        return None
    return form


def _calling(count: int) -> dict[str, Any]:
    return _turn(*ARGUMENTS[:count])


def _turn(*arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    calls = [
        {"id": name, "type": "function", "function": {"name": NAME, "arguments": one}}
        for name, one in zip(IDS, arguments, strict=False)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _answer() -> dict[str, Any]:
    return {"role": "tool", "content": RESULT, "name": NAME, "tool_call_id": IDS[0]}
