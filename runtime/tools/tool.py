"""A tool: what a model may call, and with which arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import GrammarError
from ..grammar.limits import OF_NAMES, OF_SCHEMAS, below, malformed

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_TOOLS = 128
# With one of these, or two of the others, a schema judges one value by several schemas.
JOINING = frozenset({"allOf", "oneOf", "not", "if", "contains", "dependentSchemas", "patternProperties"})
JOINED = frozenset({"$ref", "$dynamicRef", "anyOf", "properties"})


@dataclass(frozen=True)
class Tool:
    """parameters: JSON schema of an object, None for a tool without arguments. Raises `GrammarError`."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            reason = f"it is named {self.name[:80]!r}; a name has 1 to 64 letters, digits, _ and -"
            raise GrammarError(reason, "name", kind="tool")
        wrong = malformed(dict(self.parameters or {}))
        if wrong is not None:
            raise GrammarError(f"in the parameters of {self.name}, {wrong}", "parameters", kind="tool")
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            reason = f"the parameters of {self.name} are of type {json.dumps(kind)[:80]}; they must be an object"
            raise GrammarError(reason, "parameters", kind="tool")

    @property
    def for_template(self) -> dict[str, Any]:
        """The form for templates, which read a description, and properties, without asking whether there are any."""
        parameters = dict(self.parameters or {})
        parameters = {"type": "object", "properties": {}, **parameters}
        function = {"name": self.name, "description": self.description or "", "parameters": parameters}
        return {"type": "function", "function": function}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The schema of its arguments, without properties that it does not name unless it says that there may be."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return closed({"type": "object", **self.parameters})


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` wherever it names properties and does not say, at any depth: models
    invent some where a schema does not forbid it.

    Unchanged if it joins schemas anywhere: closed, they would contradict each other. Whatever matches the result
    matches the schema.
    """
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if JOINING & {*one} or len(JOINED & {*one}) > 1:
                return schema
            waiting += [inner for keyword, value in one.items() for _, inner in below("", keyword, value)]
    result: dict[str, Any] = _closed(schema)
    return result


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for keyword, value in schema.items():
        if keyword in OF_NAMES and isinstance(value, dict):
            result[keyword] = {name: _closed(one) for name, one in value.items()}
        elif keyword in OF_SCHEMAS:
            result[keyword] = [_closed(one) for one in value] if isinstance(value, list) else _closed(value)
    if schema.get("properties"):
        result.setdefault("additionalProperties", False)
    return result
