"""Tools together with a form of the answer: calls of these tools or an answer in that form, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import specexport
from specexport.serve import ServerSettings
from support import parameter_templates, thinking_templates, tool_templates
from support.scripted import scripted_session, tell, tell_ids
from support.serving import Client, served

pytest.importorskip("llguidance")
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
PLACE = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CLOSED = {**PLACE, "additionalProperties": False}
NOTE = {
    "type": "object",
    "properties": {"note": {"type": "string"}},
    "required": ["note"],
    "additionalProperties": False,
}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "note", "schema": NOTE, "strict": True}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "weather", "parameters": PLACE}}]}
NAMED = {"type": "function", "function": {"name": "weather"}}
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TAGGED = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
ATOMS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
SPECIAL = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
# (template, what it ends a prompt with, special tokens, others, what comes before an answer, a call)
MODELS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], str, str]] = {
    "hermes": (tool_templates.QWEN, "assistant\n", (), ATOMS, "", HERMES),
    "text": (tool_templates.QWEN, "assistant\n", (), (), "", HERMES),
    "llama": (
        tool_templates.LLAMA,
        "assistant<|end_header_id|>\n\n",
        (),
        (),
        "",
        '{"name": "weather", "parameters": {"city": "Rome"}}',
    ),
    "mistral": (
        tool_templates.MISTRAL,
        "[/INST]",
        ("[TOOL_CALLS]",),
        (),
        "",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]',
    ),
    "parameters": (parameter_templates.QWEN_CODER, "<A>", (), ATOMS[:2], "", TAGGED),
    "may think": (thinking_templates.QWEN, "assistant\n", (), ATOMS, "<think>\nSo\n</think>\n\n", HERMES),
    "thinks": (thinking_templates.OPENED, "assistant\n<think>\n", (), ATOMS, "So\n</think>\n\n", HERMES),
    "marks": (
        thinking_templates.MISTRAL,
        "Hello[/INST]",
        SPECIAL,
        (),
        "[THINK]So[/THINK]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    template, marker, special, atoms, *told = MODELS[request.param]
    session = scripted_session(tmp_path_factory.mktemp("model"), template, marker, special=special, atoms=atoms)
    with served(session) as client:
        client.before, client.call = told  # type: ignore[attr-defined]
        yield client


def ask(client: Client, answer: str, spelled: bool = False, **fields: Any) -> dict[str, Any]:
    """The choice for what the model would write behind its thoughts: plain, drafted and streamed the same."""
    session: Any = client.session
    tell(session, client.before + answer)  # type: ignore[attr-defined]
    if spelled:  # letter by letter, as no token of a call's is in a string
        before = session.tokenizer.encode(client.before).ids  # type: ignore[attr-defined]
        letters = (token for letter in answer for token in session.tokenizer.encode(letter).ids)
        tell_ids(session, [*before, *letters])
    asked = {"messages": HELLO, "temperature": 0, "max_tokens": 300, **TOOLS, **SCHEMA, **fields}
    found = client.chat(**asked, specexport={"speculate": False})["choices"][0]
    for k in (1, 2, 4):
        drafted = client.chat(**asked, specexport={"num_draft_tokens": k})["choices"][0]
        assert (bare(drafted), drafted["finish_reason"]) == (bare(found), found["finish_reason"])
    deltas = [chunk["choices"][0]["delta"] for chunk in client.events(CHAT, asked)]
    assert "".join(delta.get("content") or "" for delta in deltas) == (found["message"]["content"] or "")
    if client.before:  # type: ignore[attr-defined]
        assert found["message"]["reasoning_content"] == "So"
    return dict(found)


def bare(choice: dict[str, Any]) -> tuple[Any, ...]:
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["content"], message.get("reasoning_content"), calls


def calls_rome(choice: dict[str, Any]) -> bool:
    content, _, calls = bare(choice)
    assert content is None
    return choice["finish_reason"] == "tool_calls" and [(n, json.loads(a)) for n, a in calls] == [
        ("weather", {"city": "Rome"})
    ]


def test_a_call_or_an_answer(model: Client) -> None:
    assert calls_rome(ask(model, model.call))  # type: ignore[attr-defined]
    found = ask(model, '{"note":"dry"}')
    assert (bare(found)[0], bare(found)[2], found["finish_reason"]) == ('{"note":"dry"}', [], "stop")


def test_an_answer_that_speaks_of_calls(model: Client) -> None:
    """A string in JSON may hold what a call begins with."""
    for said in ("<tool_call>", "[TOOL_CALLS]", '{\\"name\\": \\"weather\\"'):
        found = ask(model, f'{{"note":"{said}"}}', spelled=True)
        assert (bare(found)[0], bare(found)[2]) == (f'{{"note":"{said}"}}', [])


def test_nothing_else(model: Client) -> None:
    for said in ("Dry, I think.", f"See: {model.call}", '{"name": 3}', '{"note": "a blank"}'):  # type: ignore[attr-defined]
        found = ask(model, said, max_tokens=120)
        content, _, calls = bare(found)
        if found["finish_reason"] == "stop":
            jsonschema.validate(json.loads(content), NOTE)
        elif calls:
            assert calls[0][0] == "weather"
            assert content is None
        else:
            assert content is None or content == "" or content.startswith('{"note":"'[: len(content)])


def test_choices(model: Client) -> None:
    call = model.call  # type: ignore[attr-defined]
    for choice in ("required", NAMED):
        assert calls_rome(ask(model, call, tool_choice=choice, parallel_tool_calls=False))
        assert bare(ask(model, '{"note":"dry"}', tool_choice=choice, max_tokens=60))[0] is None
    found = ask(model, '{"note":"dry"}', tool_choice="none")
    assert (bare(found)[0], bare(found)[2]) == ('{"note":"dry"}', [])
    assert not bare(ask(model, call, tool_choice="none", max_tokens=60))[2]


def test_after_a_result(model: Client) -> None:
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": function}],
    }
    past = [*HELLO, called, {"role": "tool", "tool_call_id": "abcdefgh1", "content": "dry"}, *HELLO]
    assert bare(ask(model, '{"note":"dry"}', messages=past))[0] == '{"note":"dry"}'
    assert calls_rome(ask(model, model.call, messages=past))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"response_format": {"type": "json_object"}}, '{"any": [1]}'),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no"),
        ({"structured_outputs": {"regex": "[a-z]+!"}}, "dry!"),
        ({"structured_outputs": {"grammar": 'start: "a"+ "b"'}}, "aaab"),
    ],
    ids=["object", "choice", "regex", "grammar"],
)
def test_other_forms(tmp_path: Path, form: dict[str, Any], text: str) -> None:
    session = scripted_session(tmp_path / "bundle", tool_templates.QWEN, "assistant\n", atoms=ATOMS)
    with served(session, ServerSettings(allow_grammars=True)) as client:
        client.before = ""  # type: ignore[attr-defined]
        without = {"response_format": {"type": "text"}}
        said = text.replace(": ", ":")  # compact
        found = ask(client, said, **{**without, **form})
        assert (bare(found)[0], found["finish_reason"]) == (said, "stop")
        assert calls_rome(ask(client, HERMES, **{**without, **form}))


def test_thoughts_alone_are_no_answer(model: Client) -> None:
    if model.before:  # type: ignore[attr-defined]
        found = ask(model, "", max_tokens=60)
        assert bare(found)[0] or bare(found)[2]


def test_what_is_relaxed_is_told(model: Client) -> None:
    loose = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"not": {}}}}}}]
    fields = {"messages": HELLO, "max_tokens": 1, "tools": tools, "response_format": loose}
    status, headers, body = model.ask("POST", CHAT, fields)
    assert (status, headers["x-specexport-relaxed"]) == (200, "response_format, odd"), body
    loose["json_schema"]["strict"] = True
    model.refused(CHAT, fields, param="response_format")


def test_an_answer_that_may_look_like_a_call_is_refused(model: Client) -> None:
    mark = model.session.tool_format.trigger
    for choice, refused in ((f"{mark} or not", True), (f"Not {mark}", False), (mark[:1], False)):
        fields = {"messages": HELLO, "max_tokens": 1, **TOOLS, "structured_outputs": {"choice": [choice, "a"]}}
        status, _, body = model.ask("POST", CHAT, fields)
        assert status == (400 if refused else 200), body
        if refused:
            error = json.loads(body)["error"]
            assert (error["param"], error["code"]) == ("structured_outputs", "invalid_schema")
            assert "leave the tools out" in error["message"]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_random_model(served_bundle: Path, tmp_path: Path, temperature: float) -> None:
    """It has no reason for either, and its answers are one or the other."""
    template = tmp_path / "tools.jinja"
    template.write_text(tool_templates.QWEN)
    session = specexport.load(served_bundle, chat_template=template)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    kinds, first = set(), session.tokenizer.encode("<tool_call>", add_special_tokens=False).ids[0]
    with served(session) as client:
        for seed in range(16):
            told = {"temperature": temperature, "seed": seed, "max_tokens": 300, "parallel_tool_calls": False}
            tools = {"tools": [{"type": "function", "function": {"name": "weather", "parameters": CLOSED}}]}
            told |= {**tools, "response_format": form, "logit_bias": {str(first): seed % 2 * 50}}
            found = client.chat(**told, specexport={"num_draft_tokens": 2})["choices"][0]
            content, _, calls = bare(found)
            kinds.add(found["finish_reason"])
            if calls:
                jsonschema.validate(json.loads(calls[0][1]), CLOSED)
                assert content is None
            else:
                jsonschema.validate(json.loads(content), schema)
            if not temperature:
                plain = client.chat(**told, specexport={"speculate": False})["choices"][0]
                assert bare(plain) == bare(found)
    assert kinds == {"stop", "tool_calls"}
