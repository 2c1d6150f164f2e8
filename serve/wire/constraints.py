"""What a request's output must match, from the fields `response_format` and `structured_outputs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import GrammarError
from ...runtime.grammar.grammar import Grammar
from .errors import invalid, of_grammar, unsupported
from .requests import Common, ResponseFormat, StructuredOutputs

ANY_OBJECT: dict[str, Any] = {"type": "object"}


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
    by_type = {"text": (), "json": ("value",), "regex": ("value", "pattern")}
    known = by_type.get(wanted.type, ("json_schema", "schema"))
    fields = [name for name in ("json_schema", "schema", "value", "pattern") if getattr(wanted, name) is not None]
    wrong = next((name for name in fields if name not in known), None)
    if wrong is not None or len(fields) > 1:
        where = f"response_format.{wrong or fields[1]}"
        raise invalid(where, f"{where} is given with type {wanted.type}; expected {' or '.join(known) or 'none'} alone")
    if wanted.type == "text":
        return None
    if not fields:
        if wanted.type == "json_object":
            return Grammar.json_schema(ANY_OBJECT)
        raise invalid(f"response_format.{known[0]}", f"response_format.{known[0]} is missing")
    value = getattr(wanted, fields[0])
    if wanted.type == "regex":
        return Grammar.regex(value)
    if wanted.json_schema is None:
        return Grammar.json_schema(value)
    if wanted.json_schema.schema is None:
        raise invalid("response_format.json_schema.schema", "response_format.json_schema.schema is missing")
    return Grammar.json_schema(wanted.json_schema.schema)


def relaxed(request: Common, grammar: Grammar) -> Grammar | None:
    """A schema without `strict` as far as it can be enforced, as in OpenAI's API; None for another grammar."""
    wanted = request.response_format
    loose = grammar.kind == "schema" and request.structured_outputs is None and wanted is not None
    if not loose or wanted is None or wanted.strict or (wanted.json_schema is not None and wanted.json_schema.strict):
        return None
    return replace(grammar, lenient=True)


def _structured(wanted: StructuredOutputs, allow_lark: bool) -> Grammar:
    kinds = [name for name in wanted.__struct_fields__ if getattr(wanted, name) not in (None, False)]
    if len(kinds) != 1:
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
