"""Forms of calls that belong to no particular model: what a template writes around a name and around its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..state.prompt_cache import shared_prefix
from .tool_format import Parameters, ToolFormat

Write = Callable[..., str | None]  # the text of a turn with calls with these arguments, without its common beginning
TRIGGER = re.compile(r"<[^<>]+>|\[[\w/]+\]|[^\s{]+")
SHORTEST = 4  # least characters of a trigger: text must not have it by chance
LONGEST = 100  # between name and arguments
FIRST, SECOND = "first", "second"


def frame(write: Write, name: str) -> ToolFormat | None:
    """write: see `Write`; returns None for what the template refuses."""
    one = write({FIRST: 1, SECOND: "x"})
    if one is None or name not in one:
        return None
    lead, _, rest = one.partition(name)
    mark = TRIGGER.match(lead.lstrip())
    if mark is None or len(mark[0]) < SHORTEST:
        return None
    trigger, opening = mark[0], lead.lstrip()[mark.end() :]
    two = write({FIRST: 1, SECOND: "x"}, {FIRST: 1, SECOND: "x"})
    further = None
    if two is not None and two.count(name) == 2:
        _, further, again = two.split(name)
        if again != rest:
            return None  # for example, calls are numbered
    return _json(trigger, opening, rest, further) or _parameters(trigger, opening, rest, further, write, name)


def _json(trigger: str, opening: str, rest: str, further: str | None) -> ToolFormat | None:
    start = rest[:LONGEST].find("{")
    try:
        value, end = json.JSONDecoder().raw_decode(rest, start) if start >= 0 else (None, 0)
    except ValueError:
        return None
    if value != {FIRST: 1, SECOND: "x"}:
        return None
    if further is not None and not further.startswith(rest[:end]):
        return None
    closing, following, last = _ends(rest[end:], None if further is None else further[end:])
    spaced = '"first": 1' in rest
    return ToolFormat(trigger, opening, rest[:start], closing, following, last, spaced=spaced)


def _parameters(
    trigger: str, opening: str, rest: str, further: str | None, write: Write, name: str
) -> ToolFormat | None:
    swapped, nothing, truth = write({FIRST: "x", SECOND: 1}), write({}), write({FIRST: True})
    parts, others = _cut(rest, "1", "x"), _cut((swapped or "").partition(name)[2], "x", "1")
    if parts is None or others is None or nothing is None or not _nested(write):
        return None
    head, other, separator_after_other, text, tail_of_text = parts
    if (others[0], others[1], others[3]) != (head, text, other):
        return None
    separator_after_text, tail_of_other = others[2], others[4]
    text_end, other_end = _common(separator_after_text, tail_of_text), _common(separator_after_other, tail_of_other)
    joint, tail = separator_after_text[len(text_end) :], tail_of_text[len(text_end) :]
    same = (separator_after_other[len(other_end) :], tail_of_other[len(other_end) :]) == (joint, tail)
    if not text_end or not same or not (other_end or (joint and tail)):  # nothing would end a number
        return None
    value = len(rest) - len(tail)
    if further is not None and not further.startswith(rest[:value]):
        return None
    closing, following, last = _ends(tail, None if further is None else further[value:])
    none = nothing.partition(name)[2]
    if not none.endswith(closing + last):
        return None
    none = none[: len(none) - len(closing + last)]
    parameters = Parameters(head, none, text, other, text_end, other_end, joint, python="True" in (truth or ""))
    return ToolFormat(trigger, opening, "", closing, following, last, parameters=parameters)


def _nested(write: Write) -> bool:
    """Whether a nested value is written as JSON, or in Python's notation."""
    value = ["x", {"y": 1}]
    text = write({FIRST: value}) or ""
    return any(form in text for form in (json.dumps(value), json.dumps(value, separators=(",", ":")), repr(value)))


def _cut(rest: str, first: str, second: str) -> tuple[str, str, str, str, str] | None:
    """The texts around two keys and their values."""
    parts = re.fullmatch(f"(.*?){FIRST}(\\W.*?){first}(.*?){SECOND}(\\W.*?){second}(.*)", rest, re.DOTALL)
    return None if parts is None else (parts[1], parts[2], parts[3], parts[4], parts[5])


def _ends(rest: str, further: str | None) -> tuple[str, str | None, str]:
    """(closing, next, end) from the text after the last call and the text between two."""
    if further is None:
        return rest, None, ""
    closing = _common(rest, further)
    return closing, further[len(closing) :], rest[len(closing) :]


def _common(one: str, other: str) -> str:
    """The common beginning of both, without cutting names such as `<this>`."""
    common = one[: shared_prefix(one, other)]
    if len(common) < max(len(one), len(other)) and ">" in common:
        common = common[: common.rindex(">") + 1]
    return common


def writer(
    render: Callable[[list[Mapping[str, Any]]], str | None], turn: Callable[..., Mapping[str, Any]]
) -> Write | None:
    """render: renders a conversation, None if it is refused; turn: the assistant's turn with calls of these
    arguments.
    """
    mark = "probe_answer"
    plain = render([{"role": "assistant", "content": mark}])
    if plain is None or mark not in plain:
        return None
    before, _, after = plain.partition(mark)

    def write(*arguments: Mapping[str, Any]) -> str | None:
        text = render([turn(*arguments)])
        if text is None or not text.endswith(after):
            return None
        start = shared_prefix(before, text)
        return text[start : len(text) - len(after)]

    return write
