"""What a request's output must match, from the fields `response_format` and `structured_outputs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import GrammarError
from ...runtime.grammar.grammar import Grammar
from ...runtime.grammar.schema_shape import below
from .errors import ApiError, invalid, of_grammar, unsupported
from .requests import Common, JsonSchema, ResponseFormat, StructuredOutputs

ANY_OBJECT: dict[str, Any] = {"type": "object"}
DEEPEST = 64


def grammar_of(request: Common, allow_lark: bool) -> Grammar | None:
    """Raises `ApiError`, also for what is invalid or too large before it is compiled."""
    try:
        return _grammar(request, allow_lark)
    except GrammarError as error:
        raise of_grammar(error, request) from None


def _grammar(request: Common, allow_lark: bool) -> Grammar | None:
    structured, wanted = request.structured_outputs, request.response_format
    if structured is not None and wanted is not None and wanted.type != "text":
        raise invalid("structured_outputs", "give response_format or structured_outputs, not both")
    if structured is not None:
        return _structured(structured, allow_lark)
    return None if wanted is None else _formatted(wanted)


def _formatted(wanted: ResponseFormat) -> Grammar | None:
    fields = {"text": (), "json": ("value",), "regex": ("value", "pattern")}
    known = fields.get(wanted.type, ("json_schema", "schema"))
    given = [name for name in ("json_schema", "schema", "value", "pattern") if getattr(wanted, name) is not None]
    wrong = next((name for name in given if name not in known), None)
    if wrong is not None or len(given) > 1:
        where = f"response_format.{wrong or given[1]}"
        raise invalid(where, f"{where} is given with type {wanted.type}; expected {' or '.join(known) or 'none'} alone")
    if wanted.type == "text":
        return None
    if not given:
        if wanted.type == "json_object":
            return Grammar.json_schema(ANY_OBJECT)
        raise invalid(f"response_format.{known[0]}", f"response_format.{known[0]} is missing")
    value = getattr(wanted, given[0])
    if wanted.type == "regex":
        return Grammar.regex(value)
    if wanted.type == "json":
        return Grammar.json_schema(value)
    if wanted.json_schema is not None:
        return _schema(wanted.json_schema, "response_format.json_schema.schema")
    return _schema(JsonSchema(schema=wanted.schema, strict=wanted.strict), "response_format.schema")


def _schema(wanted: JsonSchema, where: str) -> Grammar:
    if wanted.schema is None:
        raise invalid(where, f"{where} is missing")
    if wanted.strict:
        check_strict(wanted.schema, "schema", where)
    return Grammar.json_schema(wanted.schema)


def relaxed(request: Common, grammar: Grammar) -> Grammar | None:
    """A schema without `strict` as far as it can be enforced, as in OpenAI's API; None for another grammar."""
    wanted = request.response_format
    loose = grammar.kind == "schema" and request.structured_outputs is None and wanted is not None
    if not loose or wanted is None or wanted.strict or (wanted.json_schema is not None and wanted.json_schema.strict):
        return None
    return replace(grammar, lenient=True)


def check_strict(schema: dict[str, Any], name: str, where: str) -> None:
    """Raises `ApiError` for a schema that OpenAI's strict mode refuses. name: the schema's name in the message."""
    loose = next(_loose(schema, name), None)
    if loose is not None:
        raise ApiError(400, "invalid_schema", f"strict: {loose}", where)


def _structured(wanted: StructuredOutputs, allow_lark: bool) -> Grammar:
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) not in (None, False)]
    if len(given) != 1:
        raise invalid("structured_outputs", "give exactly one of json, regex, choice, grammar and json_object")
    if wanted.json_object:
        return Grammar.json_schema(ANY_OBJECT)
    if wanted.json is not None:
        return Grammar.json_schema(wanted.json)
    if wanted.regex is not None:
        return Grammar.regex(wanted.regex)
    if wanted.choice is not None:
        return Grammar.choice(wanted.choice)
    if not allow_lark:
        raise unsupported("structured_outputs.grammar", "this server was started without --allow-grammars")
    return Grammar.lark(str(wanted.grammar))


def _loose(schema: Any, where: str, depth: int = 0) -> Iterator[str]:
    """What OpenAI's strict mode requires and `schema` lacks."""
    if depth > DEEPEST or not isinstance(schema, dict):
        return  # refused by its depth later
    kind, properties = schema.get("type"), schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema:
        if schema.get("additionalProperties") is not False:
            yield f"{where} needs additionalProperties: false"
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        if {*properties} - {name for name in names if isinstance(name, str)}:
            yield f"{where} needs all its properties in required"
    for keyword, value in schema.items():
        for place, one in below(f"{where}.{keyword}", keyword, value):
            yield from _loose(one, place[:200], depth + 1)
