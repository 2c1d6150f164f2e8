"""Clients that leave, too many of them, and a stall, over real sockets; a slow double runs in this process."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from specexport.serve.metrics import Metrics
from support.serving import wait_for
from support.slow_server import MESSAGES, raw, running, slow_server, waiting

PAGE = "https://app.example"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(tmp_path: Path, stream: bool) -> None:
    with slow_server(tmp_path) as (client, decoder):
        gone = raw(client, max_tokens=900, stream=stream)
        wait_for(lambda: running(client) == 1)
        if stream:
            assert gone.recv(100)
        gone.close()
        wait_for(lambda: client.idle())
        assert len(decoder.steps) < 800  # of 900 and some
        assert client.chat(max_tokens=3)["usage"]["completion_tokens"] == 3
        assert client.metrics()["specexport:request_success_total"] == 2


def test_one_that_leaves_the_queue_stops_nobody(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        answers: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: answers.append(client.chat(max_tokens=20, temperature=0)))
        thread.start()
        wait_for(lambda: running(client) == 1)
        gone = raw(client, max_tokens=20)
        wait_for(lambda: waiting(client) == 1)
        gone.close()
        wait_for(lambda: waiting(client) == 0)
        assert running(client) == 1
        decoder.gate.set()
        thread.join()
        assert answers[0]["usage"]["completion_tokens"] == 20
        assert answers[0]["choices"][0]["finish_reason"] == "length"


@pytest.mark.slow
def test_too_many_are_refused_and_retries_end_well(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_queue=2, max_queue_per_key=2) as (client, decoder):
        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        others = [raw(client, max_tokens=2) for _ in range(2)]
        wait_for(lambda: waiting(client) == 2)
        status, headers, body = client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})
        assert status == 429
        assert json.loads(body)["error"]["code"] in ("queue_full", "too_many_requests")
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert 1 <= int(headers["retry-after"]) <= 60
        with client.openai() as once, pytest.raises(openai.RateLimitError):
            once.chat.completions.create(model=client.app.state.service.name, messages=MESSAGES)  # type: ignore
        assert client.ask("GET", "/health")[0] == client.ask("GET", "/ready")[0] == 200
        assert client.metrics()["specexport:request_rejected_total"] == 2
        threading.Timer(0.3, decoder.gate.set).start()
        with client.openai(retries=4) as patient:
            name = client.app.state.service.name
            found = patient.chat.completions.create(model=name, messages=MESSAGES, max_tokens=2)  # type: ignore
            assert found.usage.completion_tokens == 2
        for one in (first, *others):
            assert one.recv(12) == b"HTTP/1.1 200"
            one.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_of_prompts_that_was_taken_is_answered_to_its_end(tmp_path: Path, stream: bool) -> None:
    """However full the queue is by then."""
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        asked = {"prompt": ["a", "b", "c"], "max_tokens": 2, "stream": stream}
        answers: list[tuple[int, Any, bytes]] = []
        thread = threading.Thread(target=lambda: answers.append(client.ask("POST", "/v1/completions", asked)))
        thread.start()
        wait_for(lambda: running(client) == 1)
        client.app.state.service.sessions.thread._queue._most = -1
        assert client.ask("POST", "/v1/completions", {"prompt": "d"})[0] == 429
        decoder.gate.set()
        thread.join()
        ((status, _, body),) = answers
        assert status == 200
        assert b"error" not in body
        assert all(f'"index":{index},'.encode() in body for index in range(3))


def test_tokens_of_one_round_share_its_time() -> None:
    metrics = Metrics("x", "tiny", ())
    metrics.latencies([(9.0, 2), (0.375, 3), (0.25, 1)])
    text = metrics.exposition().decode()
    assert 'x:inter_token_latency_seconds_count{model_name="tiny"} 4.0' in text
    assert 'x:inter_token_latency_seconds_sum{model_name="tiny"} 0.625' in text


@pytest.mark.parametrize("when", ["at once", "its time is over"])
def test_a_stream_that_cannot_start_in_time_is_refused_before_its_headers(tmp_path: Path, when: str) -> None:
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        sessions = client.app.state.service.sessions
        sessions.queue_timeout = 0.1 if when == "its time is over" else 30.0
        expected = iter([100.0, 100.0] if when == "at once" else [0.0, 45.0])
        sessions.thread.starts_in = lambda job=None: next(expected)
        status, headers, answer = client.ask("POST", "/v1/completions", {"prompt": "a", "stream": True})
        assert (status, json.loads(answer)["error"]["code"]) == (503, "queue_timeout")
        assert headers["retry-after"] == {"at once": "60", "its time is over": "45"}[when]
        assert waiting(client) == 0
        decoder.gate.set()
        assert first.recv(12) == b"HTTP/1.1 200"
        first.close()


def test_a_stream_that_has_its_status_is_answered_however_long_it_waits(tmp_path: Path) -> None:
    with slow_server(tmp_path, header_timeout=0.02, ping_interval=0.02) as (client, decoder):
        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        second = raw(client, max_tokens=2, stream=True)
        found = second.recv(1000)
        sessions = client.app.state.service.sessions
        sessions.queue_timeout, sessions.thread.starts_in = 0.0, lambda job=None: 1000.0
        while found.count(b": ping\n\n") < 3:
            found += (part := second.recv(1000))
            assert part
        assert client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True})[0] == 503
        decoder.gate.set()
        while part and b"[DONE]" not in found:
            found += (part := second.recv(1000))
        assert b"[DONE]" in found
        assert b"error" not in found
        for one in (first, second):
            one.close()


def test_an_error_in_a_stream_is_its_last_event(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):
        good = decoder.logits_after
        decoder.logits_after = lambda context: good(context) * (float("nan") if len(context) > 40 else 1)  # type: ignore
        asked: dict[str, Any] = dict(messages=MESSAGES, stream=True, max_tokens=100, temperature=0)
        status, _, body = client.ask("POST", "/v1/chat/completions", asked)
        assert status == 200
        events = [line for line in body.decode().split("\n\n") if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert "[DONE]" not in body.decode()
        with client.openai() as reader, pytest.raises(openai.APIError):
            list(reader.chat.completions.create(model=client.app.state.service.name, **asked))  # type: ignore
        status, headers, body = client.ask("POST", "/v1/chat/completions", asked | {"stream": False})
        assert (status, json.loads(body)["error"]["type"]) == (500, "server_error")
        assert headers["x-should-retry"] == "false"


def test_an_engine_that_is_stuck_is_told(tmp_path: Path) -> None:
    with slow_server(tmp_path, stall_timeout=0.05) as (client, decoder):
        assert client.ask("GET", "/health")[0] == 200
        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: client.ask("GET", "/health")[0] == 503)
        assert client.ask("GET", "/ready")[0] == 503
        decoder.gate.set()
        assert first.recv(12) == b"HTTP/1.1 200"
        first.close()
        wait_for(lambda: client.ask("GET", "/health")[0] == 200)


def test_an_engine_that_fails_again_and_again_is_told(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):

        def statuses() -> tuple[int, int, int]:
            """Of a request, and of both probes behind it."""
            asked = {"messages": MESSAGES, "max_tokens": 2}
            paths = (("POST", "/v1/chat/completions", asked), ("GET", "/health", None), ("GET", "/ready", None))
            first, second, third = (client.ask(*asked)[0] for asked in paths)
            return first, second, third

        whole = decoder.logits_after
        decoder.logits_after = lambda context: 1 / 0  # type: ignore[assignment,method-assign]
        assert [statuses() for _ in range(3)] == [(500, 200, 200), (500, 200, 200), (500, 503, 503)]
        wrong = {"messages": MESSAGES, "temperature": 9}
        assert client.ask("POST", "/v1/chat/completions", wrong)[0] == 400
        assert client.ask("GET", "/health")[0] == 503  # which nothing but an answer changes
        decoder.logits_after = whole  # type: ignore[method-assign]
        assert statuses() == (200, 200, 200)
        decoder.logits_after = lambda context: 1 / 0  # type: ignore[assignment,method-assign]
        assert statuses() == (500, 200, 200)
        decoder.logits_after = whole  # type: ignore[method-assign]


def test_no_more_requests_than_allowed_are_open(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_requests=2, cors_origins=(PAGE,)) as (client, decoder):
        decoder.gate.clear()
        open_ones = [raw(client, max_tokens=2) for _ in range(2)]
        wait_for(lambda: running(client) + waiting(client) == 2)
        client.app.state.service.sessions.thread.starts_in = lambda job=None: 7.5
        status, headers, body = client.ask("POST", "/tokenize", {"prompt": "a"}, {"Origin": PAGE})
        assert headers["retry-after"] == "8"
        assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
        assert headers["access-control-allow-origin"] == PAGE  # so that the page may read when to come again
        preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        assert client.ask("OPTIONS", "/tokenize", headers=preflight)[0] == 204
        assert client.ask("OPTIONS", "/tokenize", headers=preflight | {"Origin": "https://other"})[0] == 429
        assert client.ask("GET", "/health")[0] == 200
        decoder.gate.set()
        for one in open_ones:
            assert one.recv(12) == b"HTTP/1.1 200"
            one.close()
