"""Schemas from a seed, of what JSON Schema has and grammars can do."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
NAMES = ("id", "name", "total", "orderId", "tags", "ok", "größe", "a b", "note", "kind")


def random_schema(seed: int) -> Schema:
    draw = random.Random(seed)
    schema = _object(draw, 2) if draw.random() < 0.8 else _any(draw, 2)
    if draw.random() < 0.15:
        return {"$defs": {"part": _any(draw, 1)}, "type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2}
    return schema


def _any(draw: random.Random, depth: int) -> Schema:
    simple = (_integer, _number, _string, _fixed, _fixed, lambda _: {"type": "boolean"}, lambda _: {"type": "null"})
    if depth and draw.random() < 0.4:
        return draw.choice((_object, _array, _union))(draw, depth - 1)
    return draw.choice(simple)(draw)


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(NAMES, draw.randint(1, 4))
    required = [name for name in names if draw.random() < 0.8]
    properties = {name: _any(draw, depth - 1 if depth else 0) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _array(draw: random.Random, depth: int) -> Schema:
    least = draw.randint(0, 1)
    return {"type": "array", "items": _any(draw, depth), "minItems": least, "maxItems": least + draw.randint(0, 2)}


def _union(draw: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(draw, depth), {"type": "null"}]}


def _integer(draw: random.Random) -> Schema:
    low = draw.randint(-20, 500)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 2000)}


def _number(draw: random.Random) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": draw.choice((1, 100))}


def _string(draw: random.Random) -> Schema:
    kinds: tuple[Schema, ...] = (
        {"maxLength": draw.randint(0, 6)},
        {"pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        {"format": "date"},
        {"minLength": 1, "maxLength": 3},
    )
    return {"type": "string", **draw.choice(kinds)}


def _fixed(draw: random.Random) -> Schema:
    values = ["red", "green", "blau", "é", 1, 17, None, True, "a longer one"]
    return {"enum": draw.sample(values, draw.randint(1, 4))}
