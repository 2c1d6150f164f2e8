"""Servers for tests: the command in a process of its own, and an app behind a socket of this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI
from specexport.runtime.session import Session
from specexport.serve import ServerSettings, create_app
from specexport.serve.listen import Listener, Listening

from support.doubles import FakeDecoder, fake_session

PATIENCE = 60.0  # for what has to come; nothing waits so long where all is well


class Client:
    """Plain HTTP to a port, and the openai client. session, app, listener, loop: of `served`."""

    session: Session
    app: Any
    listener: Listener
    loop: asyncio.AbstractEventLoop

    def __init__(self, port: int) -> None:
        self.port = port

    def openai(self, key: str = "none", retries: int = 0) -> OpenAI:
        return OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=retries, timeout=PATIENCE)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """body: bytes as they are, anything else as JSON."""
        connection = self.connection()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        lines = ({} if data is None else {"Content-Type": "application/json"}) | (headers or {})
        try:
            connection.request(method, path, data, lines)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def chat(self, **fields: Any) -> dict[str, Any]:
        fields = {"messages": [{"role": "user", "content": "Hello"}], **fields}
        status, _, body = self.ask("POST", "/v1/chat/completions", fields)
        assert status == 200, body
        return json.loads(body)

    def refused(
        self, path: str, fields: Any, code: str | None = None, param: str | None = None, status: int = 400
    ) -> dict[str, Any]:
        """The error that a POST ends with. code, param: None for any."""
        found, _, body = self.ask("POST", path, fields)
        error: dict[str, Any] = json.loads(body)["error"]
        expected = (status, code or error["code"], param or error["param"])
        assert (found, error["code"], error["param"]) == expected, error
        assert len(error["message"].splitlines()) == 1
        return error

    def events(self, path: str, fields: dict[str, Any]) -> list[Any]:
        """The parsed chunks of a stream, which ends as it must."""
        status, headers, body = self.ask("POST", path, {**fields, "stream": True})
        assert status == 200, body
        assert headers["content-type"].startswith("text/event-stream")
        lines = [line for line in body.decode().split("\n\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def metrics(self) -> dict[str, float]:
        """By name; those that differ in labels other than the model are summed."""
        found: dict[str, float] = {}
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if match := re.match(r"(\S+?)(?:\{.*\})? (\S+)$", line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def idle(self) -> bool:
        found = self.metrics()
        return found["specexport:num_requests_running"] == found["specexport:num_requests_waiting"] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


STARTED: list[subprocess.Popen[str]] = []  # of all server processes, for who ends what a failed test leaves


class ServerProcess(Client):
    """`specexport serve` on a free port, or where `options` say; stderr goes to `log`."""

    def __init__(self, bundle: Path, log: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.log = log
        where = [] if "--uds" in options else ["--port", "0"]
        command = [sys.executable, "-m", "specexport", "serve", str(bundle), *where, *options]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | (env or {})
            )
        STARTED.append(self.process)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, log.read_text()
        super().__init__(json.loads(line).get("port", 0))

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        """It is killed where it still runs: a test that got to its end has ended it itself."""
        if self.process.poll() is None:
            self.process.kill()
            self.left()

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.left()

    def left(self) -> int:
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def served(
    session: Session, settings: ServerSettings | None = None, drain_timeout: float = 5.0, **where: Any
) -> Iterator[Client]:
    """An app behind a socket, on an event loop in a thread."""
    app = create_app(session, settings)
    ready, ports = threading.Event(), []

    def started(port: int) -> None:
        ports.append(port)
        ready.set()

    async def main() -> None:
        listener = Listener(app, Listening(port=0, drain_timeout=drain_timeout, **where))
        found.append((listener, asyncio.get_running_loop()))
        await listener.run(started)

    found: list[tuple[Listener, asyncio.AbstractEventLoop]] = []
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    client = Client(ports[0])
    client.session, client.app, client.listener, client.loop = session, app, *found[0]
    try:
        yield client
    finally:
        if thread.is_alive() and not client.listener._stops:
            found[0][1].call_soon_threadsafe(client.listener.stop)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"
        session.close()


class SlowDecoder(FakeDecoder):
    """Every pass takes `delay` seconds, and waits where `gate` is closed."""

    def __init__(self, *arguments: Any, delay: float = 0.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.delay = delay
        self.gate = threading.Event()
        self.gate.set()

    def step(self, tokens: Sequence[int], position: int) -> Any:
        assert self.gate.wait(PATIENCE)
        time.sleep(self.delay)
        return super().step(tokens, position)


CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def slow_session(root: Path, contract: Any, delay: float = 0.0) -> tuple[Session, SlowDecoder]:
    """A session without a draft over one slow decoder; plain rounds unless a request looks drafts up."""
    target = SlowDecoder(contract, delay=delay)
    return fake_session(root, target, None, chat_template=CHAT), target
