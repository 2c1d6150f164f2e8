"""Calls whose arguments are written one by one and not as JSON: `<parameter=city>Oslo</parameter>`, `(city='Oslo')`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import GrammarError
from ..grammar.lark import literal

# How a value is written: a text as it is, one of some texts, JSON, a truth, a text or nothing, and anything.
Kind = Literal["text", "choice", "json", "truth", "optional", "any"]
TOLD = {"description", "title", "$comment", "default", "examples", "type", "deprecated", "readOnly", "writeOnly"}
KNOWN = {*TOLD, "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
EMPTY = '""'
VALUES = ("json", "truth")  # kinds that are no texts
MARKED_AS_TEXT: tuple[Kind, ...] = ("text", "choice", "optional", "any")
MARKED_AS_OTHER: tuple[Kind, ...] = ("json", "truth", "optional", "any")
UNKNOWN = re.compile(r"[\w.-]{1,64}")
TRUTHS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Parameters:
    """Arguments are: opening, key, text or other, value, its end, and joint in front of each further key.

    none: what there is instead of all that for no arguments. text, text_end: around a text, which has no `text_end`;
    other, other_end: around any other value, which is JSON. python: whether `True`, `False` and `None` are meant.
    """

    opening: str
    none: str
    text: str
    other: str
    text_end: str
    other_end: str
    joint: str
    python: bool = False

    @property
    def written(self) -> str:
        return self.opening + self.none + self.text + self.other + self.text_end + self.other_end + self.joint

    def lines(
        self, place: int, schema: Mapping[str, Any], closing: str, atoms: Mapping[str, int], options: Any
    ) -> list[str]:
        """Rules for the arguments of the tool at `place`, in the schema's order, and `closing`; `value` is text up to
        `text_end`, `anything` any JSON.

        No literal of theirs begins another one that may be in its place: the longer would have to come. Raises
        `GrammarError` for what such arguments cannot keep to.
        """
        name, end = f"arguments_{place}", literal(closing, atoms)
        none = literal(self.none + closing, atoms)
        if not schema.get("properties") and schema.get("additionalProperties") is not False:
            one = f"(KEY {self._loose('anything', atoms)})"
            some = f"{literal(self.opening, atoms)} {one} ({literal(self.joint, atoms)} {one})*"
            return [f"{name}: {some} {end} | {none}"]
        properties, required = dict(schema.get("properties") or {}), set(schema.get("required") or ())
        unknown = sorted(({*schema} - KNOWN) | (required - {*properties}))
        if unknown:
            raise _cannot(f"{unknown[0]!r}")
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        lines, rest = [], ""
        ways: list[str] = []
        for number, (key, one) in reversed(list(enumerate(properties.items()))):
            value = f"{name}_{number}"
            lines += self._value(value, key, one, shared, atoms, options)
            follows = f" {rest}" if rest else ""
            ways = [*([] if key in required else ways), f"{literal(self.opening, atoms)} {value}{follows}"]
            further = f"{literal(self.joint, atoms)} {value}{follows}"
            rest = f"{name}_from_{number}"
            further += "" if key in required else f" | {follows.strip() or EMPTY}"
            lines.append(f"{rest}: {further}")
        found = [f"({' | '.join(ways)}) {end}"] if ways else []
        return [f"{name}: {' | '.join([*found, *([] if required else [none])])}", *lines]

    def _loose(self, other: str, atoms: Mapping[str, int]) -> str:
        """A text or `other`, behind the key. Where both are marked alike the text may be anything."""
        text = f"{literal(self.text, atoms)} value"
        if self.text == self.other:
            return text
        return f"({text} | {literal(self.other, atoms)} {other} {literal(self.other_end, atoms)})"

    def _value(
        self, name: str, key: str, schema: Any, shared: Mapping[str, Any], atoms: Mapping[str, int], options: Any
    ) -> list[str]:
        kind, choices = kind_of(schema, shared)
        head = literal(key + (self.other if kind in VALUES else self.text), atoms)
        end = literal(self.other_end, atoms)
        if kind == "text":
            return [f"{name}: {head} value"]
        if kind in ("optional", "any"):
            null = '"None"' if self.python else '"null"'
            loose = self._loose(null if kind == "optional" else "anything", atoms)
            return [f"{name}: {literal(key, atoms)} {loose}"]
        if kind == "choice":
            return [f"{name}: {head} ({' | '.join(literal(one + self.text_end, atoms) for one in choices)})"]
        if kind == "truth" and self.python:
            return [f'{name}: {head} ("True" | "False") {end}']
        found = json.dumps({**shared, **(schema if isinstance(schema, dict) else {}), "x-guidance": options})
        return [f"{name}: {head} {name}_json {end}", f"{name}_json: %json {found}"]


class ParametersReader:
    """Arguments that are written one by one to an object as JSON; a value comes when it is whole.

    closing: what follows the last argument. done: the object is whole, and what is left begins with `closing`.
    """

    def __init__(self, parameters: Parameters, closing: str, kinds: Mapping[str, Kind]) -> None:
        self._parameters, self._closing, self._kinds = parameters, closing, kinds
        self._key: str | None = None  # whose value comes
        self._kind: Kind = "any"
        self._begun = False
        self.done = False

    def add(self, held: str) -> tuple[str, str]:
        """(more of the object, what is left of `held`)."""
        found = ""
        while not self.done:
            more, left = self._next(held) if self._key is None else self._value(held, self._key)
            if left == held and not self.done:
                break
            found, held = found + more, left
        return found, held

    def _next(self, held: str) -> tuple[str, str]:
        """The next key, or the end."""
        own = self._parameters
        end, head = ("", own.joint) if self._begun else (own.none, own.opening)
        if held.startswith(end + self._closing):
            self.done = True
            return ("}" if self._begun else "{}"), held[len(end) :]
        if not held.startswith(head):
            return "", held
        rest = held[len(head) :]
        unknown = UNKNOWN.match(rest)
        names = [*sorted(self._kinds, key=len, reverse=True), *([unknown[0]] if unknown else [])]
        for key in names:
            kind = self._kinds.get(key, "any")
            if kind not in VALUES and (key + own.text).startswith(rest) and rest != key + own.text:
                break  # a text may still begin
            for marker, kinds in ((own.text, MARKED_AS_TEXT), (own.other, MARKED_AS_OTHER)):
                if kind in kinds and rest.startswith(key + marker):
                    self._key = key
                    # Where both are marked alike the schema says which it is.
                    self._kind = kind if own.text == own.other or kind in VALUES else kinds[0]
                    return "", rest[len(key + marker) :]
        return "", held

    def _value(self, held: str, key: str) -> tuple[str, str]:
        own, kind = self._parameters, self._kind
        end = own.other_end if kind in VALUES else own.text_end
        size = _size(held, [end + own.joint, end + self._closing]) if kind in VALUES else held.find(end)
        if size < 0:
            return "", held
        more = f"{', ' if self._begun else '{'}{json.dumps(key, ensure_ascii=False)}: {as_json(held[:size], kind)}"
        self._key, self._begun = None, True
        return more, held[size + len(end) :]


def _size(held: str, ends: Sequence[str]) -> int:
    """Of the value that `held` begins with, -1 where it may go on."""
    word = next((word for word in TRUTHS if held.startswith(word)), None)
    try:
        size = len(word) if word is not None else json.JSONDecoder().raw_decode(held)[1]
    except (ValueError, RecursionError):
        return -1
    return size if held.startswith(tuple(ends), size) else -1


def kind_of(schema: Any, shared: Mapping[str, Any] | None = None) -> tuple[Kind, list[str]]:
    """(the kind of a value, its choices). Raises `GrammarError` where nobody could tell texts from other values."""
    schema = _resolved(schema, shared or {})
    if not isinstance(schema, dict) or not {*schema} - (TOLD - {"type"}):
        return "any", []
    wanted = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(wanted, list):
        texts = [one for one in wanted if isinstance(one, str)]
        if texts and len(texts) < len(wanted):
            raise _cannot("choices of texts and other values")
        return ("choice", texts) if texts else ("json", [])
    ways = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(ways, list):
        kinds = {json.dumps(one.get("type")) if isinstance(one, dict) else "" for one in ways}
        if kinds == {'"string"', '"null"'} and all({*one} <= TOLD for one in ways):
            return "optional", []
        if any(kind_of(one, shared)[0] not in VALUES for one in ways):
            raise _cannot("texts or other values")
        return "json", []
    types = schema.get("type")
    several = set(types) if isinstance(types, list) else {types}
    if "string" in several or types is None:
        if {*schema} - TOLD or not several <= {"string", "null"}:
            raise _cannot("bounds on texts")
        return ("text" if several == {"string"} else "optional"), []
    return ("truth" if several == {"boolean"} else "json"), []


def kinds_of(schema: Mapping[str, Any]) -> dict[str, Kind]:
    """Of all properties; those that cannot be told are `any`."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found: dict[str, Kind] = {}
    for key, one in (schema.get("properties") or {}).items():
        try:
            found[key] = kind_of(one, shared)[0]
        except GrammarError:
            found[key] = "any"
    return found


def loosened(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that such arguments can always keep to: the same properties, texts as texts, the others anything."""
    kinds = kinds_of(schema)
    texts = {key for key, one in (schema.get("properties") or {}).items() if _is_text(one)}
    properties: dict[str, Any] = {key: {"type": "string"} if key in texts else {} for key in kinds}
    if not properties:
        return {"type": "object"}
    required = [key for key in schema.get("required") or () if key in properties]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"


def as_json(text: str, kind: Kind) -> str:
    """A value as it was written, as JSON."""
    if kind in ("text", "choice"):
        return json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(json.loads(TRUTHS.get(text, text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _resolved(schema: Any, shared: Mapping[str, Any]) -> Any:
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith(("#/$defs/", "#/definitions/")):
            return schema
        room, name = reference.removeprefix("#/").split("/", 1)
        schema = shared.get(room, {}).get(name)
    return schema


def _cannot(what: str) -> GrammarError:
    return GrammarError(f"invalid tools: {what} cannot be kept where arguments are not JSON; simplify the schema")
