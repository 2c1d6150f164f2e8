"""Schemas closed where they do not say what else an object may have: never so that they contradict themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from specexport.runtime.tools.tool import Tool, closed

jsonschema = pytest.importorskip("jsonschema")
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DAYS: dict[str, Any] = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
SHUT = {"additionalProperties": False}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


CLOSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (CITY, CITY | SHUT),
    (of(at=CITY), of(at=CITY | SHUT) | SHUT),
    (of(all={"type": "array", "items": CITY}), of(all={"type": "array", "items": CITY | SHUT}) | SHUT),
    (of(a={"anyOf": [CITY, {"type": "null"}]}), of(a={"anyOf": [CITY | SHUT, {"type": "null"}]}) | SHUT),
    (
        {**of(a={"$ref": "#/$defs/C"}), "$defs": {"C": CITY}},
        {**of(a={"$ref": "#/$defs/C"}), "$defs": {"C": CITY | SHUT}, **SHUT},
    ),
    (of(properties=CITY), of(properties=CITY | SHUT) | SHUT),
    (of(a={"additionalProperties": CITY}), of(a={"additionalProperties": CITY | SHUT}) | SHUT),
]
AS_IT_IS: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "properties": {}},
    {**CITY, "additionalProperties": True},
    {**CITY, "additionalProperties": {"type": "string"}},
    {**CITY, "patternProperties": {"^x": {}}},
    {**CITY, "allOf": [DAYS]},
    {**CITY, "anyOf": [DAYS, {"required": ["x"]}]},
    {"allOf": [CITY, DAYS]},
    {"allOf": [{"$ref": "#/$defs/C"}, DAYS], "$defs": {"C": CITY}},
    {"allOf": [{"$ref": "#/$defs/C"}, DAYS], "$defs": {"C": {"$ref": "#/$defs/D"}, "D": CITY}},
    {"$ref": "#/$defs/C", **DAYS, "$defs": {"C": CITY}},
    {"oneOf": [CITY, DAYS]},
    of(a={"allOf": [CITY]}),
    of(at=CITY, a={"oneOf": [CITY, DAYS]}),  # as a whole
    {"not": CITY},
    {"if": CITY, "then": DAYS},
    {"enum": [CITY], "default": CITY, "const": CITY},
]


@pytest.mark.parametrize(("schema", "wanted"), CLOSED, ids=range(len(CLOSED)))
def test_what_is_closed(schema: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert closed(schema) == wanted
    assert json.dumps(schema) == before
    assert closed(wanted) == wanted


@pytest.mark.parametrize("schema", AS_IT_IS, ids=range(len(AS_IT_IS)))
def test_what_stays_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_every_match_of_the_closed_schema_matches_the_given_one() -> None:
    values = [{}, {"city": "a"}, {"days": 1}, {"city": "a", "days": 1}, {"kind": "x"}, {"kind": "y", "n": 1}, {"a": {}}]
    values += [{"a": value} for value in values]
    for schema in [*(one for one, _ in CLOSED), *AS_IT_IS]:
        for value in values:
            given = {"type": "object", **schema}
            if jsonschema.Draft202012Validator(closed(given)).is_valid(value):
                jsonschema.validate(value, given, jsonschema.Draft202012Validator)


def test_the_model_is_told_the_schema_as_it_was_given() -> None:
    tool = Tool("f", None, CITY)
    assert tool.for_template["function"]["parameters"] == CITY
    assert tool.schema == CITY | SHUT
