"""What grammars may cost a server: a compiler that hangs, masks that take too long, and what `/metrics` says."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specexport.bundle import Contract
from specexport.runtime.grammar import compiler as compiling
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.guided import Stopwatch
from specexport.serve import ServerSettings
from support.serving import Client, served, slow_session, wait_for

pytest.importorskip("llguidance")
CONTRACT = Contract(capacity=256, max_draft_tokens=4, prompt_chunk=8, precision="fp32")
CHAT = "/v1/chat/completions"
KNOWN = "[ab]{3}"
MASK_SECONDS = 1.0  # as the double of a stopwatch counts
MAX_SECONDS = 20.5


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    session, _ = slow_session(tmp_path, CONTRACT)
    with served(session, ServerSettings(grammar_timeout=MAX_SECONDS)) as found:
        yield found


@pytest.fixture
def long_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    def passed(watch: Stopwatch, *_: object) -> None:
        watch.seconds += MASK_SECONDS

    monkeypatch.setattr(Stopwatch, "__exit__", passed)


def ask(client: Client, regex: str | None, **fields: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    if regex is not None:
        fields["structured_outputs"] = {"regex": regex}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100, "temperature": 0, **fields}
    status, headers, answer = client.ask("POST", CHAT, body)
    return status, headers, json.loads(answer)


def metric(client: Client, name: str) -> float:
    return client.metrics().get(f"specexport:{name}", 0.0)


def test_while_a_compiler_hangs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is refused, and other new grammars at once; known ones and free text are served as ever."""
    assert ask(client, KNOWN)[0] == 200
    released, original = threading.Event(), GrammarCompiler._make

    def stuck(compiler: GrammarCompiler, grammar: Any) -> Any:
        assert released.wait(60)
        return original(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "_make", stuck)
    monkeypatch.setattr(compiling, "DEADLINE", 0.05)
    status, _, answer = ask(client, "slow")
    assert (status, answer["error"]["code"]) == (400, "schema_too_complex")
    for _ in range(3):
        status, headers, answer = ask(client, "other")
        assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "grammar_busy", "2")
    assert ask(client, KNOWN)[0] == ask(client, None)[0] == 200
    assert client.ask("GET", "/ready")[0] == client.ask("GET", "/health")[0] == 200
    service = client.app.state.service
    service.settings = replace(service.settings, stall_timeout=0.01)
    wait_for(lambda: client.ask("GET", "/health")[0] == client.ask("GET", "/ready")[0] == 503)
    assert "a grammar" in json.loads(client.ask("GET", "/health")[2])["error"]["message"]
    monkeypatch.setattr(compiling, "DEADLINE", 60.0)
    released.set()
    wait_for(lambda: client.ask("GET", "/health")[0] == 200)
    wait_for(lambda: ask(client, "other")[0] == 200)
    assert ask(client, "other")[2]["choices"][0]["message"]["content"] == "other"
    assert client.idle()


def test_a_grammar_is_compiled_once_and_never_by_the_engines_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "KEPT", 0)  # as if many others came while it waits
    asked, original = [], GrammarCompiler._in_time

    def noted(compiler: GrammarCompiler, kind: str, task: Any) -> Any:
        asked.append(threading.current_thread().name)
        return original(compiler, kind, task)

    monkeypatch.setattr(GrammarCompiler, "_in_time", noted)
    assert ask(client, "once")[2]["choices"][0]["message"]["content"] == "once"
    assert len(asked) == 1
    assert "engine" not in asked[0]


@pytest.mark.parametrize("there", [True, False])
def test_the_command_makes_the_tables_of_the_tokenizer_before_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    session, _ = slow_session(tmp_path, CONTRACT)
    command, made = import_module("specexport.cli.serve"), []
    monkeypatch.setattr("specexport.runtime.load.load", lambda *_, **options: session)
    monkeypatch.setattr(command, "_log_to_stderr", lambda: None)
    monkeypatch.setattr(command, "_run", lambda *_: made.append("_tokenizer" in vars(session._grammars)) or 0)
    if not there:
        monkeypatch.setitem(sys.modules, "llguidance", None)
    result = CliRunner().invoke(command.serve, [str(tmp_path)])
    assert (result.exit_code, made) == (0, [there]), result.output


def test_masks_that_take_too_long_end_in_an_error(client: Client, long_masks: None) -> None:
    status, _, answer = ask(client, "[ab]{90}")
    assert (status, answer["error"]["code"]) == (400, "grammar_failed")
    assert f"{MAX_SECONDS:g} s" in answer["error"]["message"]
    assert client.idle()
    status, _, answer = ask(client, KNOWN)  # counted anew
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "stop")


def test_and_in_the_middle_of_a_stream_the_error_is_its_end(client: Client, long_masks: None) -> None:
    fields = {"structured_outputs": {"regex": "[ab]{90}"}, "stream": True, "max_tokens": 100}
    status, _, body = client.ask("POST", CHAT, {"messages": [{"role": "user", "content": "Hello"}], **fields})
    events = body.decode().strip().split("\n\n")
    assert status == 200
    assert len(events) > 3
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "grammar_failed"
    assert not any('"finish_reason":"' in event for event in events)
    assert metric(client, "request_success_total") == 1  # as an error


def test_what_grammars_took_is_counted_by_request(client: Client, long_masks: None) -> None:
    ask(client, None)
    assert metric(client, "grammar_compile_seconds_count") == metric(client, "grammar_mask_seconds_count") == 0
    ask(client, KNOWN)
    once = metric(client, "grammar_mask_seconds_sum")
    assert once >= 3 * MASK_SECONDS
    ask(client, KNOWN)
    assert metric(client, "grammar_mask_seconds_sum") >= once + 3 * MASK_SECONDS
    ask(client, "(")
    assert metric(client, "grammar_compile_seconds_count") == 3  # a refused one too
    assert metric(client, "grammar_mask_seconds_count") == 2
