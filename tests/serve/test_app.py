"""The app in process: where it may be mounted, what it leaves alone, and what it says without a template."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Contract
from specexport.errors import ParameterError
from specexport.serve import AsyncSession, ServerSettings, create_app
from starlette.applications import Starlette
from starlette.routing import Mount
from support.doubles import FakeDecoder, fake_session
from support.refusals import refused
from support.serving import served, slow_session

CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")


async def ask(
    app: Any, method: str, path: str, headers: dict[str, str], body: Any = None, most: int = 1000
) -> tuple[int, Any]:
    """One request to an ASGI app, without a server. most: messages that its reader takes, before it stops reading."""
    lines = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    lines += [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = dict(type="http", method=method, path=path, headers=lines, root_path="", query_string=b"", scheme="http")
    scope |= dict(server=("localhost", 80), client=("127.0.0.1", 1), http_version="1.1")
    asked = [{"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}]
    sent: list[dict[str, Any]] = []
    forever = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not asked:
            await forever.wait()
        return asked.pop()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > most:
            await forever.wait()

    await app(scope, receive, send)
    whole = b"".join(part["body"] for part in sent[1:])
    return sent[0]["status"], json.loads(whole) if len(sent) <= most else whole


def test_the_drafter_of_requests_that_name_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSession(session) as sessions:
            app = create_app(sessions, ServerSettings(drafter="model"))
            for own in ({}, {"specexport": {"drafter": "ngram"}}):
                fields = {"prompt": "ab ab ab ab", "max_tokens": 12, "temperature": 0, "stop_token_ids": []}
                assert (await ask(app, "POST", "/v1/completions", {}, fields | own))[0] == 200
            counted = app.state.service.metrics.exposition().decode()
            for name in ("draft", "ngram"):
                assert f'num_drafts_by_drafter_total{{drafter="{name}"' in counted
            with refused(ParameterError, "oracle", field="drafter"):
                create_app(sessions, ServerSettings(drafter="oracle"))

    session = fake_session(tmp_path, FakeDecoder(CONTRACT), FakeDecoder(CONTRACT))
    asyncio.run(main())


def test_settings_of_the_queue_are_no_settings_of_an_app_over_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSession(session) as sessions:
            with refused(ParameterError, "AsyncSession", field="queue_timeout"):
                create_app(sessions, ServerSettings(queue_timeout=1))

    session, _ = slow_session(tmp_path, CONTRACT)
    asyncio.run(main())


@pytest.mark.parametrize("make", [AsyncSession, create_app])
def test_a_path_is_no_session(make: Any) -> None:
    with refused(ParameterError, "my.bundle", field="session"):
        make("my.bundle")


def test_more_new_tokens_than_the_bundle_holds(tmp_path: Path) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    with session:
        create_app(session, ServerSettings(max_tokens=256))
        with refused(ParameterError, 257, 256, field="max_tokens"):
            create_app(session, ServerSettings(max_tokens=257))


@pytest.mark.parametrize("settings", [{}, {"max_tokens": 5}])
def test_settings_are_no_dict(tmp_path: Path, settings: Any) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    with session, refused(ParameterError, field="settings"):
        create_app(session, settings)


def test_mounted_in_another_app_with_two_bundles(tmp_path: Path) -> None:
    async def main() -> None:
        (first, _), (second, _) = (slow_session(tmp_path / name, CONTRACT) for name in "ab")
        settings = [ServerSettings(model=name, api_keys=("key",)) for name in ("first", "second")]
        async with AsyncSession(first) as one, AsyncSession(second) as two:
            app = Starlette(
                routes=[Mount("/a", create_app(one, settings[0])), Mount("/b", create_app(two, settings[1]))]
            )
            assert (await ask(app, "GET", "/a/health", {}))[0] == 200
            assert (await ask(app, "GET", "/a/v1/models", {}))[0] == 401
            for path, name in (("/a", "first"), ("/b", "second")):
                fields = {"prompt": "Hello", "max_tokens": 3}
                key = {"x-api-key": "key"}
                assert (await ask(app, "GET", f"{path}/v1/models", key))[1]["data"][0]["id"] == name
                status, answer = await ask(app, "POST", f"{path}/v1/completions", key, fields)
                assert (status, answer["model"], answer["usage"]["completion_tokens"]) == (200, name, 3)
        first.close()
        second.close()

    asyncio.run(main())


def test_a_reader_that_takes_nothing_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        session, decoder = slow_session(tmp_path, CONTRACT, delay=0.002)
        async with AsyncSession(session) as sessions:
            app = create_app(sessions, ServerSettings(send_timeout=0.05))
            fields = {"prompt": "Hello", "max_tokens": 200, "stream": True}
            asked = ask(app, "POST", "/v1/completions", {}, fields, most=4)
            status, told = await asyncio.wait_for(asked, 30)
            assert status == 200
            assert b"[DONE]" not in told
            while sessions.thread.running:
                await asyncio.sleep(0.002)
            assert len(decoder.steps) < 150
        session.close()

    asyncio.run(main())


def test_it_leaves_signals_and_logging_alone_and_starts_no_thread(tmp_path: Path) -> None:
    handlers, level = list(logging.getLogger().handlers), logging.getLogger("specexport").level
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    session, _ = slow_session(tmp_path, CONTRACT)
    create_app(session)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger("specexport").level == level
    assert not any(thread.name == "specexport-engine" for thread in threading.enumerate())
    session.close()


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with served(fake_session(tmp_path, FakeDecoder(), None)) as client:
        messages = [{"role": "user", "content": "Hello"}]
        for path in ("/v1/chat/completions", "/tokenize"):
            client.refused(path, {"messages": messages}, "unsupported_parameter", "messages")
        assert client.ask("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200


def test_an_error_of_the_engine_names_no_file(tmp_path: Path) -> None:
    target = FakeDecoder()
    target.logits_after = lambda context: target._table(b"", b"") * float("nan")  # type: ignore[assignment,method-assign]
    with served(fake_session(tmp_path, target, None)) as client:
        status, _, body = client.ask("POST", "/v1/completions", {"prompt": "Hello"})
        assert status == 500
        assert str(tmp_path) not in body.decode()
        assert "graphs" not in body.decode()


@pytest.mark.parametrize("missing", ["starlette", "msgspec", "prometheus_client"])
def test_what_is_missing_is_said_in_one_line(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
try:
    from specexport.serve import create_app
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        f"the package {missing} is not installed; install it with: pip install 'specexport[serve]'\n"
    )
