"""The kind of value that a schema asks for, where arguments are written one by one: plain text, JSON, or either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...errors import GrammarError

# How a value is written: plain text, one of some texts, JSON, a boolean, text or null, and anything.
Kind = Literal["text", "choice", "json", "truth", "optional", "any"]
TOLD = frozenset(
    {"description", "title", "$comment", "default", "examples", "type", "deprecated", "readOnly", "writeOnly"}
)
SHARED = ("$defs", "definitions")
KNOWN = frozenset({*TOLD, *SHARED, "properties", "required", "additionalProperties", "$schema"})
VALUES = ("json", "truth")  # kinds that are not texts


def kind_of(schema: Any, shared: Mapping[str, Any] | None = None) -> tuple[Kind, list[str]]:
    """(the kind of a value, its choices). Raises `GrammarError` if texts could not be told from other values.

    shared: the targets of references.
    """
    ways, bounded = _ways(schema, shared or {})
    alternatives = [_kind_of_way(way) for way in ways]
    kinds = {kind for kind, _ in alternatives}
    if bounded and not kinds <= {*VALUES}:
        raise cannot("bounds on texts")
    if len(alternatives) == 1:
        return alternatives[0]
    if kinds <= {*VALUES}:
        return "json", []
    texts = [kind for kind, way in zip((kind for kind, _ in alternatives), ways, strict=True) if not _is_null(way)]
    if {*texts} <= {"text", "optional"}:
        return ("text" if kinds == {"text"} else "optional"), []
    raise cannot("texts or other values")


def kinds_of(schema: Mapping[str, Any]) -> dict[str, Kind]:
    """The kinds of all properties; `any` for those that cannot be told apart."""
    shared = shared_of(schema)
    return {key: _kind_or_none(one, shared) or "any" for key, one in (schema.get("properties") or {}).items()}


def relaxed_schema(schema: Mapping[str, Any], values: bool = True) -> dict[str, Any]:
    """A schema that such arguments can follow: the same properties, and as much of each property's schema as possible.

    values: whether values that are not texts keep their schema, which a compiler may refuse; otherwise they may be
    anything.
    """
    shared = shared_of(schema)
    properties: dict[str, Any] = {}
    for key, one in (schema.get("properties") or {}).items():
        kind = _kind_or_none(one, shared)
        if kind is None:
            properties[key] = {"type": "string"} if _is_text(one) else {}
        else:
            properties[key] = {} if kind in VALUES and not values else one
    if not properties:
        return {"type": "object"}
    required = [key for key in schema.get("required") or () if key in properties]
    bounds = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object", **bounds, **shared}


def shared_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in SHARED if key in schema}


def cannot(what: str) -> GrammarError:
    return GrammarError(f"{what} cannot be enforced where arguments are not JSON; simplify the schema", kind="tools")


def _kind_or_none(schema: Any, shared: Mapping[str, Any]) -> Kind | None:
    """None if it cannot be told."""
    try:
        return kind_of(schema, shared)[0]
    except GrammarError:
        return None


def _ways(schema: Any, shared: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """(what a value may be, after following references and choices of schemas; whether something else restricts these).

    Each reference is followed once, wherever it occurs: so the time is proportional to the schema's length.
    """
    ways: list[Any] = []
    seen: set[str] = set()
    waiting, bounded = [schema], False
    while waiting:
        one = waiting.pop()
        several = _several(one)
        if several is None:
            ways.append(one)
            continue
        keyword, further = several
        bounded = bounded or bool({*one} - TOLD - {keyword} | {*one} & {"type"})
        if keyword != "$ref":
            waiting += reversed(further)
        elif further not in seen:
            seen.add(further)
            waiting.append(_referred(further, shared))
    if not ways:
        raise cannot("a reference to itself")
    return ways, bounded


def _several(schema: Any) -> tuple[str, Any] | None:
    """(the keyword, its value) of a schema made of other schemas, None for a plain one."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return None
    if isinstance(schema.get("$ref"), str):
        return "$ref", schema["$ref"]
    keyword = next((key for key in ("anyOf", "oneOf") if schema.get(key) and isinstance(schema[key], list)), None)
    return None if keyword is None else (keyword, schema[keyword])


def _referred(reference: str, shared: Mapping[str, Any]) -> Any:
    section, _, name = reference.removeprefix("#/").partition("/")
    if not reference.startswith("#/") or name not in shared.get(section, {}):
        raise cannot(f"a reference to {reference[:80]!r}")
    return shared[section][name]


def _kind_of_way(schema: Any) -> tuple[Kind, list[str]]:
    if schema is True or (isinstance(schema, dict) and not {*schema} - (TOLD - {"type"})):
        return "any", []
    if not isinstance(schema, dict):
        raise cannot("what nothing satisfies")
    types = schema.get("type")
    several = {*types} if isinstance(types, list) else {types}
    wanted = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(wanted, list):
        texts = [one for one in wanted if isinstance(one, str)]
        if texts and len(texts) < len(wanted):
            raise cannot("choices of texts and other values")
        if texts and ({*schema} - TOLD - {"enum", "const"} or not several & {None, "string"}):
            raise cannot("bounds on choices")
        return ("choice", texts) if texts else ("json", [])
    if "string" in several or types is None:
        if {*schema} - TOLD or not several <= {"string", "null"}:
            raise cannot("bounds on texts")
        return ("text" if several == {"string"} else "optional"), []
    return ("truth" if several == {"boolean"} else "json"), []


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null" and {*schema} <= TOLD


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"
