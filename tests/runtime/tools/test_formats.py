"""How templates write calls is found out, and nothing is guessed."""

from __future__ import annotations

import pytest
from specexport.errors import ToolsError
from specexport.runtime.text.chat_template import ChatTemplate
from specexport.runtime.tools.formats import recognize
from specexport.runtime.tools.tool_format import ToolFormat
from support import tool_templates as templates
from support.refusals import refused

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
IDS = {"<s>": 1, "</s>": 2, "[TOOL_CALLS]": 5, "[ARGS]": 6, "[INST]": 7, "<tool_call>": 8, "<think>": 9, "<t>": 10}


def found(template: str) -> ToolFormat:
    return recognize(ChatTemplate(template, SPECIAL).render, IDS, (1, 2, 5, 6, 7))


@pytest.mark.parametrize(
    ("template", "turn"),
    [
        ("QWEN", '<tool_call>\n{"name": "A", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "B", "arguments": {}}\n</tool_call>'),  # noqa: E501
        ("HERMES", '<tool_call>\n{"name": "A", "arguments": {}}\n</tool_call> \n<tool_call>\n{"name": "B", "arguments": {}}\n</tool_call>'),  # noqa: E501
        ("LLAMA", '{"name": "A", "parameters": {}}'),
        ("MISTRAL", '[TOOL_CALLS] [{"name": "A", "arguments": {}}, {"name": "B", "arguments": {}}]'),
        ("MINISTRAL", "[TOOL_CALLS]A[ARGS]{}[TOOL_CALLS]B[ARGS]{}"),
    ],
)  # fmt: skip
def test_what_a_turn_is_like(template: str, turn: str) -> None:
    form = found(getattr(templates, template))
    text = form.trigger + form.opening + "A" + form.between + "{}" + form.closing
    if form.next is not None:
        text += form.next + "B" + form.between + "{}" + form.closing
    assert text + form.end == turn
    assert form.takes_results
    assert form.spaced
    assert set(dict(form.atoms)) == {name for name in ("[TOOL_CALLS]", "[ARGS]", "<tool_call>") if name in turn}
    assert set(form.shown) == set(dict(form.atoms).values()) - {8}


def test_tokens_that_text_may_have() -> None:
    """None that is special, the format's own, or a part of what may become a trigger."""
    assert found(templates.QWEN).free == (9, 10)
    assert found(templates.MINISTRAL).free == (8, 9, 10)
    trigger = found(templates.QWEN).trigger
    names = ("<b>", "x<tool", "call>y", "_call>", f"a{trigger}b", "<x")
    ids = {name: place for place, name in enumerate(names)}
    assert recognize(ChatTemplate(templates.QWEN, SPECIAL).render, ids, ()).free == (0, 5)


def test_a_template_that_leaves_calls_out() -> None:
    with refused(ToolsError, "render", field="tools"):
        found("{{ tools | tojson if tools else '' }}" + templates.CHATML)


def test_results_that_a_template_drops() -> None:
    assert not found(
        templates.QWEN.replace("message.content + '\\n</tool_response>", "'</tool_response>")
    ).takes_results


@pytest.mark.parametrize(
    ("given", "kept"), [("abc123XYZ", True), ("call_0123456789abcdefghijklmn", False), ("x", False)]
)
def test_mistrals_ids_have_nine_characters(given: str, kept: bool) -> None:
    form = found(templates.MISTRAL)
    made = form.call_id(given)
    assert (made == given) == kept
    assert len(made) == 9
    assert made.isalnum()
    assert made == form.call_id(given)
    assert found(templates.QWEN).call_id(given) == given
