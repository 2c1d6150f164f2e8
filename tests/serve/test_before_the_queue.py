"""What requests cost before they wait for the engine: turns, depths, and clients that leave meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import QueueError, SessionClosedError
from specexport.serve import AsyncSession, ServerSettings
from specexport.serve.engine.fair_queue import Workers
from support import tool_templates as templates
from support.refusals import refused
from support.scripted import scripted_session, tell
from support.serving import Client, served, slow_session, wait_for
from support.slow_server import raw
from support.thinking_templates import DEEPSEEK

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = "x" * 100_000
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
PARAMETERS = "tools[0].function.parameters"


class Gate:
    """In front of a session's `encode`: who is in it, and who was."""

    def __init__(self, session: Any) -> None:
        self.begun: list[Any] = []
        self.open = threading.Event()
        self._encode, session.encode = session.encode, self

    def __call__(self, prompt: Any, *tools: Any) -> list[int]:
        self.begun.append(prompt)
        assert self.open.wait(60)
        return list(self._encode(prompt, *tools))


@pytest.fixture
def qwen(tmp_path: Path) -> Iterator[Client]:
    session = scripted_session(tmp_path, templates.QWEN, "assistant\n", atoms=("<tool_call>", "</tool_call>"))
    tell(session, "Hello")
    with served(session) as client:
        yield client


def history(arguments: str, **tool: Any) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "1", **tool}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, result]


def with_default(levels: int) -> list[dict[str, Any]]:
    """A tool whose parameters hold a value with so many levels."""
    return [{"type": "function", "function": {"name": "f", "parameters": {"default": nested(levels)}}}]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_what_cannot_fit_is_not_even_tokenized(qwen: Client, path: str) -> None:
    gate = Gate(qwen.session)
    gate.open.set()
    body = {"prompt": LONG} if path.endswith("completions") else {"messages": [{"role": "user", "content": LONG}]}
    qwen.refused(path, body, "context_length_exceeded")
    assert gate.begun == []


def test_long_thoughts_that_the_template_leaves_out_are_no_reason_to_refuse(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, DEEPSEEK, "<think>\n", atoms=("<think>", "</think>"))
    history = [*HELLO, {"role": "assistant", "content": f"{LONG}</think>Hi"}, *HELLO]
    with served(session) as client:
        assert client.ask("POST", CHAT, {"messages": history, "max_tokens": 2})[0] == 200


def test_clients_that_left_are_not_tokenized_for(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    gate = Gate(session)
    with served(session, ServerSettings(max_queue_per_key=2)) as client:
        encoders = client.app.state.service.sessions.encoders
        first = [raw(client, max_tokens=2) for _ in range(2)]
        wait_for(lambda: len(gate.begun) == 2)
        others = [raw(client, max_tokens=2) for _ in range(4)]
        wait_for(lambda: encoders.waiting == 4)
        status, headers, body = client.ask("POST", CHAT, {"messages": HELLO})
        assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_requests")
        assert "of this address" in json.loads(body)["error"]["message"]
        assert headers["retry-after"] == "1"
        for one in others:
            one.close()
        wait_for(lambda: encoders.waiting == 0)
        gate.open.set()
        for one in first:
            assert one.recv(12) == b"HTTP/1.1 200"
            one.close()
        assert client.chat(max_tokens=2)["usage"]["completion_tokens"] == 2
        assert sum(prompt == HELLO for prompt in gate.begun) == 3  # the engine thread checks ids besides
        wait_for(client.idle)


def test_keys_take_turns_and_each_has_its_bound() -> None:
    async def use() -> None:
        workers, gate, done = Workers("test", 1, 5, 3), threading.Event(), []

        def work(name: str) -> None:
            assert gate.wait(30)
            done.append(name)

        def ask(name: str) -> asyncio.Task[None]:
            return asyncio.create_task(workers.run(name[0], lambda: work(name)))

        tasks = [ask("a0")]
        await asyncio.sleep(0)
        while workers.waiting:
            await asyncio.sleep(0.002)
        tasks += [ask(name) for name in ("a1", "a2", "a3", "b1", "b2")]
        await asyncio.sleep(0)
        for name in ("a4", "c1"):
            with refused(QueueError, "1", code="queue_full"):
                await ask(name)
        tasks[5].cancel()  # b2
        await asyncio.sleep(0.002)
        with refused(QueueError, code="too_many_requests"):
            await ask("a4")
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert done == ["a0", "a1", "b1", "a2", "a3"]
        workers.close()
        with refused(SessionClosedError, "AsyncSession"):
            await ask("a4")
        assert workers.waiting == 0

    asyncio.run(use())


def nested(levels: int) -> dict[str, Any]:
    """Objects and lists in turn."""
    found: Any = {} if levels % 2 else []
    for level in range(levels - 1, 0, -1):
        found = {"a": found} if level % 2 else [1, found]
    return dict(found)


@pytest.mark.parametrize("path", ["/tokenize", CHAT])
def test_what_is_nested_too_deep(qwen: Client, path: str) -> None:
    none = {"tool_choice": "none"} if path == CHAT else {}
    for make, code, param in (
        (lambda levels: {"messages": history(json.dumps(nested(levels)))}, "invalid_tool_history", ARGUMENTS),
        (lambda levels: none | {"messages": HELLO, "tools": with_default(levels - 1)}, "invalid_schema", PARAMETERS),
    ):
        for levels in (65, 600):
            qwen.refused(path, make(levels), code, param)
        assert qwen.ask("POST", path, {**make(64), "max_tokens": 1})[0] == 200


def test_the_engine_thread_tokenizes_no_prediction(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    found: list[tuple[str, Any]] = []
    encode = session._encoder.encode_prediction

    def noted(prediction: Any) -> list[int]:
        found.append((threading.current_thread().name, prediction))
        return encode(prediction)

    session._encoder.encode_prediction = noted  # type: ignore[method-assign]
    with served(session) as client:
        client.chat(prediction={"type": "content", "content": LONG}, max_tokens=2)
    (worker, text), (engine, ids) = found
    assert worker.startswith("specexport-encode")
    assert text == LONG
    assert engine == "specexport-engine"
    assert list(ids) == encode(text)


def test_an_error_behind_the_headers_but_before_a_round_is_counted(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT)
    good, fails = decoder.logits_after, threading.Event()
    decoder.logits_after = lambda context: good(context) * float("nan" if fails.is_set() else 1)  # type: ignore
    with served(session, ServerSettings(header_timeout=0.0)) as client:
        decoder.gate.clear()
        fails.set()
        threading.Timer(0.1, decoder.gate.set).start()
        status, _, body = client.ask("POST", CHAT, {"messages": HELLO, "stream": True, "max_tokens": 9})
        assert status == 200
        assert b'"code":"engine_error"' in body
        found = client.metrics()
        counted = ("request_rejected_total", "request_success_total")
        assert sum(found.get(f"specexport:{name}", 0) for name in counted) == 1


def test_no_two_pairs_of_key_and_salt_are_one(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)

    async def salt(key: str, own: str | None) -> Any:
        async with AsyncSession(session) as sessions:
            return sessions.submit([1], key=key, cache_salt=own, max_new_tokens=1).parameters.cache_salt

    with session:
        pairs = [("a", "b c"), ("a b", "c"), ("a b c", None), ("a", "None"), ("a", None), ("a', 'b", "c"), ("", "a")]
        salts = [asyncio.run(salt(key, own)) for key, own in pairs]
    assert len(set(salts)) == len(salts)
