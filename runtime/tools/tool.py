"""A tool: what a model may call, and with which arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import GrammarError
from ..grammar.schema_shape import malformed
from .closing import closed

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_TOOLS = 128


@dataclass(frozen=True)
class Tool:
    """parameters: JSON schema of an object, None for a tool without arguments. Raises `GrammarError`."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            told = f"it is named {self.name[:80]!r}; a name has 1 to 64 letters, digits, _ and -"
            raise GrammarError(told, "name", kind="tool")
        wrong = malformed(dict(self.parameters or {}))
        if wrong is not None:
            raise GrammarError(f"in the parameters of {self.name}, {wrong}", "parameters", kind="tool")
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            found = json.dumps(kind)[:80]
            told = f"the parameters of {self.name} are of type {found}; they must be an object"
            raise GrammarError(told, "parameters", kind="tool")

    @property
    def told(self) -> dict[str, Any]:
        """The form for templates. They read a description, and properties, without asking whether there are any."""
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
