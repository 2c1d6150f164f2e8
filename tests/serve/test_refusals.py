"""Wrong requests: the right status, an error as clients read it, and a server that lives on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.serving import ServerProcess

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HELLO, "max_tokens": 2, **fields}).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"prompt": "Hello", "max_tokens": 2, **fields}).encode()


def said(content: Any, role: str = "user", **more: Any) -> bytes:
    return chat(messages=[{"role": role, "content": content, **more}])


IMAGE = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}]
# The last one twice: to count each one's among all takes minutes, in which nobody is served.
MANY_KEYS = b"{%s}" % b",".join(b'"k%d":0' % min(number, 79_999) for number in range(80_001))
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
# path, body, status, code, param
WRONG: list[tuple[str, bytes, int, str, str | None]] = [
    (CHAT, b"", 400, "invalid_json", None),
    (CHAT, b"{", 400, "invalid_json", None),
    (CHAT, b"\xff\xfe", 400, "invalid_json", None),
    (CHAT, b"[" * 100_000, 400, "invalid_json", None),
    (CHAT, b'{"a":' * 20_000 + b"1" + b"}" * 20_000, 400, "invalid_json", None),
    (CHAT, b'{"messages": 3, "a": %s}' % (b"[" * 900 + b"]" * 900), 400, "invalid_value", "messages"),
    (CHAT, MANY_KEYS, 400, "invalid_json", None),
    (CHAT, b"[]", 400, "invalid_value", None),
    (CHAT, b"{}", 400, "invalid_value", "messages"),
    (CHAT, chat(messages="Hello"), 400, "invalid_value", "messages"),
    (CHAT, chat(messages=HELLO * 1025), 400, "invalid_value", "messages"),
    (CHAT, said("x", "xxx"), 400, "invalid_value", "messages[0].role"),
    (CHAT, said(3), 400, "invalid_value", "messages[0].content"),
    (CHAT, said(None), 400, "invalid_value", "messages[0].content"),
    (CHAT, said(IMAGE), 400, "unsupported_parameter", "messages[0].content[0].type"),
    (CHAT, said([{"type": "text"}]), 400, "invalid_value", "messages[0].content[0].text"),
    (CHAT, said(None, "assistant", tool_calls=[CALL]), 400, "unsupported_parameter", "messages[0].tool_calls"),
    (CHAT, said("x", "tool"), 400, "unsupported_parameter", "messages[0].role"),
    (CHAT, said("word " * 3000), 400, "context_length_exceeded", "messages"),
    (CHAT, chat(max_tokens=0), 400, "invalid_value", "max_tokens"),
    (CHAT, chat(stop=["x" * 257]), 400, "invalid_value", "stop[0]"),
    (CHAT, chat(stop=""), 400, "invalid_value", "stop"),
    (CHAT, chat(logit_bias={"x": 1}), 400, "invalid_value", "logit_bias"),
    (CHAT, chat(logit_bias={"999999": 1}), 400, "invalid_value", "logit_bias"),
    (CHAT, chat(min_tokens=3), 400, "invalid_value", "min_tokens"),
    (TEXT, text(max_tokens=None, min_tokens=17), 400, "invalid_value", "min_tokens"),
    (TEXT, text(max_tokens=-3, min_tokens=0), 400, "invalid_value", "max_tokens"),
    (CHAT, chat(logprobs=3), 400, "invalid_value", "logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "invalid_value", "top_logprobs"),
    (CHAT, chat(top_logprobs=2), 400, "invalid_value", "top_logprobs"),
    (CHAT, chat(model="other"), 404, "model_not_found", "model"),
    (CHAT, chat(n=17), 400, "invalid_value", "n"),
    (TEXT, text(n=2, prompt=["x"] * 33), 400, "invalid_value", "n"),
    (CHAT, chat(chat_template="{{ 1 }}"), 400, "unsupported_parameter", "chat_template"),
    (CHAT, chat(specexport={"num_draft_tokens": 99}), 400, "invalid_value", "specexport.num_draft_tokens"),
    (CHAT, chat(specexport={"drafter": "magic"}), 400, "invalid_value", "specexport.drafter"),
    (CHAT, chat(specexport={"banned_tokens": [-1]}), 400, "invalid_value", "specexport.banned_tokens[0]"),
    (CHAT, chat(drafter="ngram"), 400, "unsupported_parameter", "drafter"),
    (CHAT, chat(prediction={"type": "content", "content": IMAGE}), 400, "unsupported_parameter", None),
    (CHAT, chat(tools=[TOOL]), 400, "unsupported_parameter", "tools"),
    (CHAT, chat(tool_choice="required"), 400, "invalid_value", "tool_choice"),
    (TEXT, text(tools=[TOOL]), 400, "unsupported_parameter", "tools"),
    (TEXT, text(prompt=""), 400, "invalid_value", "prompt"),
    (TEXT, text(prompt=[]), 400, "invalid_value", "prompt"),
    (TEXT, text(prompt=["a"] * 65), 400, "invalid_value", "prompt"),
    (TEXT, text(prompt=["a", 3]), 400, "invalid_value", "prompt"),
    (TEXT, text(prompt=[2**30]), 400, "invalid_value", "prompt"),
    (CHAT, chat(echo=True), 400, "unsupported_parameter", "echo"),
    ("/detokenize", b'{"tokens": [1073741824]}', 400, "invalid_value", "tokens"),
    (TEXT, b"{}", 400, "invalid_value", "prompt"),
    ("/tokenize", b"{}", 400, "invalid_value", "prompt"),
]


def check_error(status: int, body: bytes, expected: int, code: str) -> dict[str, Any]:
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (expected, code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    assert error["type"] == ("invalid_request_error" if expected < 500 else "server_error")
    return error


@pytest.mark.parametrize(("path", "body", "status", "code", "param"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_request(
    server: ServerProcess, path: str, body: bytes, status: int, code: str, param: str | None
) -> None:
    before = server.metrics()["specexport:generation_tokens_total"]
    found, _, answer = server.ask("POST", path, body)
    error = check_error(found, answer, status, code)
    assert param is None or error["param"] == param
    assert server.ask("GET", "/health")[0] == 200
    assert server.metrics()["specexport:generation_tokens_total"] == before
    assert server.idle()


CHOICES: list[tuple[str, bytes, str, str]] = [
    (CHAT, said("x", "robot"), "messages[0].role", '"assistant" or "developer" or "system" or "tool" or "user"'),
    (CHAT, chat(tool_choice="must"), "tool_choice", '"auto" or "none" or "required" or an object'),
    (
        CHAT,
        chat(response_format={"type": "xml"}),
        "response_format.type",
        '"json" or "json_object" or "json_schema" or "regex" or "text"',
    ),
    (CHAT, chat(tools=[{"type": "f", "function": {"name": "f"}}]), "tools[0].type", '"function"'),
    (TEXT, text(logprobs=True), "logprobs", "false or a number from 0 to 20"),
]


@pytest.mark.parametrize(("path", "body", "param", "allowed"), CHOICES, ids=[param for _, _, param, _ in CHOICES])
def test_a_wrong_choice_is_told_the_right_ones(
    server: ServerProcess, path: str, body: bytes, param: str, allowed: str
) -> None:
    error = check_error(*server.ask("POST", path, body)[::2], 400, "invalid_value")
    assert error["param"] == param
    assert error["message"].endswith(f"; it must be {allowed}")


def test_other_ways_to_be_wrong(server: ServerProcess) -> None:
    status, headers, body = server.ask("POST", CHAT, chat(), {"Content-Type": "text/plain"})
    check_error(status, body, 415, "unsupported_media_type")
    status, _, body = server.ask("POST", CHAT, b"x" * ((1 << 20) + 1))
    check_error(status, body, 413, "body_too_large")
    check_error(*server.ask("GET", CHAT)[::2], 405, "method_not_allowed")
    check_error(*server.ask("GET", "/v1/nothing")[::2], 404, "not_found")
    check_error(*server.ask("GET", "/v1/models/")[::2], 404, "not_found")
    check_error(*server.ask("GET", "/v1/models/other")[::2], 404, "model_not_found")
    check_error(*server.ask("GET", "/v1/models/a%2Fb")[::2], 404, "model_not_found")
    status, headers, body = server.ask("POST", CHAT, b"{}", {"x-request-id": "my-own_id.1"})
    assert headers["x-request-id"] == "my-own_id.1"
    assert server.chat(max_tokens=1)["usage"]["completion_tokens"] == 1
