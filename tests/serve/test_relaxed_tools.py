"""Tools whose schemas cannot be kept and need not be: what is kept, what it costs, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from specexport.runtime.grammar import compiler as compiling
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.limits import check_length
from specexport.runtime.tools import bounds
from specexport.serve.http import exchange
from specexport.serve.routes import generate
from support import parameter_templates, tool_templates
from support.scripted import scripted_session, tell
from support.serving import Client, served, wait_for

pytest.importorskip("llguidance")
CHAT = "/v1/chat/completions"
RELAXED = "x-specexport-relaxed"
UNIQUE: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


@pytest.fixture(scope="module", params=["json", "parameters"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a form with arguments as JSON, and of one with arguments one by one."""
    root, atoms = tmp_path_factory.mktemp(request.param), ("<tool_call>", "</tool_call>", "</parameter>")
    if request.param == "json":
        session = scripted_session(root, tool_templates.QWEN, "assistant\n", atoms=atoms, capacity=8192)
    else:
        session = scripted_session(root, parameter_templates.QWEN_CODER, "Hello<A>", atoms=atoms, capacity=8192)
    with served(session) as found:
        found.form = request.param  # type: ignore[attr-defined]
        yield found


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    original = GrammarCompiler._make
    monkeypatch.setattr(GrammarCompiler, "_make", lambda self, one: found.append(one.text) or original(self, one))
    return found


def tool(name: str, strict: bool = False, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


def ask(client: Client, tools: list[Any], **fields: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    hello = [{"role": "user", "content": "Hello"}]
    body = {"messages": hello, "tools": tools, "temperature": 0, "max_tokens": 1, **fields}
    status, headers, answer = client.ask("POST", CHAT, body)
    return status, headers, json.loads(answer)


def test_the_compiler_finds_out_once_what_cannot_be_kept(client: Client, compiled: list[str]) -> None:
    tools = [tool(f"f{place}", a=UNIQUE, b={"const": place}) for place in range(12)]
    tools.append(tool("good", a={"type": "integer"}))
    status, headers, answer = ask(client, tools)
    assert status == 200, answer
    assert headers[RELAXED] == (", ".join(f"f{place}" for place in range(12)))
    assert len(compiled) == 12 + 1
    compiled.clear()
    assert ask(client, tools)[1][RELAXED] == headers[RELAXED]
    assert compiled == []


def test_what_can_be_kept_of_a_tool_is(client: Client) -> None:
    if client.form == "json":  # type: ignore[attr-defined]
        pytest.skip("its arguments are any object")
    call = "<tool_call>\n<function=f>\n<parameter=code>\n12\n</parameter>\n<parameter=n>\n{}\n</parameter>\n"
    call += "</function>\n</tool_call>"
    tools = [tool("f", code={"type": "string", "minLength": 9}, n={"type": "integer", "minimum": 3})]
    for wanted, given in (("5", {"code": "12", "n": 5}), ("2", None)):
        tell(client.session, call.format(wanted))
        status, headers, answer = ask(client, tools, max_tokens=200)
        assert (status, headers[RELAXED]) == (200, "f")
        arguments = answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        assert given is None or json.loads(arguments) == given
        assert not arguments.endswith('"n": 2}')


def test_the_longest_are_relaxed_where_all_together_are_too_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "check_length", partial(check_length, longest=3300))
    sizes = {"a": 800, "b": 1100, "c": 700, "d": 1000}
    tools = [tool(name, x={"enum": ["x" * size]}, **{name: {}}) for name, size in sizes.items()]
    status, headers, _ = ask(client, tools)
    assert (status, headers[RELAXED]) == (200, "b")
    tools[1]["function"]["strict"] = True
    status, headers, _ = ask(client, tools)
    assert (status, headers[RELAXED]) == (200, "d")
    tools[3]["function"]["strict"] = True
    status, headers, _ = ask(client, tools)
    assert (status, headers[RELAXED]) == (200, "a")
    for one in tools:
        one["function"]["strict"] = True
    status, _, answer = ask(client, tools)
    assert (status, answer["error"]["param"]) == (400, "tools")


def test_a_tool_that_compiles_for_too_long_is_relaxed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all others, as none is to blame; who asks meanwhile is told to come again."""
    released, original, clock = threading.Event(), GrammarCompiler._make, [0.0]

    def slow(self: GrammarCompiler, grammar: Any) -> Any:
        if '"slow"' in grammar.text:
            clock[0] += 100.0
            assert released.wait(60)
        return original(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_make", slow)
    monkeypatch.setattr(compiling, "thread_time", lambda: clock[0])
    monkeypatch.setattr(compiling, "DEADLINE", 0.2)
    tools = [tool("f", a={"type": "object", "properties": {"slow": {"type": "integer"}}}), tool("g")]
    status, headers, answer = ask(client, tools)
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "grammar_busy", "2")
    monkeypatch.setattr(compiling, "DEADLINE", 60.0)
    released.set()
    wait_for(lambda: ask(client, tools)[0] == 200)
    assert ask(client, tools)[1][RELAXED] == "f, g"


def test_references_to_references_and_no_event_loop_waits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    original = generate.calls_of

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert client.ask("GET", "/health")[0] == 200  # which the event loop answers meanwhile
        return original(*arguments)

    monkeypatch.setattr(generate, "calls_of", noted)
    defs: dict[str, Any] = {f"A{n}": {"anyOf": [{"$ref": f"#/$defs/A{n + 1}"}] * 2} for n in range(100)}
    one = tool("f", a={"$ref": "#/$defs/A0"})
    one["function"]["parameters"]["$defs"] = defs | {"A100": {"type": "integer"}}
    assert ask(client, [one])[0] in (200, 400)
    one["function"]["parameters"]["$defs"] = {"A0": {"anyOf": [{"$ref": "#/$defs/A0"}]}}
    assert ask(client, [one])[0] == 200
    assert len(threads) == 2
    assert all(name.startswith("specexport-compile") for name in threads)
    assert client.idle()


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_no_schema_is_refused(client: Client, strict: bool) -> None:
    wrong: list[dict[str, Any]] = [
        {"properties": ["a"]},
        {"properties": {"a": {}}, "required": [{"a": 1}]},
        {"required": 5},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": [1]},
        {"properties": {"a": {"type": [{}]}}},
    ]
    for schema in wrong:
        one = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
        status, _, answer = ask(client, [tool("ok"), one])
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "invalid_schema", "tools[1].function.parameters")
        status, _, body = client.ask(
            "POST", "/tokenize", {"messages": [{"role": "user", "content": "x"}], "tools": [one]}
        )
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_schema")


def test_a_stream_pings_while_nothing_can_be_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds come, but what they write may be a text or JSON until it is whole."""
    if client.form == "json":  # type: ignore[attr-defined]
        pytest.skip("its arguments are JSON, which comes as it is written")
    clock = count(0.0, 20.0)  # every look at it is later than the interval of pings
    monkeypatch.setattr(exchange, "monotonic", lambda: next(clock))
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    tell(client.session, call.format("x" * 40))
    fields = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 200, "stream": True}
    fields |= {"tools": [tool("f", a={})], "specexport": {"num_draft_tokens": 0}}
    status, _, body = client.ask("POST", CHAT, fields)
    assert status == 200
    assert body.count(b": ping\n\n") >= 40
