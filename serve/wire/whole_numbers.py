"""Integers that are written as 3.0, which JSON does not tell from 3: some languages have no other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import inspect

from .allowed import parts


def whole_numbers(raw: Any, kind: type) -> Any:
    """`raw` with whole floats as integers, wherever a struct of that kind has an integer.

    Values of any type, such as a schema's, stay as they are.
    """
    return _whole(raw, (_type(kind),))


_type = cache(inspect.type_info)


def _whole(raw: Any, kinds: Sequence[inspect.Type]) -> Any:
    """kinds: what it may be, one of a union."""
    found = [part for kind in kinds for part in parts(kind)]
    if isinstance(raw, float):
        exact = any(isinstance(part, inspect.FloatType | inspect.AnyType) for part in found)
        wanted = any(isinstance(part, inspect.IntType) for part in found)
        return int(raw) if wanted and not exact and raw.is_integer() else raw
    if isinstance(raw, list):
        items = [part.item_type for part in found if isinstance(part, inspect.ListType)]
        return [_whole(one, items) for one in raw] if items else raw
    if isinstance(raw, dict):
        fields = {
            field.encode_name: field.type
            for part in found
            if isinstance(part, inspect.StructType)
            for field in part.fields
        }
        return {name: _whole(value, (fields[name],)) if name in fields else value for name, value in raw.items()}
    return raw
