"""Requests that must be refused, drawn from a seed, each with its allowed statuses."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from .client import NOWHERE, half
from .good import CHAT, COMPLETIONS, Good

MAX_BODY = 1 << 20  # the server's default
HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
JUNK: tuple[Any, ...] = (None, -1, 1e308, "x", [], {}, [[]], True, "\ud800", 2**70, {"a": {"a": []}}, "é" * 300)
WRONG: tuple[dict[str, Any], ...] = (
    {"temperature": 3},
    {"temperature": -1},
    {"top_p": 1.5},
    {"top_k": -7},
    {"max_tokens": -5},
    {"seed": "one"},
    {"n": 2},
    {"presence_penalty": 9},
    {"logit_bias": {"300": 1000}},
    {"logit_bias": {"none": 1}},
    {"stop": ["x"] * 17},
    {"specexport": {"drafter": "none such"}},
    {"specexport": {"unknown": 1}},
    {"specexport": {"num_draft_tokens": -2}},
    {"structured_outputs": {"regex": "["}},
    {"structured_outputs": {"regex": "(" * 500}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    {"structured_outputs": {"grammar": 'start: "a"'}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "("}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
    {"store": True},
)


@dataclass(frozen=True)
class Bad:
    """data: all bytes of the request. wait: whether to wait for an answer; otherwise hang up."""

    kind: str
    data: bytes
    statuses: frozenset[int]
    wait: bool = True


def draw(chance: random.Random, good: Good, capacity: int) -> Bad:
    """A random bad request. good: the request that it is derived from."""
    kinds = (_cut, _flipped, _junk, _wrong, _too_long, _too_large, _elsewhere, _half, _noise, _nested)
    return chance.choice(kinds)(chance, good, capacity)


def dawdle(chance: random.Random, good: Good) -> Bad:
    """Half a body, and then nothing: the server closes the connection after 30 seconds."""
    return Bad("dawdle", half(good.path, good.body(False), chance), frozenset({408}))


def _post(body: bytes, path: str, host: str = "localhost", kind: str = "application/json") -> bytes:
    return (
        HEAD.format(path=path, host=host, kind=kind, length=len(body))
        .replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        .encode()
        + body
    )


def _cut(chance: random.Random, good: Good, capacity: int) -> Bad:
    body = good.body(False)
    return Bad("malformed", _post(body[: chance.randrange(len(body))], good.path), frozenset({400}))


def _flipped(chance: random.Random, good: Good, capacity: int) -> Bad:
    """Flips some bits; the result may even be a valid request."""
    body = bytearray(good.body(False))
    for _ in range(chance.randint(1, 4)):
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return Bad("flipped bits", _post(bytes(body), good.path), frozenset({200, 400, 404}))


def _junk(chance: random.Random, good: Good, capacity: int) -> Bad:
    fields = dict(good.fields)
    fields[chance.choice([*fields, "stream", "model", "tools", "messages", "cache_salt"])] = chance.choice(JUNK)
    return Bad("junk in a field", _post(json.dumps(fields).encode(), good.path), frozenset({200, 400, 404}))


def _wrong(chance: random.Random, good: Good, capacity: int) -> Bad:
    fields = {name: good.fields[name] for name in ("prompt", "messages") if name in good.fields}
    body = json.dumps(fields | chance.choice(WRONG)).encode()
    return Bad("out of range", _post(body, good.path), frozenset({400}))


def _too_long(chance: random.Random, good: Good, capacity: int) -> Bad:
    body = json.dumps({"prompt": [300] * chance.randint(capacity, capacity * 2)}).encode()
    return Bad("too long a prompt", _post(body, COMPLETIONS), frozenset({400}))


def _too_large(chance: random.Random, good: Good, capacity: int) -> Bad:
    if chance.random() < 0.5:
        return Bad("too large", _post(b" " * chance.choice((MAX_BODY + 1, 8 * MAX_BODY)), CHAT), frozenset({413}))
    long = "x" * chance.randint(40_000, 200_000)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: {long}\r\n\r\n"
    return Bad("too large a head", head.encode(), frozenset({400, 431, NOWHERE}))


def _elsewhere(chance: random.Random, good: Good, capacity: int) -> Bad:
    body = good.body(False)
    other = json.dumps({**good.fields, "model": "../other"}).encode()
    found = (
        ("another path", _post(body, "/v1/none"), 404),
        ("another model", _post(other, good.path), 404),
        ("another type", _post(body, good.path, kind="text/plain"), 415),
        ("another host", _post(body, good.path, host="example.com"), 403),
        ("another method", _post(body, good.path).replace(b"POST", b"PUT", 1), 405),
    )
    kind, data, status = chance.choice(found)
    return Bad(kind, data, frozenset({status}))


def _half(chance: random.Random, good: Good, capacity: int) -> Bad:
    return Bad("half a body", half(good.path, good.body(False), chance), frozenset({NOWHERE}), wait=False)


def _noise(chance: random.Random, good: Good, capacity: int) -> Bad:
    data = chance.randbytes(chance.randint(1, 2000)) + b"\r\n\r\n"
    return Bad("no HTTP", data, frozenset({400, 431, NOWHERE}))


def _nested(chance: random.Random, good: Good, capacity: int) -> Bad:
    depth = chance.choice((100, 5_000, 200_000))
    body = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
    return Bad("nested", _post(body, COMPLETIONS), frozenset({400}))
