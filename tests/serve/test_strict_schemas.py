"""Which schemas `strict` refuses: the walk goes by keyword, and data is no schema."""

from __future__ import annotations

from typing import Any

import pytest
from specexport.serve.wire.constraints import check_strict
from specexport.serve.wire.errors import ApiError
from specexport.serve.wire.requests import FunctionTool, ToolDefinition
from specexport.serve.wire.tools import offered


def of(**properties: Any) -> dict[str, Any]:
    """An object as strict mode has it."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
LOOSE = {"properties": {"a": TEXT}}
KEPT = [
    {},
    of(),
    {"type": "object", "additionalProperties": False},
    of(properties=of(type=TEXT), required=TEXT),
    of(a={"enum": [LOOSE, {"type": "object"}]}, b={"const": LOOSE}, c={**TEXT, "default": LOOSE, "examples": [LOOSE]}),
    {"$defs": {"properties": of(a=TEXT)}, "$ref": "#/$defs/properties"},
]
REFUSED = [
    ({"type": "object"}, "schema needs additionalProperties"),
    ({"type": ["object", "null"]}, "schema needs additionalProperties"),
    (LOOSE, "schema needs additionalProperties"),
    ({**of(a=TEXT), "required": []}, "schema needs all its properties"),
    ({**of(a=TEXT), "required": "a"}, "schema needs all its properties"),
    (of(properties={"type": "object"}), "schema.properties.properties needs"),
    (of(a={"type": "array", "items": {"type": "object"}}), "schema.properties.a.items needs"),
    ({"anyOf": [TEXT, LOOSE]}, r"schema.anyOf\[1\] needs"),
    ({"allOf": [LOOSE]}, r"schema.allOf\[0\] needs"),
    ({"$defs": {"enum": LOOSE}}, r"schema.\$defs.enum needs"),
]


@pytest.mark.parametrize("schema", KEPT, ids=range(len(KEPT)))
def test_it_is_kept(schema: dict[str, Any]) -> None:
    check_strict(schema, "schema", "here")


@pytest.mark.parametrize(("schema", "told"), REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiError, match=told):
        check_strict(schema, "schema", "here")


def test_the_parameters_of_a_tool_are_an_object() -> None:
    with pytest.raises(ApiError, match="parameters needs additionalProperties"):
        offered([ToolDefinition("function", FunctionTool("f", None, {}, strict=True))])
    assert offered([ToolDefinition("function", FunctionTool("f", None, None, strict=True))])
