"""How templates write thoughts is found out, and where a prompt leaves the thinking."""

from __future__ import annotations

import pytest
from specexport.runtime.grammar.thinking import Thinking
from specexport.runtime.text.chat_template import ChatTemplate
from specexport.runtime.text.thinking import find_thinking, of_prompt
from support import thinking_templates as templates

IDS = {"<think>": 1, "</think>": 2, "[THINK]": 3, "[/THINK]": 4, "<b>": 5, "think>x": 6, "<|end|>": 7, "<|say|>": 8}


def found(template: str) -> Thinking | None:
    return find_thinking(ChatTemplate(template, {}), IDS, (3, 4, 7, 8))


@pytest.mark.parametrize(
    ("template", "markers", "key"),
    [
        ("QWEN", ("<think>", "</think>", "", "\n\n"), "reasoning_content"),
        ("OPENED", ("<think>", "</think>", "", "\n\n"), "reasoning_content"),
        ("GLM", ("<think>", "</think>", "\n", "\n"), "reasoning_content"),
        ("MISTRAL", ("[THINK]", "[/THINK]", "", ""), None),
        ("DEEPSEEK", ("<think>", "</think>", "", "\n\n"), None),
        ("CHANNELS", ("<|think|>", "<|end|>", "", "<|say|>"), "reasoning"),
    ],
)
def test_the_markers(template: str, markers: tuple[str, ...], key: str | None) -> None:
    thinking = found(getattr(templates, template))
    assert thinking is not None
    assert (thinking.opening, thinking.end, thinking.lead, thinking.gap) == markers
    assert thinking.key == key
    assert not thinking.begun
    assert {name for name, _ in thinking.atoms} == {name for name in IDS if name in "".join(markers)}
    assert set(thinking.shown) == {number for _, number in thinking.atoms} & {3, 4, 7, 8}


def test_tokens_that_thoughts_may_have() -> None:
    """None that is special, the end, or a part of what may become it."""
    thinking = found(templates.QWEN)
    assert thinking is not None
    assert thinking.free == (1, 5)


def test_where_a_prompt_leaves_it() -> None:
    thinking = found(templates.QWEN)
    assert thinking is not None
    for tail, begun in (("assistant\n", False), ("assistant\n<think>\n", True), ("a <think> b", False), ("", False)):
        left = of_prompt(thinking, tail)
        assert left is not None
        assert left.begun == begun
    assert of_prompt(thinking, "<think>\n\n</think>\n\n") is None  # as of templates told not to think
    assert of_prompt(thinking, "</think>") is None
