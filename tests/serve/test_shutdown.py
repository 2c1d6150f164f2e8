"""A drain, and signals while a pass runs or hangs, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RLIM_INFINITY
from typing import Any

import pytest
from specexport.cli.serve import _run
from specexport.serve import ServerSettings
from specexport.serve.listen import Listening, _allow_many_connections
from support.serving import PATIENCE, STARTED, Client, served, slow_session, wait_for
from support.slow_server import CONTRACT, MESSAGES, raw, slow_server


def test_a_drain_ends_streams_and_refuses_what_is_new(tmp_path: Path) -> None:
    session, decoder = slow_session(tmp_path, CONTRACT, 0.01)
    with served(session, ServerSettings()) as client:
        stream = raw(client, max_tokens=50, stream=True)
        assert stream.recv(10)
        idle = client.connection()
        idle.request("GET", "/ready")
        assert idle.getresponse().read()
        client.app.state.service.sessions.thread.drain()
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("patience", [PATIENCE, 0.1])
def test_a_drain_waits_for_all_answers_of_a_request(stream: bool, patience: float, tmp_path: Path) -> None:
    """Each is a job of its own. What is not complete in time ends with an error, between two of them too."""
    fields = {"messages": MESSAGES, "n": 3, "max_tokens": 40, "stream": stream}
    with slow_server(tmp_path, 0.005) as (client, _), ThreadPoolExecutor(1) as pool:
        sessions = client.app.state.service.sessions
        asked = pool.submit(client.ask, "POST", "/v1/chat/completions", fields)
        wait_for(lambda: sessions.thread.running)
        complete = asyncio.run_coroutine_threadsafe(sessions.drain(patience), client.loop).result()
        status, _, body = asked.result()
        assert complete == (patience == PATIENCE)
        assert body.count(b'"finish_reason":"length"') == 3 * complete
        assert (b"send the request again" in body) != complete
        assert (status == 200) == (complete or stream)


async def closed_as_in_3_12(server: Any) -> None:
    """`asyncio.Server.wait_closed` of Python 3.12.1 and later, which waits for every open connection."""
    while server.is_serving() or server._active_count:
        await asyncio.sleep(0.01)


def test_a_second_signal_ends_a_pass_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.base_events.Server, "wait_closed", closed_as_in_3_12)
    with slow_server(tmp_path) as (client, decoder):
        decoder.gate.clear()
        stream = raw(client, max_tokens=2, stream=True)
        wait_for(lambda: client.metrics()["specexport:num_requests_running"] == 1)
        for _ in range(2):
            client.loop.call_soon_threadsafe(client.listener.stop)
        wait_for(lambda: client.listener.hung)
        decoder.gate.set()
        client.app.state.service.sessions.thread.stop()  # the command's ends with it
        stream.close()


@pytest.mark.parametrize(
    ("hard", "largest", "expected"), [(4096, 4096, 4096), (RLIM_INFINITY, 10_240, 10_240), (RLIM_INFINITY, 5000, 256)]
)
def test_as_many_open_files_as_the_system_grants(
    hard: int, largest: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = 256

    def limit(_: int, limits: tuple[int, int]) -> None:
        nonlocal found
        if not 0 <= limits[0] <= largest:
            raise ValueError("current limit exceeds maximum limit")
        found = limits[0]

    monkeypatch.setattr("resource.getrlimit", lambda _: (256, hard))
    monkeypatch.setattr("resource.setrlimit", limit)
    _allow_many_connections()
    assert found == expected


@pytest.mark.parametrize("clean", [True, False])
def test_answers_that_were_lost_are_the_exit_code(clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        hung = False

        def __init__(self, app: Any, where: Listening) -> None:
            self.app, self.clean = app, clean

        async def run(self, started: object) -> None:
            """It was stopped at once."""
            await self.app.state.service.sessions.close()  # other tests wait for its thread's end

        def stop(self) -> None:
            """For signals."""

    monkeypatch.setattr("specexport.serve.listen.Listener", Ended)
    session, _ = slow_session(tmp_path, CONTRACT)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with session:
        assert _run(session, ServerSettings(), Listening()) == (0 if clean else 1)
    for number, handler in before.items():
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.signal(number, handler)


HANGS = """
import sys
from concurrent.futures import ThreadPoolExecutor
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


def refuses(client: Client) -> bool:
    """It drains: a request is answered so, or finds the socket closed already."""
    try:
        return client.ask("GET", "/ready")[0] == 503
    except ConnectionError:
        return True


@pytest.mark.slow
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
    wait_for(lambda: refuses(client))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 1
    process.stdout.close()
    stream.close()
