"""A model's text to content and tool calls, piece by piece; the result does not depend on how the text is split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .kinds import Kind, kinds_of
from .parameter_reader import JsonScanner, ParametersReader, overlap
from .tool import Tool
from .tool_format import ToolFormat

NAME = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class Begun:
    """The call number `place`, from 0, is of the tool `name`."""

    place: int
    name: str


@dataclass(frozen=True)
class Argued:
    """More of the arguments of call number `place`."""

    place: int
    text: str


Part = str | Begun | Argued  # a text is content


class CallReader:
    """Parses text that follows the grammar of `tools_grammar`, or the beginning of such a text.

    Whitespace between content and a call belongs to neither, so it is held back until it is known what follows. A call
    that was cut off before its arguments began is not reported.
    """

    def __init__(self, form: ToolFormat, tools: Sequence[Tool] = (), demanded: bool = False) -> None:
        """tools: their schemas say what arguments are, where these are written one by one. demanded: as of
        `tools_grammar`; the text has no content then.
        """
        self._form, self._tools, self._demanded = form, {tool.name: tool for tool in tools}, demanded
        self._parameters: ParametersReader | None = None  # of the call whose arguments are read
        self._held = ""
        self._opening = form.opening  # of the call that comes next
        self._state: Literal["content", "text", "call", "arguments", "done"] = "content"
        self._scanner = JsonScanner()  # of arguments
        self._kinds: dict[str, dict[str, Kind]] = {}  # of arguments, by tool
        self.count = 0  # of calls

    @property
    def whole(self) -> bool:
        return self._state == "done"

    def add(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            before = self._state
            parts += {
                "content": self._content,
                "text": self._text,
                "call": self._call,
                "arguments": self._arguments,
                "done": self._done,
            }[before]()
            if self._state == before:
                return parts

    def end(self) -> list[Part]:
        if self._state != "content" or self._demanded:  # a trigger that was cut off is no content
            return []
        return self._release(len(self._held))

    def _content(self) -> list[Part]:
        held, trigger = self._held, self._form.trigger
        if self._form.leads:
            if len(held) < len(trigger) and trigger.startswith(held):
                return []
            self._state = "call" if held.startswith(trigger) else "text"
            self._held = held.removeprefix(trigger)
            return []
        place = held.find(trigger)
        if place >= 0:
            released = self._release(len(held[:place].rstrip()))
            self._held, self._state = held[place + len(trigger) :], "call"
            return released
        return self._release(len(held[: len(held) - overlap(held, trigger)].rstrip()))

    def _text(self) -> list[Part]:
        return self._release(len(self._held))

    def _call(self) -> list[Part]:
        start, between = len(self._opening), self._form.between
        if self._form.parameters is not None:
            name = NAME.match(self._held, start)
            place = -1 if name is None or name.end() == len(self._held) else name.end()
        else:
            place = self._held.find(between, start)
        if place < 0:
            return []
        begun = Begun(self.count, self._held[start:place])
        self._held = self._held[place + len(between) :]
        self._scanner = JsonScanner()
        if self._form.parameters is not None:
            kinds = self._kinds_of(begun.name)
            self._parameters = ParametersReader(self._form.parameters, self._form.closing, kinds)
        self.count += 1
        self._state = "arguments"
        return [begun]

    def _arguments(self) -> list[Part]:
        if self._parameters is not None:
            text, self._held = self._parameters.add(self._held)
            if self._parameters.done:
                self._state, self._parameters = "done", None
            return [Argued(self.count - 1, text)] if text else []
        held, end = self._held, len(self._held)
        for place, letter in enumerate(held):
            self._scanner.read(letter)
            if letter in "}]" and self._scanner.outside:
                end, self._state = place + 1, "done"
                break
        self._held = held[end:]
        return [Argued(self.count - 1, held[:end])] if end else []

    def _done(self) -> list[Part]:
        further = self._form.next
        start = self._form.closing + (further or "")
        if further is not None and self._held.startswith(start):
            self._held, self._opening, self._state = self._held[len(start) :], "", "call"
        return []

    def _kinds_of(self, name: str) -> dict[str, Kind]:
        if name not in self._kinds:
            self._kinds[name] = kinds_of(self._tools[name].schema) if name in self._tools else {}
        return self._kinds[name]

    def _release(self, size: int) -> list[Part]:
        released, self._held = self._held[:size], self._held[size:]
        return [released] if released else []


def joined(parts: Iterable[Part]) -> tuple[str, list[tuple[str, str]]]:
    """(content, (name, arguments) of each call)."""
    content, names, arguments = "", [], []
    for part in parts:
        match part:
            case str():
                content += part
            case Begun():
                names.append(part.name)
                arguments.append("")
            case Argued():
                arguments[part.place] += part.text
    return content, list(zip(names, arguments, strict=True))
