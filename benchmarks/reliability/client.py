"""Clients for a server: ask, stream, disconnect in the middle, send half a request, send nonsense."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

TIMEOUT = 120.0  # seconds; a server that is silent for this long hangs
NOWHERE = 0  # instead of a status: the client has disconnected, or the server has hung up without one


@dataclass(frozen=True)
class Answer:
    """status: `NOWHERE` for none. told: the answer's text, in the same form for whole answers and streams."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    told: str | None = None
    error: str | None = None  # of a stream that ended with one
    seconds: float = 0.0  # until the end of the answer


def ask(port: int, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None) -> Answer:
    start, connection = time.monotonic(), http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    lines = {"Content-Type": "application/json", "Connection": "close"} | (headers or {})
    try:
        connection.request(method, path, body, lines)
        found = connection.getresponse()
        content, heads = found.read(), {name.lower(): value for name, value in found.getheaders()}
    finally:
        connection.close()
    seconds, stream = time.monotonic() - start, heads.get("content-type", "").startswith("text/event-stream")
    if found.status != 200 or not path.startswith("/v1/") or method != "POST":
        return Answer(found.status, heads, content, seconds=seconds)
    told, error = streamed(content) if stream else (whole(json.loads(content)), None)
    return Answer(found.status, heads, content, told, error, seconds)


def leave(port: int, path: str, body: bytes, after: int, reset: bool) -> Answer:
    """Read at least `after` bytes of an answer and hang up, by FIN or by RST."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        taken = b""
        while len(taken) < after and (piece := connection.recv(4096)):
            taken += piece
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return Answer(_status(taken), _heads(taken), taken)


def send_raw(port: int, data: bytes, wait: bool) -> Answer:
    """Send raw bytes; `wait` for the answer, or disconnect at once."""
    start, taken = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            while wait and (piece := connection.recv(65536)):
                taken += piece
    return Answer(_status(taken), _heads(taken), taken, seconds=time.monotonic() - start)


def half(path: str, body: bytes, chance: random.Random) -> bytes:
    """A request whose body is shorter than its Content-Length."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = body[: chance.randrange(len(body))]
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + sent


def _status(answer: bytes) -> int:
    parts = answer.partition(b"\r\n")[0].split(b" ")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else NOWHERE


def _heads(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def whole(answer: dict[str, Any]) -> str:
    choices = {choice["index"]: _Choice().add(choice.get("message") or choice) for choice in answer["choices"]}
    for choice in answer["choices"]:
        choices[choice["index"]].reason = choice["finish_reason"]
    return _told(choices, answer["usage"])


def streamed(body: bytes) -> tuple[str | None, str | None]:
    """(the text of a stream, None), or (None, the error that it ended with)."""
    events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return None, events[-1] if events else "an empty stream"
    choices: dict[int, _Choice] = {}
    usage: dict[str, Any] = {}
    for event in map(json.loads, events[:-1]):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            there = choices.setdefault(choice["index"], _Choice())
            there.add(choice.get("delta") or choice)
            there.reason = choice["finish_reason"] or there.reason
    return _told(choices, usage), None


class _Choice:
    def __init__(self) -> None:
        self.text, self.thoughts, self.reason = "", "", None
        self.calls: dict[int, list[str]] = {}

    def add(self, part: dict[str, Any]) -> _Choice:
        self.text += part.get("content") or part.get("text") or ""
        self.thoughts += part.get("reasoning_content") or ""
        for number, call in enumerate(part.get("tool_calls") or ()):
            there = self.calls.setdefault(call.get("index", number), ["", ""])
            there[0] += call["function"].get("name") or ""
            there[1] += call["function"].get("arguments") or ""
        return self


def _told(choices: dict[int, _Choice], usage: dict[str, Any]) -> str:
    said = {
        number: [choice.text, choice.thoughts, [choice.calls[i] for i in sorted(choice.calls)], choice.reason]
        for number, choice in sorted(choices.items())
    }
    return json.dumps([said, usage["prompt_tokens"], usage["completion_tokens"]])
