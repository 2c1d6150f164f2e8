"""`/openapi.json`, generated from the structs of requests and answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from ...version import VERSION
from .answers import ChatAnswer, CompletionAnswer, Detokenized, Model, ModelList, Tokenized
from .errors import ErrorAnswer
from .requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

POSTS = {
    "/v1/chat/completions": ("Answer a conversation.", ChatRequest, ChatAnswer),
    "/v1/completions": ("Continue prompts.", CompletionRequest, CompletionAnswer),
    "/tokenize": ("Text or messages to token ids.", TokenizeRequest, Tokenized),
    "/detokenize": ("Token ids to text.", DetokenizeRequest, Detokenized),
}
GETS: dict[str, tuple[str, type | None]] = {
    "/v1/models": ("The one model, by each of its names.", ModelList),
    "/v1/models/{name}": ("The model of that name.", Model),
    "/health": ("Whether the process is alive.", None),
    "/ready": ("Whether new requests are accepted.", None),
    "/version": ("The version of specexport.", None),
    "/openapi.json": ("This description.", None),
}
# Paths without JSON: (what they are, media types).
FILES = {
    "/metrics": ("Counters for Prometheus.", ("text/plain", "application/openmetrics-text")),
    "/": ("A page to chat with.", ("text/html",)),
    "/page/{name}": ("A part of the page.", ("text/css", "text/javascript", "image/svg+xml")),
}
OPEN = ("/health", "/ready", "/", "/page/{name}")  # without a key
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
REF = "#/components/schemas/{name}"
STREAMED = ("/v1/chat/completions", "/v1/completions")


@cache
def describe(keys: bool = False, public_metrics: bool = False) -> dict[str, Any]:
    """An OpenAPI 3.1 document. keys: whether requests need one; public_metrics: except those for the metrics."""
    kinds = [ErrorAnswer, Model, *(kind for _, *pair in POSTS.values() for kind in pair), ModelList]
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    paths: dict[str, Any] = {}
    for path, (told, request, answer) in POSTS.items():
        body = {"required": True, "content": _json(request)}
        paths[path] = {"post": {"summary": told, "requestBody": body, "responses": _responses(path, _json(answer))}}
    for path, (told, kind) in GETS.items():
        paths[path] = {"get": {"summary": told, "responses": _responses(path, _json(kind))}}
    for path, (told, types) in FILES.items():
        text = {kind: {"schema": {"type": "string"}} for kind in types}
        paths[path] = {"get": {"summary": told, "responses": _responses(path, text)}}
    for path, operations in paths.items():
        if "{name}" in path:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operations["parameters"] = [name]
        if keys and (path in OPEN or (path == "/metrics" and public_metrics)):
            operations["get"]["security"] = []
    return {
        "openapi": "3.1.0",
        "info": {"title": "specexport", "version": VERSION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": KEYS},
        **({"security": [{name: []} for name in KEYS]} if keys else {}),
    }


def _json(kind: type | None) -> dict[str, Any]:
    schema = {} if kind is None else {"$ref": REF.format(name=kind.__name__)}
    return {"application/json": {"schema": schema}}


def _responses(path: str, content: dict[str, Any]) -> dict[str, Any]:
    if path in STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refused = {"description": "Refused.", "content": _json(ErrorAnswer)}
    return {"200": {"description": "Done.", "content": content}, "4XX": refused, "5XX": refused}
