"""Arguments that are written one by one, parsed to a JSON object, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .kinds import VALUES, Kind
from .tool_format import Parameters

WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


class JsonScanner:
    """Reads a value letter by letter. outside: outside any object, list or text of it."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    @property
    def outside(self) -> bool:
        return not self._depth and not self._quoted

    def read(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped, self._quoted = letter == "\\", letter != '"'
        elif letter == '"':
            self._quoted = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1


def overlap(text: str, marker: str) -> int:
    """Number of characters at the end of `text` with which `marker` may begin: what follows decides."""
    sizes = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)


class ParametersReader:
    """Texts and JSON are emitted as they are written; a value that may still be either, once it is complete. JSON is
    the model's own text.

    closing: the text after the last argument. done: the object is complete, and what is left begins with `closing`.
    Each letter is examined once, except those that may begin a marker.
    """

    def __init__(self, parameters: Parameters, closing: str, kinds: Mapping[str, Kind]) -> None:
        self._parameters, self._closing, self._kinds = parameters, closing, kinds
        self._key: str | None = None  # whose value is next
        self._kind: Kind = "any"
        self._opened = False  # the object has the key, and perhaps a part of the value
        self._begun = False  # the object has a key
        self._scanner = JsonScanner()  # for a JSON value
        self._seen = 0  # held characters without an end within them
        self.done = False

    def add(self, held: str) -> tuple[str, str]:
        """(more of the object, the rest of `held`): pass that rest again, followed by more text."""
        emitted = ""
        while not self.done:
            key = self._key
            more, left = self._next(held) if key is None else self._value(held)
            emitted += more
            if left == held and self._key == key:
                break
            held = left
        return emitted, held

    def _next(self, held: str) -> tuple[str, str]:
        """The next key, or the end."""
        form = self._parameters
        end, head = ("", form.joint) if self._begun else (form.none, form.opening)
        if held.startswith(end + self._closing):
            self.done = True
            return ("}" if self._begun else "{}"), held[len(end) :]
        if not held.startswith(head):
            return "", held
        rest = held[len(head) :]
        place = min((place for place in map(rest.find, {form.text, form.other}) if place >= 0), default=-1)
        if place < 0:
            return "", held
        kind = self._kinds.get(rest[:place], "any")
        for marker in self._markers(kind):
            if rest.startswith(marker, place):
                self._key, self._kind = rest[:place], self._kind_after(marker, kind)
                return "", rest[place + len(marker) :]
            if marker.startswith(rest[place:]):
                break  # it may still come
        return "", held

    def _markers(self, kind: Kind) -> list[str]:
        form = self._parameters
        if kind in VALUES:
            return [form.other]
        return [form.text] if kind in ("text", "choice") else sorted({form.text, form.other}, key=len, reverse=True)

    def _kind_after(self, marker: str, kind: Kind) -> Kind:
        """If both are marked alike, the schema says which it is."""
        form = self._parameters
        if form.text == form.other or kind in VALUES:
            return kind
        if marker == form.text:
            return "text"
        return "truth" if kind == "optional" else "json"

    def _value(self, held: str) -> tuple[str, str]:
        if self._kind == "json":
            return self._json(held)
        if self._kind == "truth":
            return self._word(held)
        if self._kind == "any":
            return self._anything(held)
        if self._kind == "optional":
            null = self._parameters.null + self._parameters.text_end
            if held.startswith(null):
                return self._whole("null", held[len(null) :])
            if null.startswith(held):
                return "", held
            self._kind = "text"
        return self._text(held)

    def _text(self, held: str) -> tuple[str, str]:
        end = self._parameters.text_end
        opening = self._opening('"')
        place = held.find(end)
        size = place if place >= 0 else len(held) - overlap(held, end)
        more = opening + _quoted(held[:size])[1:-1]
        return self._whole(more + '"', held[place + len(end) :]) if place >= 0 else (more, held[size:])

    def _json(self, held: str) -> tuple[str, str]:
        form, scanner = self._parameters, self._scanner
        ends = (form.other_end + form.joint, form.other_end + self._closing)
        place, some = 0, self._opened
        while place < len(held):
            if some and scanner.outside:
                if held.startswith(ends, place):
                    return self._whole(held[:place], held[place + len(form.other_end) :])
                if any(end.startswith(held[place : place + len(end)]) for end in ends):
                    break  # it may still come
            scanner.read(held[place])
            place, some = place + 1, True
        return (self._opening() + held[:place] if place else ""), held[place:]

    def _word(self, held: str) -> tuple[str, str]:
        end = self._parameters.other_end
        word = next((word for word in WORDS if held.startswith(word + end)), None)
        return ("", held) if word is None else self._whole(WORDS[word], held[len(word + end) :])

    def _anything(self, held: str) -> tuple[str, str]:
        end = self._parameters.text_end
        place = held.find(end, max(0, self._seen - len(end) + 1))
        if place < 0:
            self._seen = len(held)
            return "", held
        return self._whole(as_json(held[:place], self._parameters.python), held[place + len(end) :])

    def _opening(self, first: str = "") -> str:
        """The key, if it is still to be written."""
        if self._opened:
            return ""
        head = f"{', ' if self._begun else '{'}{_quoted(self._key or '')}: {first}"
        self._opened = self._begun = True
        return head

    def _whole(self, more: str, left: str) -> tuple[str, str]:
        """The end of a value."""
        more = self._opening() + more
        self._key, self._opened, self._seen, self._scanner = None, False, 0, JsonScanner()
        return more, left


def as_json(text: str, python: bool) -> str:
    """A value that may be text or JSON: unchanged if it is JSON, else a text. python: `True` is JSON's true."""
    if python and text in WORDS:
        return WORDS[text]
    try:
        json.loads(text, parse_constant=_no_json, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return _quoted(text)
    return text


def _no_json(name: str) -> Any:
    raise ValueError(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
