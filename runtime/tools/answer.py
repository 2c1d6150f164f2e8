"""A model's text to thoughts, content and tool calls, piece by piece; the result does not depend on how the text is
split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..grammar.thinking import Thinking
from .calls import Argued, CallReader, Part
from .parameter_reader import overlap


@dataclass(frozen=True)
class Thought:
    """More of the thoughts before the answer."""

    text: str


class AnswerReader:
    """thinking: how the model thinks, None if it does not. calls: parses what follows, None if that is content.

    Whitespace around the thoughts is dropped, and so is the gap after them; markers are left out.
    """

    def __init__(self, thinking: Thinking | None, calls: CallReader | None = None) -> None:
        self._thinking, self._calls = thinking, calls
        self._held = ""
        self._said = False  # some thoughts have come
        self._state: Literal["start", "thoughts", "gap", "answer"] = "answer"
        if thinking is not None:
            self._state = "thoughts" if thinking.begun else "start"

    @property
    def thinks(self) -> bool:
        """Whether the text so far ends within thoughts."""
        return self._state == "thoughts"

    @property
    def undecided(self) -> bool:
        """Whether the text so far may be the beginning of an opening of thoughts."""
        return self._state == "start"

    @property
    def whole(self) -> bool:
        """Whether there are calls, and the arguments of all of them are complete."""
        return self._calls is not None and self._calls.whole

    def add(self, text: str) -> list[Part | Thought]:
        self._held += text
        parts: list[Part | Thought] = []
        while True:
            before = self._state
            parts += self._step()
            if self._state == before:
                return parts

    def end(self) -> list[Part | Thought]:
        """The rest, when no more text comes."""
        held, self._held = self._held, ""
        if self._state == "thoughts":
            return [Thought(held.rstrip())] if held.strip() else []
        if self._state in ("start", "gap"):
            self._held, self._state = held if self._state == "start" else "", "answer"
        return [*self._answer(), *(self._calls.end() if self._calls is not None else [])]

    def _step(self) -> list[Part | Thought]:
        thinking = self._thinking
        if self._state == "answer" or thinking is None:
            return self._answer()
        if self._state == "start":
            return self._start(thinking)
        return self._thoughts(thinking) if self._state == "thoughts" else self._gap(thinking)

    def _start(self, thinking: Thinking) -> list[Part | Thought]:
        for opening in (thinking.lead + thinking.opening, thinking.opening):
            if self._held.startswith(opening):
                self._held, self._state = self._held[len(opening) :], "thoughts"
                return []
            if opening.startswith(self._held):
                return []
        self._state = "answer"
        return []

    def _thoughts(self, thinking: Thinking) -> list[Part | Thought]:
        end = thinking.end
        if not self._said:
            self._held = self._held.lstrip()
        place = self._held.find(end)
        if place >= 0:
            text, self._held, self._state = self._held[:place].rstrip(), self._held[place + len(end) :], "gap"
            return [Thought(text)] if text else []
        size = len(self._held[: len(self._held) - overlap(self._held, end)].rstrip())
        text, self._held = self._held[:size], self._held[size:]
        self._said = self._said or bool(text)
        return [Thought(text)] if text else []

    def _gap(self, thinking: Thinking) -> list[Part | Thought]:
        gap, held = thinking.gap, self._held
        if len(held) < len(gap) and gap.startswith(held):
            return []
        self._held, self._state = held.removeprefix(gap), "answer"
        return []

    def _answer(self) -> list[Part | Thought]:
        text, self._held = self._held, ""
        if self._calls is not None:
            return list(self._calls.add(text)) if text else []
        return [text] if text else []


def merged(parts: Iterable[Part | Thought]) -> list[Part | Thought]:
    result: list[Part | Thought] = []
    for part in parts:
        match result[-1] if result else None, part:
            case str(before), str():
                result[-1] = before + part
            case Thought(before), Thought(text):
                result[-1] = Thought(before + text)
            case Argued(place, before), Argued(other, text) if place == other:
                result[-1] = Argued(place, before + text)
            case _:
                result.append(part)
    return result
