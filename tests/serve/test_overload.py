"""Clients that leave, too many of them, a drain and a stall, over real sockets; a slow double runs in this process."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from specexport.bundle import Contract
from specexport.serve import ServerSettings
from specexport.serve.metrics import Metrics
from support.serving import PATIENCE, STARTED, Client, SlowDecoder, served, slow_session, wait_for

CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
MESSAGES = [{"role": "user", "content": "Hello"}]
PAGE = "https://app.example"


@contextmanager
def slow_server(root: Path, delay: float = 0.002, **settings: Any) -> Iterator[tuple[Client, SlowDecoder]]:
    session, decoder = slow_session(root, CONTRACT, delay)
    with served(session, ServerSettings(**settings)) as client:
        try:
            yield client, decoder
        finally:
            decoder.gate.set()


def raw(client: Client, **fields: Any) -> socket.socket:
    """A request that was sent; its answer is nobody's yet."""
    body = json.dumps({"messages": MESSAGES, "temperature": 0, **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    found.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


def running(client: Client) -> int:
    return int(client.metrics()["specexport:num_requests_running"])


def waiting(client: Client) -> int:
    return int(client.metrics()["specexport:num_requests_waiting"])


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


def test_one_that_leaves_in_its_prompt(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        gone = raw(client, messages=[{"role": "user", "content": "x" * 900}])
        wait_for(lambda: running(client) == 1)
        gone.close()
        wait_for(lambda: client.app.state.service.sessions.thread._running.cancelled)  # type: ignore[attr-defined]
        decoder.gate.set()
        wait_for(lambda: client.idle())
        assert len(decoder.steps) <= 2  # of 113 chunks


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
            name = client.app.state.service.name  # type: ignore[attr-defined]
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
        client.app.state.service.sessions.thread._queue._most = -1  # type: ignore[attr-defined]
        assert client.ask("POST", "/v1/completions", {"prompt": "d"})[0] == 429
        decoder.gate.set()
        thread.join()
        ((status, _, body),) = answers
        assert status == 200
        assert b"error" not in body
        assert all(f'"index":{index},'.encode() in body for index in range(3))


def test_one_users_own_requests_may_fill_the_queue(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_queue=6, api_keys=("k",)) as (client, decoder):
        assert client.app.state.service.settings.waiting_per_key == 6  # type: ignore[attr-defined]
    with slow_server(tmp_path, max_queue=6) as (client, decoder):
        decoder.gate.clear()
        open_ones = [raw(client, max_tokens=2)]
        wait_for(lambda: running(client) == 1)
        open_ones += [raw(client, max_tokens=2) for _ in range(6)]
        wait_for(lambda: waiting(client) == 6)
        status, _, body = client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})
        assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
        decoder.gate.set()
        for one in open_ones:
            assert one.recv(12) == b"HTTP/1.1 200"
            one.close()


def test_an_address_has_a_bound_where_one_is_given(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_queue=6, max_queue_per_key=1) as (client, decoder):
        decoder.gate.clear()
        open_ones = [raw(client, max_tokens=2)]
        wait_for(lambda: running(client) == 1)
        open_ones.append(raw(client, max_tokens=2))
        wait_for(lambda: waiting(client) == 1)
        status, _, body = client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (429, "too_many_requests")
        assert "of this address" in error["message"]
        decoder.gate.set()
        for one in open_ones:
            assert one.recv(12) == b"HTTP/1.1 200"
            one.close()


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_behind_the_first_round_has_its_latency(tmp_path: Path, stream: bool) -> None:
    with slow_server(tmp_path) as (client, _):
        fields = {"messages": MESSAGES, "max_tokens": 20, "stream": stream, "specexport": {"speculate": False}}
        assert client.ask("POST", "/v1/chat/completions", fields)[0] == 200
        found = client.metrics()
        assert found["specexport:inter_token_latency_seconds_count"] == 19
        whole = found["specexport:e2e_request_latency_seconds_sum"]
        assert 0 < found["specexport:inter_token_latency_seconds_sum"] < whole


def test_tokens_of_one_round_share_its_time() -> None:
    metrics = Metrics("x", "tiny", ())
    metrics.latencies([(9.0, 2), (0.375, 3), (0.25, 1)])
    text = metrics.exposition("")[0].decode()
    assert 'x:inter_token_latency_seconds_count{model_name="tiny"} 4.0' in text
    assert 'x:inter_token_latency_seconds_sum{model_name="tiny"} 0.625' in text


def test_a_wait_that_is_too_long(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        # Not before: on a busy host the first one may wait as long.
        client.app.state.service.sessions.queue_timeout = 0.1  # type: ignore[attr-defined]
        status, headers, body = client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})
        assert (status, json.loads(body)["error"]["code"]) == (503, "queue_timeout")
        assert "retry-after" in headers
        decoder.gate.set()
        assert first.recv(12) == b"HTTP/1.1 200"
        first.close()


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Those of requests that generate."""
    found = [json.loads(record.message) for record in caplog.records if record.name == "specexport.access"]
    return [row for row in found if row["method"] == "POST"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_says_why_a_request_was_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, "specexport.access")
    with slow_server(tmp_path, max_queue=1) as (client, decoder):
        sessions = client.app.state.service.sessions  # type: ignore[attr-defined]
        patient = sessions.queue_timeout

        def ask(path: str = "/v1/chat/completions", **fields: Any) -> int:
            return client.ask("POST", path, {"messages": MESSAGES, "stream": stream, **fields})[0]

        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        sessions.queue_timeout = 0.2
        assert ask() == 503  # it waits too long
        sessions.queue_timeout = patient
        second = raw(client, max_tokens=2, stream=True)
        wait_for(lambda: waiting(client) == 1)
        assert ask() == 429
        second.close()  # it leaves while it waits
        wait_for(lambda: waiting(client) == 0)
        assert [ask(temperature=9), ask(path="/nowhere"), ask(model="another")] == [400, 404, 404]
        sessions.thread.drain()
        assert ask() == 503
        decoder.gate.set()
        assert first.recv(12) == b"HTTP/1.1 200"
        first.close()
    rows = access_lines(caplog)
    assert sorted((row["status"], row.get("error", ""), row.get("finish_reason", "-")) for row in rows) == [
        (200, "", "length"),
        (400, "invalid_value", "-"),
        (404, "model_not_found", "-"),
        (404, "not_found", "-"),
        (429, "queue_full", "refused"),
        (499, "", "abort"),
        (503, "queue_timeout", "refused"),
        (503, "shutting_down", "refused"),
    ]
    waited = {row["error"]: row["queue_seconds"] for row in rows if "queue_seconds" in row and "error" in row}
    assert waited["queue_timeout"] >= 0.2 > waited["queue_full"] == waited["shutting_down"] == 0


def test_the_log_says_which_prompts_of_a_list_were_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specexport.access")
    with slow_server(tmp_path) as (client, _):
        thread = client.app.state.service.sessions.thread  # type: ignore[attr-defined]
        submit = thread.submit

        def last(*arguments: Any) -> None:
            submit(*arguments)
            thread.drain()

        thread.submit = last
        asked = {"prompt": ["a", "b", "c"], "max_tokens": 2, "stream": True}
        assert b'"code":"shutting_down"' in client.ask("POST", "/v1/completions", asked)[2]
    (row,) = access_lines(caplog)
    assert (row["status"], row["error"], row["finish_reason"]) == (200, "shutting_down", "length,refused")


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    with slow_server(tmp_path, header_timeout=0.02, ping_interval=0.02) as (client, decoder):
        decoder.gate.clear()
        first = raw(client, max_tokens=2, stream=True)
        wait_for(lambda: running(client) == 1)
        second = raw(client, max_tokens=2, stream=True)
        for one in (first, second):  # one waits for its prompt, one in the queue
            found = b""
            while found.count(b": ping\n\n") < 3:
                found += one.recv(1000)
            assert found.startswith(b"HTTP/1.1 200")
        decoder.gate.set()
        for one in (first, second):
            found = b""
            while b"[DONE]" not in found:
                found += one.recv(1000)
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


def test_one_of_several_says_which_it_is(tmp_path: Path) -> None:
    with slow_server(tmp_path, replica="left-1") as (client, _):
        for path in ("/health", "/nothing"):
            assert client.ask("GET", path)[1]["x-specexport-replica"] == "left-1"
    with slow_server(tmp_path / "other") as (client, _):
        assert "x-specexport-replica" not in client.ask("GET", "/health")[1]


def test_a_slow_body_and_a_large_one(tmp_path: Path) -> None:
    with slow_server(tmp_path, body_timeout=0.1, max_body=1000) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as slow:
            slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 100\r\n\r\n{")
            assert b"408" in slow.recv(1000)
    with slow_server(tmp_path / "large", max_body=1000) as (client, _):
        status, _, body = client.ask("POST", "/tokenize", {"prompt": "x" * 2000})
        assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
        # More than sockets buffer: who is hung up on while it sends would never read why.
        assert client.ask("POST", "/tokenize", b" " * (16 << 20))[0] == 413
        assert client.idle()


def test_a_chunked_body_that_is_too_large_and_over_is_not_waited_for(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_body=1000) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as whole:
            head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            whole.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n")
            assert b"".join(iter(lambda: whole.recv(1000), b"")).startswith(b"HTTP/1.1 413")
        assert client.idle()


@pytest.mark.parametrize(
    ("length", "sent"), [(b"Content-Length: 2000", b"{"), (b"Transfer-Encoding: chunked", b"7d0\r\n" + b" " * 2000)]
)
def test_a_body_that_is_too_large_is_refused_before_it_ends(length: bytes, sent: bytes, tmp_path: Path) -> None:
    """However slowly it comes; and the client may send on until it has read why."""
    with slow_server(tmp_path, max_body=1000, body_timeout=0.2) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as slow:
            head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            slow.sendall(head + length + b"\r\n\r\n" + sent)
            answer = b"".join(iter(lambda: slow.recv(1000), b""))
            assert answer.startswith(b"HTTP/1.1 413")
            assert b"body_too_large" in answer
            assert b"connection: close" in answer.lower()
        assert client.idle()


def test_a_drain_ends_streams_and_refuses_what_is_new(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT, 0.01)
    with served(session, ServerSettings()) as client:
        stream = raw(client, max_tokens=50, stream=True)
        assert stream.recv(10)
        idle = client.connection()
        idle.request("GET", "/ready")
        assert idle.getresponse().read()
        client.app.state.service.sessions.thread.drain()  # type: ignore[attr-defined]
        idle.request("GET", "/ready")
        answer = idle.getresponse()
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["code"]) == (503, "shutting_down")
        assert "takes no new requests" in error["message"]
        status, headers, _ = client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})
        assert (status, "retry-after" in headers) == (503, True)
        idle.close()
        found = b""
        while b"[DONE]" not in found:
            found += stream.recv(10000)
        stream.close()
        assert decoder.steps


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT, 0.005)
    with served(session, ServerSettings(), drain_timeout=60.0) as client:
        stream = raw(client, max_tokens=1000, stream=True)
        found = stream.recv(10)
        for _ in range(2):
            client.loop.call_soon_threadsafe(client.listener.stop)  # type: ignore[attr-defined]
        while part := stream.recv(10000):
            found += part
        stream.close()
    assert b'"code":"shutting_down"' in found
    assert not client.listener.clean  # type: ignore[attr-defined]
    assert not any(thread.name == "specexport-engine" for thread in threading.enumerate())


def test_a_connection_without_a_request_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.serve.listen.HEAD_TIMEOUT", 0.1)
    with slow_server(tmp_path) as (client, _):
        for said in (b"", b"POST /tokenize HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=30) as slow:
                slow.sendall(said)
                assert slow.recv(1000) == b""
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as large:
            large.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n")
            assert b" 431 " in large.recv(1000)


def test_pages_may_read_that_their_head_is_too_large(tmp_path: Path) -> None:
    with slow_server(tmp_path, cors_origins=(PAGE,)) as (client, _):
        for origin in (PAGE, "https://other.example"):
            status, headers, _ = client.ask("GET", "/health", headers={"Origin": origin, "x": "y" * 40_000})
            allowed = PAGE if origin == PAGE else None
            assert (status, headers.get("access-control-allow-origin")) == (431, allowed)


def test_a_second_signal_ends_a_pass_that_hangs(tmp_path: Path) -> None:
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        stream = raw(client, max_tokens=2, stream=True)
        wait_for(lambda: client.metrics()["specexport:num_requests_running"] == 1)
        for _ in range(2):
            client.loop.call_soon_threadsafe(client.listener.stop)  # type: ignore[attr-defined]
        wait_for(lambda: client.listener.hung)  # type: ignore[attr-defined]
        decoder.gate.set()
        client.app.state.service.sessions.thread.stop()  # type: ignore[attr-defined]  # the command's ends with it
        stream.close()


HANGS = """
import sys
from pathlib import Path
from specexport.bundle import Contract
from specexport.cli.serve import _run
from specexport.serve import ServerSettings
from specexport.serve.listen import Listening
from support.serving import slow_session

contract = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
session, decoder = slow_session(Path(sys.argv[1]), contract)
decoder.gate.clear()
sys.exit(_run(session, ServerSettings(), Listening(port=0)))
"""


def test_the_command_ends_although_a_pass_hangs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    STARTED.append(process)
    assert process.stdout is not None
    client = Client(json.loads(process.stdout.readline())["port"])
    stream = raw(client, max_tokens=2, stream=True)
    wait_for(lambda: client.metrics()["specexport:num_requests_running"] == 1)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: client.ask("GET", "/ready")[0] == 503)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 1
    process.stdout.close()
    stream.close()


def test_no_more_requests_than_allowed_are_open(tmp_path: Path) -> None:
    with slow_server(tmp_path, max_requests=2, cors_origins=(PAGE,)) as (client, decoder):
        decoder.gate.clear()
        open_ones = [raw(client, max_tokens=2) for _ in range(2)]
        wait_for(lambda: running(client) + waiting(client) == 2)
        status, headers, body = client.ask("POST", "/tokenize", {"prompt": "a"}, {"Origin": PAGE})
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


def test_unknown_fields_may_be_refused(tmp_path: Path) -> None:
    with slow_server(tmp_path, strict_fields=True) as (client, _):
        for fields in ({"messages": MESSAGES, "weird": 1}, {"messages": [{**MESSAGES[0], "weird": 1}]}):
            status, _, body = client.ask("POST", "/v1/chat/completions", fields)
            assert (status, json.loads(body)["error"]["code"]) == (400, "unknown_parameter")
