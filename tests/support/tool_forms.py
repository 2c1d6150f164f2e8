"""Forms of tool calls, and turns in them."""

from __future__ import annotations

from specexport.runtime.tools.formats import ToolFormat

HERMES = ToolFormat(
    "hermes", "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", '\n<tool_call>\n{"name": "'
)
LLAMA = ToolFormat("llama", '{"name": "', "", '", "parameters": ', "}", None, leads=True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", '[{"name": "', '", "arguments": ', "}", ', {"name": "', "]")
MINISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]")


def turn(form: ToolFormat, content: str, *calls: tuple[str, str]) -> str:
    text = content + form.trigger + form.opening
    for place, (name, arguments) in enumerate(calls):
        text += (form.next or "") * (place > 0) + name + form.between + arguments + form.closing
    return text + form.end
