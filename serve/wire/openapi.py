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
    "/v1/models": ("The one model.", ModelList),
    "/health": ("Whether the process is alive.", None),
    "/ready": ("Whether new requests are accepted.", None),
    "/version": ("The version of specexport.", None),
}
REF = "#/components/schemas/{name}"
STREAMED = ("/v1/chat/completions", "/v1/completions")


@cache
def describe() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    kinds = [ErrorAnswer, Model, *(kind for _, *pair in POSTS.values() for kind in pair), ModelList]
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    paths: dict[str, Any] = {}
    for path, (told, request, answer) in POSTS.items():
        body = {"required": True, "content": _json(request)}
        paths[path] = {"post": {"summary": told, "requestBody": body, "responses": _responses(path, _json(answer))}}
    for path, (told, kind) in GETS.items():
        paths[path] = {"get": {"summary": told, "responses": _responses(path, _json(kind))}}
    text = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}
    paths["/metrics"] = {"get": {"summary": "Counters for Prometheus.", "responses": _responses("/metrics", text)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specexport", "version": VERSION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _json(kind: type | None) -> dict[str, Any]:
    schema = {} if kind is None else {"$ref": REF.format(name=kind.__name__)}
    return {"application/json": {"schema": schema}}


def _responses(path: str, content: dict[str, Any]) -> dict[str, Any]:
    if path in STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refused = {"description": "Refused.", "content": _json(ErrorAnswer)}
    return {"200": {"description": "Done.", "content": content}, "4XX": refused, "5XX": refused}
