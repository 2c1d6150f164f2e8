"""The grammar of arguments that are written one by one: rules from a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..grammar.lark import literal
from .kinds import KNOWN, VALUES, cannot, kind_of, shared_of
from .tool_format import Parameters

EMPTY = '""'


class ParameterRules:
    """`value` is text up to `text_end`, `anything` any JSON, `KEY` a key without a known schema.

    No literal of the rules is a prefix of another one that may be in its place: only the longer one could then match.
    closing: the text after all arguments. options: llguidance's, for JSON.
    """

    def __init__(self, parameters: Parameters, closing: str, atoms: Mapping[str, int], options: Any) -> None:
        self._own, self._closing, self._atoms, self._options = parameters, closing, atoms, options

    def lines(self, name: str, schema: Mapping[str, Any]) -> list[str]:
        """The rule `name` for the arguments of a tool, in the schema's order, and the rules that it needs. Raises
        `GrammarError` for what such arguments cannot follow.
        """
        form, end, none = self._own, self._literal(self._closing), self._literal(self._own.none + self._closing)
        if not schema.get("properties") and schema.get("additionalProperties") is not False:
            one = f"(KEY {self._loose('anything')})"
            some = f"{self._literal(form.opening)} {one} ({self._literal(form.joint)} {one})*"
            return [f"{name}: {some} {end} | {none}"]
        properties, required = dict(schema.get("properties") or {}), set(schema.get("required") or ())
        unknown = sorted(({*schema} - KNOWN) | (required - {*properties}))
        if unknown:
            raise cannot(f"{unknown[0]!r}")
        lines, rest = [], ""
        ways: list[str] = []
        for number, (key, one) in reversed(list(enumerate(properties.items()))):
            value = f"{name}_{number}"
            lines += self._value(value, key, one, shared_of(schema))
            follows = f" {rest}" if rest else ""
            ways = [*([] if key in required else ways), f"{self._literal(form.opening)} {value}{follows}"]
            further = f"{self._literal(form.joint)} {value}{follows}"
            rest = f"{name}_from_{number}"
            further += "" if key in required else f" | {follows.strip() or EMPTY}"
            lines.append(f"{rest}: {further}")
        some_ways = [f"({' | '.join(ways)}) {end}"] if ways else []
        return [f"{name}: {' | '.join([*some_ways, *([] if required else [none])])}", *lines]

    def _value(self, name: str, key: str, schema: Any, shared: Mapping[str, Any]) -> list[str]:
        form, (kind, choices) = self._own, kind_of(schema, shared)
        marks = {form.text, form.other}
        if any(_ends_early(key, mark, marks) for mark in marks):
            raise cannot(f"the name {key[:80]!r}")
        head = self._literal(key + (form.other if kind in VALUES else form.text))
        end = self._literal(form.other_end)
        if kind == "text":
            return [f"{name}: {head} value"]
        if kind in ("optional", "any"):
            loose = self._loose(json.dumps(form.null) if kind == "optional" else "anything")
            return [f"{name}: {self._literal(key)} {loose}"]
        if kind == "choice":
            wrong = next((one for one in choices if _ends_early(one, form.text_end, [form.text_end])), None)
            if wrong is not None:
                raise cannot(f"the choice {wrong[:80]!r}")
            return [f"{name}: {head} ({' | '.join(self._literal(one + form.text_end) for one in choices)})"]
        if kind == "truth" and form.python:
            return [f'{name}: {head} ("True" | "False") {end}']
        bounded = json.dumps({**shared, **(schema if isinstance(schema, dict) else {}), "x-guidance": self._options})
        return [f"{name}: {head} {name}_json {end}", f"{name}_json: %json {bounded}"]

    def _loose(self, other: str) -> str:
        """A text or `other`, after the key. If both are marked alike the text may be anything."""
        form = self._own
        text = f"{self._literal(form.text)} value"
        if form.text == form.other:
            return text
        return f"({text} | {self._literal(form.other)} {other} {self._literal(form.other_end)})"

    def _literal(self, text: str) -> str:
        return literal(text, self._atoms)


def _ends_early(text: str, following: str, marks: Iterable[str]) -> bool:
    """Whether a parser that looks for the first of `marks` finds one within `text`, if `following` follows it."""
    return any(0 <= (text + following).find(mark) < len(text) for mark in marks)
