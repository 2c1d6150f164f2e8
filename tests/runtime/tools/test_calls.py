"""Text to content and calls, wherever its pieces end."""

from __future__ import annotations

import random

import pytest
from specexport.runtime.tools.calls import Argued, Begun, CallReader, Part, joined
from specexport.runtime.tools.tool_format import ToolFormat
from support.tool_forms import HERMES, LLAMA, MINISTRAL, MISTRAL, read, turn

TRICKY = '{"a": "}]\\"{ \\\\", "b": [{"c": "<tool_call>"}, "[TOOL_CALLS]"], "é": null}'
A, B = ("get_a", TRICKY), ("b", "{}")


CASES = [
    (HERMES, turn(HERMES, "", A), "", [A]),
    (HERMES, turn(HERMES, "I look.\n", A, B), "I look.", [A, B]),
    (HERMES, "  \n " + turn(HERMES, "", A, B, A), "", [A, B, A]),
    (HERMES, "a < b <tool <tool_cal  \n", "a < b <tool <tool_cal  \n", []),
    (HERMES, "Ends with <tool_c", "Ends with <tool_c", []),
    (HERMES, "", "", []),
    (LLAMA, turn(LLAMA, "", A), "", [A]),
    (LLAMA, '{"nam": 3} ', '{"nam": 3} ', []),
    (LLAMA, ' {"name": "x", "parameters": {}}', ' {"name": "x", "parameters": {}}', []),
    (LLAMA, '{"na', '{"na', []),
    (MISTRAL, turn(MISTRAL, "Well, [TOOL ", A, B), "Well, [TOOL", [A, B]),
    (MINISTRAL, turn(MINISTRAL, "", A, B), "", [A, B]),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES, ids=range(len(CASES)))
def test_every_way_to_cut_it_gives_the_same(
    form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(form, [text]) == (content, calls)
    assert read(form, list(text)) == (content, calls)
    for seed in range(20):
        draw = random.Random(seed)
        places = sorted(draw.randint(0, len(text)) for _ in range(6))
        pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(form, pieces) == (content, calls)


def parts_of(form: ToolFormat, text: str) -> tuple[list[Part], CallReader]:
    reader = CallReader(form)
    return [*(part for letter in text for part in reader.add(letter)), *reader.end()], reader


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, MINISTRAL], ids=["hermes", "llama", "mistral", "ministral"])
def test_one_that_is_cut_off_is_how_the_whole_one_begins(form: ToolFormat) -> None:
    content = "" if form.leads else "So: "
    text = turn(form, content, A) if form.next is None else turn(form, content, A, B)
    whole = joined(parts_of(form, text)[0])[1]
    for size in range(len(text)):
        parts, reader = parts_of(form, text[:size])
        found, calls = joined(parts)
        if calls:
            assert found == content.strip()
        for (name, arguments), (expected, of) in zip(calls, whole, strict=False):
            assert name == expected
            assert of.startswith(arguments)
        naming = len(calls) == 1 and form.next is not None and size >= text.rindex(B[0] + form.between)
        assert reader.whole == (bool(calls and calls == whole[: len(calls)]) and not naming)


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL, MINISTRAL], ids=["hermes", "llama", "mistral", "ministral"])
def test_where_calls_are_demanded_a_trigger_that_is_cut_off_is_no_content(form: ToolFormat) -> None:
    text = turn(form, "", A)
    for size in range(len(text)):
        reader = CallReader(form, demanded=True)
        assert joined([*reader.add(text[:size]), *reader.end()])[0] == ""


def test_a_call_is_told_once_and_then_only_its_arguments() -> None:
    parts, _ = parts_of(HERMES, turn(HERMES, "", B, B))
    assert parts == [
        Begun(0, "b"), Argued(0, "{"), Argued(0, "}"), Begun(1, "b"), Argued(1, "{"), Argued(1, "}"),
    ]  # fmt: skip
