"""Bodies and heads that are too large or come too slowly, over real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.slow_server import slow_server

PAGE = "https://app.example"


def test_a_slow_body_and_a_large_one(tmp_path: Path) -> None:
    with slow_server(tmp_path, body_timeout=0.1, max_body=1000) as (client, _):
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as slow:
            slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 100\r\n\r\n{")
            assert b"408" in slow.recv(1000)
    with slow_server(tmp_path / "large", max_body=1000) as (client, _):
        client.refused("/tokenize", {"prompt": "x" * 2000}, "body_too_large", status=413)
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
