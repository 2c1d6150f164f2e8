"""Connections: how many, how long each may keep its request to itself, whom they are from, and their end."""

from __future__ import annotations

import asyncio
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import EngineError
from specexport.runtime.session import Session
from specexport.serve import ServerSettings
from specexport.serve.http.accepting import connections_of
from specexport.serve.http.exchange import Exchange
from support.refusals import refused
from support.serving import Client, served, slow_session, wait_for

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
CHAT = "/v1/chat/completions"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return slow_session(tmp_path, CONTRACT)[0]


def connected(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=30)


@contextmanager
def several(client: Client, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connected(client)) for _ in range(count)]


def question(line: str = "") -> bytes:
    body = b'{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{line}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read(connection: socket.socket) -> bytes:
    """To the end, however the other side makes it."""
    found = b""
    try:
        while part := connection.recv(10_000):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(("trusted", "key"), [(False, "127.0.0.1"), (True, "192.0.2.7")])
def test_nobody_says_who_asks_unless_that_is_wanted(session: Session, trusted: bool, key: str) -> None:
    keys: list[str] = []
    with served(session, trust_forwarded=trusted) as client:
        sessions = client.app.state.service.sessions  # type: ignore[attr-defined]
        submit = sessions.submit
        sessions.submit = lambda *asked, **more: (keys.append(more["key"]), submit(*asked, **more))[1]
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        assert client.ask("POST", CHAT, fields, {"X-Forwarded-For": "192.0.2.7"})[0] == 200
    assert keys == [key]


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(session: Session) -> None:
    with served(session) as client, connected(client) as kept:
        kept.sendall(HEALTH)
        assert kept.recv(100)
        listener = client.listener  # type: ignore[attr-defined]
        [connection] = listener._server.server_state.connections
        its_socket = connection.transport.get_extra_info("socket")
        assert its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_half_of_a_body_does_not_hold_the_end_up(session: Session) -> None:
    with served(session, ServerSettings(body_timeout=1000), drain_timeout=0.1) as client:
        listener = client.listener  # type: ignore[attr-defined]
        with connected(client) as slow:
            slow.sendall(HALF)
            wait_for(lambda: any(one.busy for one in listener._server.server_state.connections))
            client.loop.call_soon_threadsafe(listener.stop)  # type: ignore[attr-defined]
            assert read(slow) == b""
    assert not listener.clean


def test_a_later_head_has_its_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the time of the first head ended while its request was open."""
    monkeypatch.setattr("specexport.serve.http.connection.HEAD_TIMEOUT", 0.1)
    session, decoder = slow_session(tmp_path, CONTRACT)
    decoder.gate.clear()
    with served(session) as client, connected(client) as slow:
        slow.sendall(question() + HEALTH[:20])
        threading.Timer(0.5, decoder.gate.set).start()
        assert read(slow).count(b"HTTP/1.1 200") == 1


def test_a_later_request_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.serve.http.connection.HEAD_TIMEOUT", 0.2)
    session, decoder = slow_session(tmp_path, CONTRACT)
    decoder.gate.clear()
    with served(session) as client, connected(client) as patient:
        patient.sendall(HEALTH + question("Connection: close\r\n"))
        threading.Timer(0.6, decoder.gate.set).start()
        assert read(patient).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("said", [b"", HEALTH[:9], HEALTH], ids=["idle", "half a head", "kept alive"])
def test_a_probe_gets_the_place_of_who_waits_for_nothing(session: Session, said: bytes) -> None:
    most = connections_of(1)
    with served(session, ServerSettings(max_requests=1)) as client, several(client, most) as held:
        connections: set[Any] = client.listener._server.server_state.connections  # type: ignore[attr-defined]
        first, *others = held
        for one in held:
            one.sendall(said)
            while said == HEALTH and not one.recv(1000).endswith(b"}"):
                pass
        wait_for(lambda: len(connections) == most)
        for path in ("/health", "/ready", "/health"):
            assert client.ask("GET", path)[0] == 200
        assert read(first) == b""
        assert others[-1].send(HEALTH[len(said) :] or HEALTH)
        assert others[-1].recv(12) == b"HTTP/1.1 200"


def test_a_request_keeps_its_place_and_one_too_many_gives_its_own_up(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT)
    decoder.gate.clear()
    with served(session, ServerSettings(max_requests=1)) as client, connected(client) as asking:
        asking.sendall(question("Connection: close\r\n"))
        wait_for(lambda: client.metrics()["specexport:num_requests_running"] == 1)
        with several(client, 2 * connections_of(1)), connected(client) as late:
            late.sendall(question() * 3)
            refusal = read(late)
        assert refusal.count(b"HTTP/1.1 429") == 1
        assert b"connection: close" in refusal.lower()
        assert client.ask("GET", "/health")[0] == 200
        decoder.gate.set()
        assert read(asking).startswith(b"HTTP/1.1 200")


def test_slow_bodies_keep_no_probe_out(session: Session) -> None:
    with served(session, ServerSettings(max_requests=1, body_timeout=1000), drain_timeout=0.1) as client:
        with several(client, 2 * connections_of(1)) as held:
            for one in held:
                one.sendall(HALF)
            assert [client.ask("GET", path)[0] for path in ("/health", "/ready")] == [200, 200]
            assert client.ask("POST", "/tokenize", {"prompt": "a"})[0] == 429
        wait_for(lambda: client.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200)


def test_answers_that_nobody_reads_keep_no_probe_out(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they count as requests, since those about the server's state are never refused."""
    free, answer = threading.Event(), Exchange.answer

    async def stuck(self: Exchange, *arguments: Any) -> None:
        while self.path == "/metrics" and not free.is_set():
            await asyncio.sleep(0.01)
        await answer(self, *arguments)

    monkeypatch.setattr(Exchange, "answer", stuck)
    with served(session, ServerSettings(max_requests=1)) as client, several(client, connections_of(1)) as held:
        connections: set[Any] = client.listener._server.server_state.connections  # type: ignore[attr-defined]
        try:
            for one in held:
                one.sendall(HEALTH.replace(b"health", b"metrics"))
            wait_for(lambda: sum(one.busy for one in connections) == len(held))
            assert client.ask("GET", "/health")[0] == 200
            assert client.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200
        finally:
            free.set()


def test_a_unix_socket_is_its_users_own(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):  # the second server finds what the first one left
        with served(slow_session(tmp_path, CONTRACT)[0], uds=path), socket.socket(socket.AF_UNIX) as connection:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            connection.connect(str(path))
            connection.sendall(HEALTH)
            assert connection.recv(12) == b"HTTP/1.1 200"
    from specexport.serve.listen import _bound_path

    (tmp_path / "file").write_text("mine")
    with refused(EngineError, "--uds", code="cannot_listen"):
        _bound_path(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_name_of_a_host() -> None:
    from specexport.serve.listen import _bound

    with refused(EngineError, "--host", code="cannot_listen"):
        _bound("é" * 70, 0)


def test_host_names_have_no_case(session: Session) -> None:
    with served(session, ServerSettings(allowed_hosts=("My.Example",))) as client:
        for host in ("my.example", "MY.EXAMPLE:80", "My.Example"):
            assert client.ask("GET", "/version", headers={"Host": host})[0] == 200
        assert client.ask("GET", "/version", headers={"Host": "other.example"})[0] == 403


def test_pages_of_allowed_origins_may_read_refusals(session: Session) -> None:
    origin, settings = "https://app.example", ServerSettings(api_keys=("k",), cors_origins=("https://app.example",))
    with served(session, settings) as client:
        wanted = {"Origin": origin, "Access-Control-Request-Headers": "authorization, x-stainless-lang"}
        status, headers, _ = client.ask("OPTIONS", CHAT, headers=wanted)
        assert (status, headers["access-control-allow-headers"]) == (204, "authorization, x-stainless-lang")
        assert "Access-Control-Request-Headers" in headers["vary"]
        for path, key, expected in (("/version", "k", 200), ("/version", "wrong", 401), ("/nothing", "k", 404)):
            status, headers, _ = client.ask("GET", path, headers={"Origin": origin, "x-api-key": key})
            assert (status, headers["access-control-allow-origin"]) == (expected, origin)
            exposed = headers["access-control-expose-headers"].split(", ")
            assert {"retry-after", "x-request-id", "x-specexport-ignored"} <= set(exposed)
        status, headers, _ = client.ask("GET", "/version", headers={"Origin": "https://evil.example", "x-api-key": "k"})
        assert status == 403
        assert not any(name.startswith("access-control") for name in headers)
