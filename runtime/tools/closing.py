"""Schemas without the properties that they do not name: models invent some where a schema does not forbid it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..grammar.schema_shape import below

SHARED = ("$defs", "definitions")
ALONE = ("allOf", "anyOf", "oneOf")
# With one of these an object says itself what else it may have, or something else does.
OPEN = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "dependentSchemas"}) | {
    *ALONE,
    *("not", "if", "$ref", "$dynamicRef"),
}
# Schemas below these judge a value beside others: closed, they would contradict each other.
BESIDE = frozenset({"not", "if", "then", "else", "contains", "dependentSchemas", "patternProperties"})


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` wherever it names properties and does not say, at any depth.

    Objects without named properties stay open, and so does what is judged together with other schemas. Whatever matches
    the result matches the schema.
    """
    if any(_joined_references(schema)):
        return schema
    found: dict[str, Any] = _closed(schema, schema)
    return found


def _closed(schema: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for keyword, value in schema.items():
        if _joins(schema, keyword, root) or not any(True for _ in below("", keyword, value)):
            continue
        if isinstance(value, list):
            found[keyword] = [_closed(one, root) for one in value]
        elif keyword in ("properties", *SHARED):
            found[keyword] = {name: _closed(one, root) for name, one in value.items()}
        else:
            found[keyword] = _closed(value, root)
    if schema.get("properties") and not OPEN & {*schema}:
        found["additionalProperties"] = False
    return found


def _joined_references(root: dict[str, Any]) -> Iterator[bool]:
    """For each reference, whether its target is judged together with another schema."""
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        schema, joined = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if "$ref" in schema or "$dynamicRef" in schema:
            yield joined or bool({*schema} & {"properties", "additionalProperties", *ALONE})
        for keyword, value in schema.items():
            within = keyword not in SHARED and (joined or _joins(schema, keyword, root))
            waiting += [(one, within) for _, one in below("", keyword, value)]


def _joins(schema: Mapping[str, Any], keyword: str, root: Mapping[str, Any]) -> bool:
    """Whether the schemas below `keyword` judge a value together with each other, or with the rest of `schema`."""
    if keyword not in ALONE:
        return keyword in BESIDE
    others = {*schema} & {"properties", "$ref", *ALONE} - {keyword}
    ways = schema[keyword]
    one = keyword == "anyOf" or (isinstance(ways, list) and len(ways) == 1)
    return bool(others) or not (one or (keyword == "oneOf" and _told_apart(ways, root)))


def _told_apart(ways: Any, root: Mapping[str, Any]) -> bool:
    """Whether a required property has another constant in each of them: closing then makes none of them match less."""
    if not isinstance(ways, list):
        return False
    tags = [_constants(_target(one, root)) for one in ways]
    shared = set.intersection(*map(set, tags)) if tags else set()
    return any(_distinct([tag[name] for tag in tags]) for name in shared)


def _constants(schema: Any) -> dict[str, str]:
    """Required properties that must be one text, with that text."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    found = {}
    for name in schema.get("required", ()):
        one = properties.get(name)
        choices = one.get("enum", [one.get("const")]) if isinstance(one, dict) else None
        if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], str):
            found[name] = choices[0]
    return found


def _target(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a reference to a shared schema refers to; the schema itself if it is none."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str):
        return schema
    room, _, name = reference.removeprefix("#/").partition("/")
    return root.get(room, {}).get(name) if room in SHARED else None


def _distinct(values: Sequence[str]) -> bool:
    return len({*values}) == len(values)
