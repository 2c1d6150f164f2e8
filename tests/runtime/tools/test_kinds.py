"""What kind of value a schema asks for, and what is kept of one that cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest
from specexport.errors import GrammarError
from specexport.runtime.tools.kinds import kind_of, kinds_of, relaxed_schema
from specexport.runtime.tools.tool import Tool
from support.refusals import refused

SHARED = {
    "$defs": {
        "name": {"type": "string"},
        "short": {"type": "string", "maxLength": 3},
        "list": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/list"}}]},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]},
        "far": {"$ref": "#/$defs/near"},
        "near": {"enum": ["a", "b"]},
    }
}
KINDS: list[tuple[Any, str]] = [
    ({"type": "string", "description": "x"}, "text"),
    ({"$ref": "#/$defs/name", "description": "x"}, "text"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/name"}]}, "text"),
    ({"$ref": "#/$defs/far"}, "choice"),
    ({"const": "a"}, "choice"),
    ({"enum": [1, None]}, "json"),
    ({"type": ["string", "null"]}, "optional"),
    ({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}, "optional"),
    ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "json"),
    ({"$ref": "#/$defs/list"}, "json"),
    ({"$ref": "#/$defs/list", "minItems": 1}, "json"),
    ({"type": "boolean"}, "truth"),
    ({"description": "x"}, "any"),
    (True, "any"),
]
CANNOT: list[Any] = [
    False,
    {"type": "string", "maxLength": 3},
    {"$ref": "#/$defs/short"},
    {"$ref": "#/$defs/name", "maxLength": 3},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 3},
    {"enum": ["a", "bb"], "maxLength": 1},
    {"enum": ["a"], "type": "integer"},
    {"enum": ["a", 1]},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "#/$defs/loop"},
    {"$ref": "#/$defs/none"},
    {"$ref": "https://example.com"},
    {"not": {}},
]


@pytest.mark.parametrize(("schema", "kind"), KINDS, ids=range(len(KINDS)))
def test_kinds(schema: Any, kind: str) -> None:
    assert kind_of(schema, SHARED)[0] == kind
    assert kinds_of({"properties": {"a": schema}, **SHARED}) == {"a": kind}
    assert relaxed_schema({"properties": {"a": schema}, **SHARED})["properties"] == {"a": schema}


@pytest.mark.parametrize("schema", CANNOT, ids=range(len(CANNOT)))
def test_nobody_could_tell(schema: Any) -> None:
    with refused(GrammarError, "enforced"):
        kind_of(schema, SHARED)
    assert kinds_of({"properties": {"a": schema}, **SHARED}) == {"a": "any"}
    kept = relaxed_schema({"properties": {"a": schema}, **SHARED})["properties"]["a"]
    assert kept == ({"type": "string"} if isinstance(schema, dict) and schema.get("type") == "string" else {})


def test_references_are_followed_once() -> None:
    """Else these are 2 to the power of 100 steps."""
    names = [f"#/$defs/A{number}" for number in range(1, 101)]
    shared = {f"A{place}": {"anyOf": [{"$ref": name}, {"$ref": name}]} for place, name in enumerate(names)}
    schema = {"properties": {"a": {"$ref": "#/$defs/A0"}}, "$defs": {**shared, "A100": {"type": "integer"}}}
    assert kinds_of(schema) == {"a": "json"}
    shared["A100"] = {"$ref": "#/$defs/A0"}
    assert kinds_of({**schema, "$defs": shared}) == {"a": "any"}


def test_what_is_kept_of_a_schema() -> None:
    """All but what cannot be: keywords of the object, names that no property has, and bounds on texts."""
    properties = {
        "code": {"type": "string", "minLength": 9},
        "n": {"type": "integer", "minimum": 3},
        "list": {"$ref": "#/$defs/list"},
        "unit": {"enum": ["C", "F"]},
        "when": {"type": ["string", "integer"]},
    }
    schema = {"properties": properties, "required": ["n", "gone"], "minProperties": 1, **SHARED}
    kept: dict[str, Any] = {**properties, "code": {"type": "string"}, "when": {}}
    closed = {"type": "object", "required": ["n"], "additionalProperties": False, **SHARED}
    assert relaxed_schema(schema) == {**closed, "properties": kept}
    kept |= {"n": {}, "list": {}}
    assert relaxed_schema(schema, values=False) == {**closed, "properties": kept}


MALFORMED: list[dict[str, Any]] = [
    {"properties": ["a"]},
    {"properties": {"a": "string"}},
    {"properties": {"a": {}}, "required": [{"a": 1}]},
    {"required": 5},
    {"required": [1, "b"]},
    {"$defs": [1]},
    {"properties": {"a": {"type": [{}]}}},
    {"properties": {"a": {"anyOf": ["x"]}}},
    {"properties": {"a": {"items": {"properties": {"b": None}}}}},
]


@pytest.mark.parametrize("schema", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_schema(schema: dict[str, Any]) -> None:
    with refused(GrammarError, field="parameters"):
        Tool("f", None, schema)
