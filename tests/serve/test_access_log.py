"""What the access log says of requests that were refused or left."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.serving import wait_for
from support.slow_server import MESSAGES, raw, running, slow_server, waiting


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Those of requests that generate."""
    found = [json.loads(record.message) for record in caplog.records if record.name == "specexport.access"]
    return [row for row in found if row["method"] == "POST"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_says_why_a_request_was_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, "specexport.access")
    with slow_server(tmp_path, max_queue=1) as (client, decoder):
        sessions = client.app.state.service.sessions
        patient = sessions.queue_timeout

        def ask(path: str = "/v1/chat/completions", **fields: Any) -> int:
            return client.ask("POST", path, {"messages": MESSAGES, "stream": stream, **fields})[0]

        decoder.gate.clear()
        first = raw(client, max_tokens=2)
        wait_for(lambda: running(client) == 1)
        sessions.queue_timeout = 0.2
        sessions.thread.starts_in = lambda job=None: 0.0
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


def test_the_log_tells_an_engine_that_fails_from_a_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specexport.access")
    with slow_server(tmp_path) as (client, decoder):
        good = decoder.logits_after
        decoder.logits_after = lambda context: good(context) * float("nan")  # type: ignore[method-assign]
        assert client.ask("POST", "/v1/chat/completions", {"messages": MESSAGES})[0] == 500
        counted = client.metrics()
        names = ("request_rejected_total", "request_success_total")  # it is in one of them
        assert [counted.get(f"specexport:{name}", 0) for name in names] == [1, 0]
    (row,) = access_lines(caplog)
    assert (row["status"], row["error"], row["finish_reason"]) == (500, "engine_error", "error")


def test_the_log_says_how_much_of_a_prompt_was_cached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specexport.access")
    with slow_server(tmp_path) as (client, _):
        used = [client.chat(messages=MESSAGES, max_tokens=2)["usage"] for _ in range(2)]
    rows = access_lines(caplog)
    assert [row["cached_tokens"] for row in rows] == [usage["prompt_tokens_details"]["cached_tokens"] for usage in used]
    assert rows[0]["cached_tokens"] < rows[1]["cached_tokens"] < rows[1]["prompt_tokens"]
    assert all(0 < row["first_token_seconds"] <= row["seconds"] for row in rows)
