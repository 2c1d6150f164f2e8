"""Constrained output over HTTP: valid where it ends, a prefix where it is cut, and the same with drafts and without."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.schemas import random_schema
from support.serving import ServerProcess

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "maximum": 150, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def wanted(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def choice(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    return dict(server.chat(max_tokens=200, **fields)["choices"][0])


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_answer_that_stops_validates(server: ServerProcess, temperature: int) -> None:
    stops = 0
    for seed in range(8):  # of another schema each; sessions have 200
        schema = random_schema(seed)
        fields = {"response_format": wanted(schema), "temperature": temperature, "seed": seed}
        found = choice(server, **fields)
        text = found["message"]["content"]
        if found["finish_reason"] == "stop":
            jsonschema.validate(json.loads(text), schema)
            stops += 1
        if temperature == 0:
            plain = choice(server, **fields, specexport={"speculate": False})
            assert plain["message"]["content"] == text
            cut = server.chat(max_tokens=3, **fields)["choices"][0]
            assert text.startswith(cut["message"]["content"].rstrip("\ufffd"))  # what is cut may end inside a character
    assert stops >= 4


def test_a_stream_of_it(server: ServerProcess) -> None:
    fields = {"response_format": wanted(PERSON, strict=True), "temperature": 0, "max_tokens": 100}
    chunks = server.events(CHAT, {**fields, "messages": [{"role": "user", "content": "Hello"}]})
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == server.chat(**fields)["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"choice": ["yes", "no", "größe"]}, "yes|no|größe"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 7}}, "[3-7]"),
        ({"json": '{"enum": ["x"]}'}, '"x"'),
    ],
    ids=["regex", "choice", "json", "text"],
)
def test_vllms_names(server: ServerProcess, structured: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        found = choice(server, structured_outputs=structured, seed=seed)
        assert re.fullmatch(pattern, found["message"]["content"])
        assert found["finish_reason"] == "stop"


DIGITS = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 4}
UNIQUE = {
    "type": "object",
    "properties": {"digits": {**DIGITS, "uniqueItems": True}},
    "required": ["digits"],
    "additionalProperties": False,
}
SCHEMA_BY: dict[str, Any] = {
    "llama.cpp's": {"response_format": {"type": "json_object", "schema": DIGITS}},
    "its text": {"json_schema": json.dumps(DIGITS)},
    "flat": {"response_format": {"type": "json_schema", "name": "it", "schema": DIGITS}},
    "TGI's": {"response_format": {"type": "json", "value": DIGITS}},
    "vLLM's older": {"guided_json": DIGITS},
    "Ollama's": {"format": DIGITS},
}


@pytest.mark.parametrize("fields", SCHEMA_BY.values(), ids=SCHEMA_BY)
def test_a_schema_as_other_servers_take_it(server: ServerProcess, fields: dict[str, Any]) -> None:
    for seed in range(2):
        found = choice(server, seed=seed, **fields)
        assert found["finish_reason"] == "stop"
        jsonschema.validate(json.loads(found["message"]["content"]), DIGITS)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "[a-c]{3}"},
        {"guided_regex": "[a-c]{3}"},
        {"response_format": {"type": "regex", "value": "[a-c]{3}"}},
        {"response_format": {"type": "regex", "pattern": "[a-c]{3}"}},
        {"guided_choice": ["abc", "cab"]},
    ],
    ids=str,
)
def test_a_regex_as_other_servers_take_it(server: ServerProcess, fields: dict[str, Any]) -> None:
    assert re.fullmatch("[a-c]{3}", choice(server, seed=1, **fields)["message"]["content"])


@pytest.mark.parametrize(
    "format", [wanted(UNIQUE), wanted(UNIQUE, strict=False), {"type": "json_object", "schema": UNIQUE}], ids=str
)
def test_a_schema_that_cannot_be_enforced_is_as_far_as_it_can(server: ServerProcess, format: dict[str, Any]) -> None:
    """As a tool's, without `strict`: what is not enforced is named in a header."""
    hello = [{"role": "user", "content": "Hello"}]
    for seed in range(4):
        fields = {"messages": hello, "response_format": format, "seed": seed, "max_tokens": 60}
        status, headers, body = server.ask("POST", CHAT, fields)
        assert (status, headers["x-specexport-relaxed"]) == (200, "response_format")
        found = json.loads(body)["choices"][0]
        without = {**UNIQUE, "properties": {"digits": DIGITS}}
        jsonschema.validate(json.loads(found["message"]["content"]), without)
    kept = {"messages": hello, "response_format": wanted(PERSON), "max_tokens": 2}
    assert "x-specexport-relaxed" not in server.ask("POST", CHAT, kept)[1]


def test_a_strict_schema_that_cannot_be_enforced_is_refused(server: ServerProcess) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    flat = {"type": "json_schema", "schema": UNIQUE, "strict": True}
    for fields in (
        {"response_format": wanted(UNIQUE, strict=True)},
        {"response_format": flat},
        {"guided_json": UNIQUE},
    ):
        error = server.refused(CHAT, {"messages": hello, **fields}, "invalid_schema", next(iter(fields)))
        assert "uniqueItems" in error["message"]


DEEP: dict[str, Any] = {"type": "string"}
for _ in range(80):
    DEEP = {"type": "array", "items": DEEP}
LOOSE = {"type": "object", "properties": {"a": {"type": "string"}}}
SOUP = {"allOf": [{"anyOf": [{"type": "string", "pattern": f"^a{i}b{j}"} for j in range(10)]} for i in range(10)]}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"response_format": wanted({"type": "nonsense"})}, "invalid_schema"),
        ({"response_format": wanted({"type": "string", "pattern": "(?=a)b"})}, "invalid_schema"),
        ({"response_format": wanted({"$ref": "http://127.0.0.1:9/schema.json"})}, "invalid_schema"),
        ({"response_format": wanted({"$ref": "file:///etc/passwd"})}, "invalid_schema"),
        ({"response_format": wanted(DEEP)}, "schema_too_complex"),
        ({"response_format": wanted(SOUP)}, "schema_too_complex"),
        ({"response_format": wanted({"enum": ["x" * 40_000]})}, "invalid_schema"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value"),
        ({"response_format": {"type": "grammar"}}, "invalid_value"),
        ({"structured_outputs": {}}, "invalid_value"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "invalid_value"),
        ({"structured_outputs": {"regex": "("}}, "invalid_schema"),
        ({"structured_outputs": {"choice": []}}, "invalid_schema"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "unsupported_parameter"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "invalid_value"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "invalid_value"),
        ({"response_format": {"type": "text", "schema": PERSON}}, "invalid_value"),
        ({"response_format": {"type": "json_object", "pattern": "a"}}, "invalid_value"),
        ({"response_format": {"type": "regex"}}, "invalid_value"),
        ({"response_format": {"type": "json_object", "schema": LOOSE, "json_schema": {"schema": {}}}}, "invalid_value"),
        ({"response_format": {"type": "regex", "value": {"type": "object"}}}, "invalid_schema"),
    ],
    ids=range(21),
)
def test_what_is_refused(server: ServerProcess, fields: dict[str, Any], code: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], **fields}
    server.refused(CHAT, body, code)
    assert server.ask("GET", "/health")[0] == 200
    assert server.idle()
