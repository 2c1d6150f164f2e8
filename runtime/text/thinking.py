"""How a chat template writes thoughts, found by having it write one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..grammar.lark import apart, named
from ..grammar.thinking import Thinking
from ..tools.formats import QUESTION, tried
from .chat_template import ChatTemplate

THOUGHT, ANSWER = "probe_thought", "probe_answer"
PARTS = [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]
KEYS = ("reasoning_content", "reasoning", "thinking")
CLOSING = re.compile(r"</[\w:|-]{1,32}>|\[/\w{1,32}\]")  # words with which a template may name the end of something
LONGEST = 64
# For templates that leave thoughts out of a history and so show no gap: what models with such templates write.
USUAL_GAP = "\n\n"


def find_thinking(template: ChatTemplate, atoms: Mapping[str, int], special: Collection[int]) -> Thinking | None:
    """None for a template without thoughts. atoms, special: of the tokenizer.

    A template that writes a message's thoughts shows the markers around them; one that leaves them out of a history
    cuts a content at the end marker.
    """
    thinking = _written(template, atoms) or _left_out(template)
    if thinking is None:
        return None
    literal = thinking.lead + thinking.opening + thinking.end + thinking.gap
    names = named(literal, atoms)
    shown = tuple(number for _, number in names if number in special)
    inner = {name: number for name, number in atoms.items() if number not in special}
    free = tuple(number for _, number in apart(inner, thinking.end, thinking.end))
    return replace(thinking, atoms=names, shown=shown, free=free)


def of_prompt(thinking: Thinking, tail: str) -> Thinking | None:
    """For an output after a prompt that ends with `tail`; None if that has ended the thinking."""
    tail = tail.rstrip()
    if tail.endswith(((thinking.end + thinking.gap).rstrip(), thinking.end)):
        return None
    return replace(thinking, begun=tail.endswith(thinking.opening))


def _written(template: ChatTemplate, atoms: Mapping[str, int]) -> Thinking | None:
    ways: list[tuple[str | None, dict[str, Any]]] = [(key, {"content": ANSWER, key: THOUGHT}) for key in KEYS]
    prompt = tried(template.render_unchanged, [QUESTION]) or ""
    for key, way in [*ways, (None, {"content": PARTS})]:
        text = tried(template.render_unchanged, [QUESTION, {"role": "assistant", **way}])
        start = -1 if text is None else text.find(THOUGHT)
        if text is None or start < 0:
            continue
        before, between, answer = text[:start], *text[start + len(THOUGHT) :].partition(ANSWER)[:2]
        if not answer or "type" in between:  # parts in the notation of Python or JSON
            continue
        end, gap = _parted(between, atoms)
        added = before[len(prompt) :] if before.startswith(prompt) else ""
        opening = end.replace("/", "", 1)
        if not before.rstrip().endswith(opening):
            opening = added.strip()
        lead = added.partition(opening)[0] if opening and added.strip() == opening else ""
        if opening and end and len(opening + end) <= LONGEST:
            return Thinking(opening, end, lead, gap, key=key)
    return None


def _parted(between: str, atoms: Mapping[str, int]) -> tuple[str, str]:
    """(end, gap) of the text between thoughts and answer: an end is one token if there is one."""
    text = between.lstrip()
    name = next((name for name in sorted(atoms, key=len, reverse=True) if text.startswith(name)), None)
    end = text.rstrip() if name is None else name
    return end, text[len(end) :]


def _left_out(template: ChatTemplate) -> Thinking | None:
    for end in dict.fromkeys(CLOSING.findall(template.source)):
        text = tried(template.render_unchanged, [QUESTION, {"role": "assistant", "content": f"{THOUGHT}{end}{ANSWER}"}])
        if text is not None and THOUGHT not in text and ANSWER in text:
            return Thinking(end.replace("/", "", 1), end, gap=USUAL_GAP)
    return None
