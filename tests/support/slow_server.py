"""A server whose double decodes slowly, or not before its gate opens; requests whose answers are nobody's yet."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specexport.bundle import Contract
from specexport.runtime.session import Session
from specexport.serve import ServerSettings

from support.serving import Client, SlowDecoder, served, slow_session, wait_for

CONTRACT = Contract(capacity=1024, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
MESSAGES = [{"role": "user", "content": "Hello"}]


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


def leave_while_it_runs(client: Client, session: Session, decoder: SlowDecoder, **fields: Any) -> None:
    """Send a completion, leave once it runs, let the decoder go on, and wait until the server is idle."""
    decoder.gate.clear()
    connection = client.connection()
    connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
    wait_for(lambda: session._open_stream is not None)  # one that still waits leaves the queue at once
    connection.close()
    wait_for(lambda: session._open_stream is not None and session._open_stream._cancellation.requested)
    decoder.gate.set()
    wait_for(client.idle)


def running(client: Client) -> int:
    return int(client.metrics()["specexport:num_requests_running"])


def waiting(client: Client) -> int:
    return int(client.metrics()["specexport:num_requests_waiting"])
