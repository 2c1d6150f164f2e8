"""Forms of tool calls, and turns in them."""

from __future__ import annotations

from collections.abc import Sequence

from specexport.runtime.tools.calls import CallReader, joined
from specexport.runtime.tools.tool_format import Parameters, ToolFormat

HERMES = ToolFormat("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", '\n<tool_call>\n{"name": "')
LLAMA = ToolFormat('{"name": "', "", '", "parameters": ', "}", None, leads=True)
MISTRAL = ToolFormat("[TOOL_CALLS]", '[{"name": "', '", "arguments": ', "}", ', {"name": "', "]")
MINISTRAL = ToolFormat("[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]")
TAGGED = ToolFormat(
    "<call>", "", "", "</f>", "<call>",
    parameters=Parameters("\n<p=", "\n", ">\n", ">\n", "\n</p>\n", "\n</p>\n", "<p="),
)  # fmt: skip


def turn(form: ToolFormat, content: str, *calls: tuple[str, str]) -> str:
    text = content + form.trigger + form.opening
    for place, (name, arguments) in enumerate(calls):
        text += (form.next or "") * (place > 0) + name + form.between + arguments + form.closing
    return text + form.end


def read(form: ToolFormat, pieces: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """(content, (name, arguments) of each call) of a text in pieces."""
    reader = CallReader(form)
    parts = [part for piece in pieces for part in reader.add(piece)]
    return joined([*parts, *reader.end()])
