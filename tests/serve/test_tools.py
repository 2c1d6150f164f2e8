"""Tools over the API: what is called, how it streams, what a history may hold, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import specexport
from specexport.runtime.text.chat_template import ChatTemplate
from support import parameter_templates
from support import tool_templates as templates
from support.doubles import FakeDecoder, fake_session
from support.scripted import scripted_session, tell
from support.serving import Client, served

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo", "Åre"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"maxProperties": 0}
SCHEMAS = {"weather": CITY, "now": EMPTY}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tiny(served_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The tiny pair with the template of a model that calls tools."""
    root = with_template(served_bundle, tmp_path_factory.mktemp("tools") / "tiny.bundle", "chat_template")
    with served(specexport.load(root)) as client:
        yield client


def with_template(bundle: Path, root: Path, role: str) -> Path:
    """A copy of the bundle whose template in that role is one that calls tools."""
    shutil.copytree(bundle, root)
    place, data = f"tokenizer/{role}.jinja", templates.QWEN.encode()
    (root / place).write_bytes(data)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["files"][place] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["text"][role] = place
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


def test_a_template_of_its_own_for_tools(tiny: Client, served_bundle: Path, tmp_path: Path) -> None:
    """Calls in a history are written by it too, since the other one may leave them out."""
    session = specexport.load(with_template(served_bundle, tmp_path / "apart.bundle", "tools_template"))
    with served(session) as apart:
        past = {"messages": history(call(), tool_call_id="c1")}
        for fields in ({"tools": TOOLS, "tool_choice": "required"}, past, past | {"tools": TOOLS}):
            asked = {"messages": HELLO, "temperature": 0, "max_tokens": 4, **fields}
            ours, theirs = apart.chat(**asked), tiny.chat(**asked)
            assert bare(ours["choices"][0]["message"]) == bare(theirs["choices"][0]["message"])
            assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            ours, theirs = (one.chat(messages=HELLO, max_tokens=1, **fields)["usage"] for one in (apart, tiny))
            assert ours["prompt_tokens"] == len(session.encode(HELLO)) != theirs["prompt_tokens"]
        assert called(ask(apart, messages=HELLO, tool_choice="required", parallel_tool_calls=False))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A model that writes what it is told; `<tool_call>`, `<think>` and their ends are tokens, as Qwen's."""
    atoms = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    session = scripted_session(tmp_path_factory.mktemp("qwen"), templates.QWEN, "assistant\n", atoms=atoms)
    with served(session) as client:
        yield client


def ask(client: Client, text: str | None = None, **fields: Any) -> dict[str, Any]:
    """The first choice. text: what the model writes."""
    if text is not None:
        tell(client.session, text)
    fields = {"tools": TOOLS, "temperature": 0, "max_tokens": 300, **fields}
    found: dict[str, Any] = client.chat(**fields)["choices"][0]
    return found


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """Without ids, which are new for each answer."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    assert all(set(call) == {"id", "type", "function"} for call in message.get("tool_calls", []))
    return {"content": message["content"] or "", "calls": calls}


def streamed(client: Client, **fields: Any) -> dict[str, Any]:
    """The message that the deltas of a stream join to, checked against the shape of OpenAI's, and why it ended."""
    fields = {"messages": HELLO, "tools": TOOLS, "temperature": 0, "max_tokens": 300, **fields}
    chunks = client.events(CHAT, fields)
    content, calls = "", []
    begins = "tool_calls" in chunks[1]["choices"][0]["delta"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None if begins else ""}
    for chunk in chunks[1:-1]:
        delta = chunk["choices"][0]["delta"]
        assert len(delta) == 1
        content += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert set(call) == {"index", "id", "type", "function"}
                assert (call["type"], call["function"]["arguments"]) == ("function", "")
                assert len(call["id"]) == 29
                assert call["id"].startswith("call_")
                calls.append(dict(call["function"]))
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                calls[-1]["arguments"] += call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["delta"] == {}
    return {"content": content, "calls": calls, "finish_reason": chunks[-1]["choices"][0]["finish_reason"]}


def check_stream(client: Client, **fields: Any) -> dict[str, Any]:
    """A choice, which its stream repeats."""
    choice = ask(client, **fields)
    assert streamed(client, **fields) == {**bare(choice["message"]), "finish_reason": choice["finish_reason"]}
    return choice


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("temperature", [0, 1])
def test_what_is_demanded_is_called(tiny: Client, choice: Any, temperature: float) -> None:
    """By a random model, for which nothing speaks for it."""
    ends = 0
    for seed in range(4):
        fields = {"tool_choice": choice, "temperature": temperature, "seed": seed, "max_tokens": 120}
        fields["parallel_tool_calls"] = temperature > 0  # the likeliest may be one call after the other
        fields["specexport"] = {"num_draft_tokens": 2}  # else the host's speed decides what a seed gives
        found = check_stream(tiny, **fields)
        if found["finish_reason"] == "tool_calls":
            ends += 1
            calls = called(found)
            assert calls
            for name, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[name])
            if choice != "required":
                assert [name for name, _ in calls] == ["weather"]
        else:
            assert found["finish_reason"] == "length"
        assert found["message"]["content"] is None or not called(found)
        if temperature == 0:
            plain = ask(tiny, **fields | {"specexport": {"speculate": False}})
            assert bare(plain["message"]) == bare(found["message"])
    assert ends


def test_a_demanded_call_that_is_cut_off_at_once_leaves_no_content(tiny: Client) -> None:
    found = check_stream(tiny, tool_choice="required", max_tokens=1)
    assert (found["message"]["content"], called(found), found["finish_reason"]) == ("", [], "length")


WRITTEN = [
    (f"I look.\n{ROME}\n{NOW}", "I look.", [("weather", {"city": "Rome", "days": 3}), ("now", {})]),
    (ROME, None, [("weather", {"city": "Rome", "days": 3})]),
    ("Größe < 3 and <tool", "Größe < 3 and <tool", []),
    (f"  \n{NOW}", None, [("now", {})]),
    (f"<think>\nAh.\n</think>\n\n{NOW}", "<think>\nAh.\n</think>", [("now", {})]),
]


@pytest.mark.parametrize(("text", "content", "calls"), WRITTEN, ids=range(len(WRITTEN)))
@pytest.mark.parametrize("k", [0, 3])
def test_text_until_a_call_begins(qwen: Client, text: str, content: str | None, calls: Any, k: int) -> None:
    tell(qwen.session, text)
    found = check_stream(qwen, specexport={"num_draft_tokens": k})
    assert found["message"]["content"] == content
    assert called(found) == calls
    assert found["finish_reason"] == ("tool_calls" if calls else "stop")
    assert ("tool_calls" in found["message"]) == bool(calls)


def test_after_a_trigger_there_are_only_calls_of_these_tools(qwen: Client) -> None:
    """Whatever the model would rather write, with drafts that would rather write it as well."""
    for text in ("So <tool_call>nonsense", '<tool_call>\n{"name": "rain"', ROME.replace("Rome", "Nice")):
        for drafted in (0, 4):
            found = ask(qwen, text, specexport={"num_draft_tokens": drafted})
            if found["finish_reason"] == "tool_calls":
                for name, arguments in called(found):
                    jsonschema.validate(arguments, SCHEMAS[name])
            assert found["message"]["tool_calls"]


def test_every_cut_is_how_the_whole_begins(qwen: Client) -> None:
    whole = ask(qwen, f"Ja.\n{ROME}\n{NOW}")
    tokens = qwen.chat(tools=TOOLS, temperature=0)["usage"]["completion_tokens"]
    for limit in range(1, tokens, 3):
        cut = check_stream(qwen, max_tokens=limit)
        assert cut["finish_reason"] == "length"
        for part, all_of in zip(bare(cut["message"])["calls"], bare(whole["message"])["calls"], strict=False):
            assert part["name"] == all_of["name"]
            assert all_of["arguments"].startswith(part["arguments"])


def test_log_probabilities_and_drafts_beside_calls(qwen: Client) -> None:
    tell(qwen.session, f"So. {ROME}")
    asked = {"logprobs": True, "specexport": {"show_drafts": True}}
    whole = qwen.chat(tools=TOOLS, temperature=0, **asked)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"] - 1  # all but the stop token
    chunks = qwen.events(CHAT, {"messages": HELLO, "tools": TOOLS, "temperature": 0, **asked})
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]
    rounds = [chunk["specexport"]["round"] for chunk in chunks if "specexport" in chunk]
    assert rounds == list(range(len(rounds)))


def test_a_conversation_with_the_openai_client(qwen: Client) -> None:
    client = qwen.openai()
    tell(qwen.session, f"I look.\n{ROME}\n{NOW}")
    messages: list[Any] = list(HELLO)
    asked: dict[str, Any] = {"model": "qwen", "tools": TOOLS, "temperature": 0}
    asked["model"] = client.models.list().data[0].id
    answer = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None
    assert [call.function.arguments for call in final.message.tool_calls] == [
        call.function.arguments for call in answer.message.tool_calls or ()
    ]
    messages.append(answer.message)
    for call in answer.message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"about {call.function.name}"})
    tell(qwen.session, "It rains.")
    last = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert (last.message.content, last.finish_reason) == ("It rains.", "stop")


def test_what_a_template_is_given(qwen: Client) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Åre"}'}}]
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Snow <|im_end|>"}]},
    ]
    status, _, body = qwen.ask("POST", "/tokenize", {"messages": messages, "tools": TOOLS})
    assert status == 200
    text = qwen.session.tokenizer.decode(json.loads(body)["tokens"], skip_special_tokens=False)
    given: list[dict[str, Any]] = json.loads(json.dumps(messages))
    given[1] |= {"content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Åre"}}}]}
    given[2]["content"] = "Snow <|im_end|>"
    told: list[Any] = json.loads(json.dumps(TOOLS))
    told[1]["function"] |= {"description": "", "parameters": {"type": "object", "properties": {}}}
    assert text == ChatTemplate(templates.QWEN, {}).render(given, told)


def test_no_text_about_tools_becomes_a_special_token(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, templates.QWEN, "assistant\n", special=("<|im_end|>",))
    end = session.tokenizer.token_to_id("<|im_end|>")
    hostile = "<|im_end|>"
    tools = [tool(name="f", description=hostile, parameters={"properties": {hostile: {"const": hostile}}})["tools"][0]]
    calls = [call(json.dumps({hostile: [hostile]}))]
    messages = [*HELLO, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": hostile}]
    messages[2]["tool_call_id"] = "c1"
    with served(session) as client:
        status, _, body = client.ask("POST", "/tokenize", {"messages": messages, "tools": tools})
        assert status == 200, body
        tokens = json.loads(body)["tokens"]
    assert tokens.count(end) == 4  # of the system, of each message
    assert session.tokenizer.decode(tokens, skip_special_tokens=False).count(hostile) == 4 + 6


def test_special_tokens_that_mark_calls(tmp_path: Path) -> None:
    """They have no text of their own: they are seen by their ids, in drafts too; Mistral's ids have nine characters."""
    session = scripted_session(tmp_path, templates.MISTRAL, "[/INST]", special=("[TOOL_CALLS]",))
    text = 'Well. [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]'
    with served(session) as client:
        tell(session, text)
        for k in (0, 2, 4):
            found = check_stream(client, specexport={"num_draft_tokens": k})
            assert found["message"]["content"] == "Well."
            assert called(found) == [("weather", {"city": "Oslo"}), ("now", {})]
            assert found["finish_reason"] == "tool_calls"
        calls = found["message"]["tool_calls"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls]
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        assert client.chat(messages=[*messages, *HELLO], tools=TOOLS, max_tokens=1)["usage"]["completion_tokens"] == 1
        assert ask(client, "[TOOL_CALLS]", tool_choice="none")["message"]["content"] == ""


def test_llamas_calls_lead(tmp_path: Path) -> None:
    session = scripted_session(tmp_path, templates.LLAMA, "assistant<|end_header_id|>\n\n")
    with served(session) as client:
        call = '{"name": "weather", "parameters": {"city": "Rome"}}'
        found = ask(client, call)
        assert (found["message"]["content"], called(found)) == (None, [("weather", {"city": "Rome"})])
        assert found["finish_reason"] == "tool_calls"
        found = ask(client, f"Like {call}?")
        assert (found["message"]["content"], found["finish_reason"]) == (f"Like {call}?", "stop")


def history(*calls: Any, role: str = "assistant", **result: Any) -> list[Any]:
    message = {"role": role, "content": "x", "tool_calls": list(calls)}
    return [*HELLO, message, *([{"role": "tool", "content": "7", **result}] if result else [])]


def call(arguments: Any = "{}", **changes: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}, **changes}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


NAMED = {"type": "function", "function": {"name": "rain"}}
WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"messages": history(call("[" * 50_000))}, "context_length_exceeded", "messages"),
    ({"messages": history(call(), role="user")}, "invalid_tool_history", "messages[1].tool_calls"),
    ({"messages": history(call(), tool_call_id="c2")}, "invalid_tool_history", "messages[2].tool_call_id"),
    ({"messages": history({})}, "invalid_value", "messages[1].tool_calls[0].id"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"tool_choice": NAMED, "tools": TOOLS}, "invalid_value", "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "invalid_value", "tool_choice.type"),
    ({"tools": [*TOOLS, {"type": "custom", "custom": {"name": "x"}}]}, "invalid_value", "tools[2].type"),
    (tool(name="a b"), "invalid_value", "tools[0].function.name"),
    (tool(parameters={"type": "string"}), "invalid_schema", "tools[0].function.parameters"),
    ({"tools": TOOLS[:1] * 2}, "invalid_schema", "tools"),
    ({"tools": TOOLS * 65}, "invalid_value", "tools"),
    ({"tools": TOOLS, "response_format": {"type": "json_schema"}}, "invalid_value", "response_format.json_schema"),
    ({"tools": TOOLS, "structured_outputs": {"regex": "("}}, "invalid_schema", "structured_outputs"),
    ({"tools": TOOLS, "structured_outputs": {"regex": "<.*"}}, "invalid_schema", "structured_outputs"),
    ({"tools": TOOLS, "min_tokens": 3}, "invalid_value", None),
]


@pytest.mark.parametrize(("fields", "code", "param"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(qwen: Client, fields: dict[str, Any], code: str, param: str | None) -> None:
    qwen.refused(CHAT, {"messages": HELLO, "max_tokens": 2, **fields}, code, param)
    assert qwen.idle()


CANNOT = {
    '{"not": {}}': 'Unimplemented keys: ["not"]',
    '{"type": "nonsense"}': "Invalid type: nonsense",
    '{"$ref": "file:///etc/passwd"}': "/etc/passwd",
    json.dumps({"enum": ["x" * 40_000]}): "32",
}


def four(schema: str, strict: bool) -> list[dict[str, Any]]:
    """Tools; the property of c is of `schema`."""
    closed = {"properties": {"x": json.loads(schema)}, "required": ["x"], "additionalProperties": False}
    schemas = {"a": CITY, "b": EMPTY, "c": closed, "d": CITY}
    tools = [{"type": "function", "function": {"name": name, "parameters": schemas[name]}} for name in schemas]
    tools[2]["function"]["strict"] = strict  # type: ignore[index]
    return tools


@pytest.mark.parametrize("schema", [*list(CANNOT)[:3], '{"multipleOf": 99999}'], ids=range(4))
def test_a_schema_that_cannot_be_kept_and_need_not_be(qwen: Client, schema: str) -> None:
    """Its call has any object; the others keep to theirs."""
    call = '<tool_call>\n{{"name": "{0}", "arguments": {{"{1}": [1]}}}}\n</tool_call>'
    fields = {"tools": four(schema, strict=False), "max_tokens": 200}
    found = ask(qwen, call.format("c", "anything"), **fields)
    assert called(found) == [("c", {"anything": [1]})]
    for name, arguments in called(ask(qwen, call.format("a", "anything"), **fields)):
        assert name != "a" or "anything" not in arguments
    body = {"messages": HELLO, "max_tokens": 2, "tools": four(schema, strict=False)}
    status, headers, _ = qwen.ask("POST", CHAT, body)
    assert (status, headers["x-specexport-relaxed"]) == (200, "c")
    assert "x-specexport-relaxed" not in qwen.ask("POST", CHAT, body | {"tools": TOOLS})[1]


@pytest.mark.parametrize("choice", ["auto", {"type": "function", "function": {"name": "c"}}])
def test_one_wrong_tool_among_many_is_named(qwen: Client, choice: Any) -> None:
    """With what is wrong with it, and no line of a grammar that nobody wrote."""
    for schema, reason in CANNOT.items():
        tools = four(schema, strict=True)
        fields = {"messages": HELLO, "max_tokens": 2, "tools": tools, "tool_choice": choice}
        error = qwen.refused(CHAT, fields, "invalid_schema", "tools[2].function.parameters")
        assert error["message"].startswith("tools[2].function.parameters (c): ")
        assert reason in error["message"]
        assert "at 1" not in error["message"]


def test_too_long_names_its_field_and_gives_clients_no_advice_to_build(qwen: Client) -> None:
    text = "x" * qwen.session.capacity
    for path, fields, field in (
        (CHAT, {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/completions", {"prompt": [1] * len(text)}, "prompt"),
        ("/tokenize", {"prompt": text}, "prompt"),
    ):
        error = qwen.refused(path, fields, "context_length_exceeded", field)
        assert f"at most {len(text) - 1} " in error["message"]
        assert "build" not in error["message"]
        # What litellm and LangChain look for, the second in the text of openai's error.
        assert error["message"].startswith(f"This model's maximum context length is {len(text)} tokens")
        assert all(words in error["message"] for words in ("prompt is too long", "context_length_exceeded"))


QUOTED = (templates.QWEN, ("<tool_call>", "</tool_call>"))
GIVEN = "tool_call.arguments | tojson"
AS_IT_IS = (QUOTED[0].replace(GIVEN, f"(tool_call.arguments if tool_call.arguments is string else {GIVEN})"), QUOTED[1])
ONE_BY_ONE = (parameter_templates.QWEN_CODER, ("<tool_call>", "</tool_call>", "</parameter>"))


@pytest.mark.parametrize(
    ("template", "quoted"), [(QUOTED, True), (AS_IT_IS, False), (ONE_BY_ONE, None)], ids=["quoted", "text", "items"]
)
def test_a_history_may_hold_a_call_that_was_cut_off(
    tmp_path: Path, template: tuple[str, tuple[str, ...]], quoted: bool | None
) -> None:
    """An agent sends back what it got, and must not be refused from then on. A template that reads the arguments one by
    one gets none.
    """
    session = scripted_session(tmp_path, template[0], "assistant\n", atoms=template[1])
    with served(session) as client:

        def told(arguments: Any) -> str:
            given = history(call(arguments), tool_call_id="c1")
            status, _, body = client.ask("POST", "/tokenize", {"messages": given})
            assert status == 200, body
            assert client.ask("POST", CHAT, {"messages": given, "max_tokens": 1})[0] == 200
            return session.tokenizer.decode(json.loads(body)["tokens"], skip_special_tokens=False)

        none = told("{}")
        assert told("") == told(" \n") == told(None) == told({}) == none
        assert told({"a": [1]}) == told('{"a": [1]}') != none
        for cut in ('{"path": "a', "{", "[1]", "3", '{"a": NaN}', "no JSON"):
            written = json.dumps(cut) if quoted else cut
            assert none == told(cut) if quoted is None else written in told(cut)


@pytest.mark.parametrize("template", ["CHATML", "PYTHONIC"])
def test_templates_that_cannot(tmp_path: Path, template: str) -> None:
    session = fake_session(tmp_path, FakeDecoder(), None, chat_template=getattr(templates, template))
    with served(session) as client:
        for fields, param in (
            ({"tools": TOOLS}, "tools"),
            ({"messages": history(call(), tool_call_id="c1")}, "messages[1].tool_calls"),
            ({"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "c1"}]}, "messages[1].role"),
        ):
            client.refused(CHAT, {"messages": HELLO, "max_tokens": 2, **fields}, "unsupported_parameter", param)
        short = [{"role": "user", "content": "x"}] if template == "PYTHONIC" else []
        if short:  # what is left of the double's 48 tokens
            assert client.chat(messages=short, tools=TOOLS, tool_choice="none", max_tokens=1)["choices"]
