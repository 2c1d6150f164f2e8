"""Thoughts, content and calls of a text, wherever its pieces end."""

from __future__ import annotations

import random

import pytest
from specexport.runtime.grammar.thinking import Thinking
from specexport.runtime.tools.answer import AnswerReader, Thought, merged
from specexport.runtime.tools.calls import CallReader, joined
from support.tool_forms import HERMES, turn

MAY = Thinking("<think>", "</think>", "\n", "\n\n")
BEGUN = Thinking("<think>", "</think>", "\n", "\n\n", begun=True)
CALL = ("f", '{"a": "</think>"}')
QUOTED = turn(HERMES, "", ("f", "{}"))
CASES = [
    (MAY, "<think>\nSo.\n\nYes\n</think>\n\nAnswer", "So.\n\nYes", "Answer", []),
    (MAY, "\n<think>a</think>b </think>", "a", "b </think>", []),
    (MAY, "<thin", "", "<thin", []),
    (MAY, "\n\n<think>a</think>", "", "\n\n<think>a</think>", []),
    (MAY, "<think> \n </think>\n\n x", "", " x", []),
    (MAY, "<think>a </thin", "a </thin", "", []),
    (MAY, "<think>a</think>\n", "a", "", []),
    (MAY, "a<think>b</think>", "", "a<think>b</think>", []),
    (BEGUN, "a\n</think>\n\nb", "a", "b", []),
    (BEGUN, "a <think>", "a <think>", "", []),
    (BEGUN, "", "", "", []),
    (MAY, f"<think>{QUOTED}</think>\n\n{turn(HERMES, 'Well ', CALL)}", QUOTED, "Well", [CALL]),
]  # fmt: skip


def read(thinking: Thinking, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    reader = AnswerReader(thinking, CallReader(HERMES))
    parts = merged([*(part for piece in pieces for part in reader.add(piece)), *reader.end()])
    assert sum(isinstance(part, Thought) for part in parts) <= 1
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    content, calls = joined(part for part in parts if not isinstance(part, Thought))
    return thoughts, content, calls


@pytest.mark.parametrize(("thinking", "text", "thoughts", "content", "calls"), CASES, ids=range(len(CASES)))
def test_every_way_to_cut_it_gives_the_same(
    thinking: Thinking, text: str, thoughts: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(thinking, [text]) == read(thinking, list(text)) == (thoughts, content, calls)
    for seed in range(20):
        draw = random.Random(seed)
        places = sorted(draw.randint(0, len(text)) for _ in range(6))
        pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(thinking, pieces) == (thoughts, content, calls)


def test_thoughts_come_as_they_are_known() -> None:
    reader = AnswerReader(MAY)
    assert reader.add("<thi") == []
    assert reader.undecided
    assert reader.add("nk>\nSo </th") == [Thought("So")]
    assert not reader.undecided
    assert reader.thinks
    assert reader.add("at\n") == [Thought(" </that")]
    assert reader.add("</think>") == []
    assert not reader.thinks
    assert reader.add("\n\nYes") == ["Yes"]
    assert not reader.thinks
    plain = AnswerReader(None)
    assert [plain.add("<think>"), plain.end()] == [["<think>"], []]
