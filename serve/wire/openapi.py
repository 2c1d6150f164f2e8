"""`/openapi.json`, generated from the table of operations and the structs of their requests and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...version import VERSION
from .errors import ErrorAnswer

JSON, EVENTS = "application/json", "text/event-stream"
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """A path with its method, what answers it, and its description.

    request, answer: the structs of the bodies, None for none or for JSON that is described nowhere. media: types of an
    answer. keyless: it needs no key.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[None]]
    summary: str
    request: type | None = None
    answer: type | None = None
    media: tuple[str, ...] = (JSON,)
    keyless: bool = False


def describe(operations: Sequence[Operation], keys: bool = False, public_metrics: bool = False) -> dict[str, Any]:
    """An OpenAPI 3.1 document. keys: whether requests need one; public_metrics: except those for the metrics."""
    kinds = {ErrorAnswer, *(kind for one in operations for kind in (one.request, one.answer) if kind is not None)}
    _, components = msgspec.json.schema_components(sorted(kinds, key=lambda kind: kind.__name__), ref_template=REF)
    paths: dict[str, Any] = {}
    for one in operations:
        refused = {"description": "Refused.", "content": {JSON: _schema(ErrorAnswer)}}
        by_media = {JSON: _schema(one.answer), EVENTS: _schema(None)}  # events have names, so they are no texts
        content = {media: by_media.get(media, {"schema": {"type": "string"}}) for media in one.media}
        done = {"description": "Done.", "content": content}
        operation: dict[str, Any] = {"summary": one.summary, "responses": {"200": done, "4XX": refused, "5XX": refused}}
        if one.request is not None:
            operation["requestBody"] = {"required": True, "content": {JSON: _schema(one.request)}}
        if keys and (one.keyless or (one.path == "/metrics" and public_metrics)):
            operation["security"] = []
        path = paths.setdefault(one.path.replace(":path}", "}"), {})
        path[one.method.lower()] = operation
        if "{name" in one.path:
            path["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "specexport", "version": VERSION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": KEYS},
        **({"security": [{name: []} for name in KEYS]} if keys else {}),
    }


def _schema(kind: type | None) -> dict[str, Any]:
    return {"schema": {} if kind is None else {"$ref": REF.format(name=kind.__name__)}}
