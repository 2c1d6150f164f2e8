"""Arguments that are written one by one: what templates say of them, what bounds them, and how they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from specexport.errors import GrammarError
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.text.chat_template import ChatTemplate
from specexport.runtime.tools.bounds import tools_grammar
from specexport.runtime.tools.calls import CallReader, joined
from specexport.runtime.tools.formats import recognize
from specexport.runtime.tools.tool import Tool
from specexport.runtime.tools.tool_format import ToolFormat
from support import parameter_templates as templates
from support.doubles import EOS, VOCAB, byte_tokenizer
from support.refusals import refused
from tokenizers import AddedToken

TAGS = ("arg_key", "arg_value", "tool_call")
NAMES = (*(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")), "<|tool_call_start|>", "<|tool_call_end|>", "<b>")
IDS = {name: VOCAB + place for place, name in enumerate(NAMES)}
SPECIAL = [IDS[name] for name in NAMES if name.startswith("<|")]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "now": {"type": "boolean"},
        "near": {"type": "array", "items": {"$ref": "#/$defs/name"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 4}},
}
TOOLS = [Tool("weather", "", SCHEMA), Tool("now"), Tool("any", "", {"type": "object"})]
FORMS = ("QWEN_CODER", "GLM", "LFM", "DSML", "DEEPSEEK")
CALLS: list[list[tuple[str, dict[str, Any]]]] = [
    [("weather", {"city": "Åre, <b>\n{x}", "days": 3})],
    [("weather", {"city": "Oslo", "days": -12, "unit": "F", "now": True, "near": ["a", "b"], "note": None})],
    [("now", {}), ("weather", {"city": "", "days": 0, "now": False})],
    [("any", {"x-1": "y", "b": 3}), ("any", {})],
    [("weather", {"city": "x", "days": 1, "note": "so"})],
]


def form_of(name: str) -> ToolFormat:
    return recognize(ChatTemplate(getattr(templates, name), {}).render, IDS, SPECIAL)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_tokenizer()
    for name in NAMES:
        tokenizer.add_tokens([AddedToken(name, special=name.startswith("<|"), normalized=False)])
    return GrammarCompiler(tokenizer.to_str, tokenizer.get_vocab_size(), (EOS,))


def written(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """As the template writes it, behind what it writes in front of any answer."""
    template, tools = ChatTemplate(getattr(templates, name), {}), [tool.for_template for tool in TOOLS]
    question = {"role": "user", "content": "0"}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": one, "arguments": given}} for one, given in calls],
    }
    text = template.render([question, turn], tools)
    start = text.index(form_of(name).trigger, len(template.render([question], tools)) - len("<A>"))
    return text[start:].removesuffix("<end><A>")


def ends(
    compiler: GrammarCompiler, form: ToolFormat, text: str, demanded: bool = True, tools: Sequence[Tool] = TOOLS
) -> bool | None:
    state = compiler.compile(tools_grammar(form, tools, demanded, parallel=True))
    for part in re.split(f"({'|'.join(map(re.escape, NAMES))})", text):
        for token in [IDS[part]] if part in IDS and (form.parameters or part != "<b>") else part.encode():
            if not state.accepts(token):
                return None
            state.advance(token)
    return state.accepting


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("calls", CALLS, ids=range(len(CALLS)))
def test_what_a_template_writes_may_come_and_is_read(
    compiler: GrammarCompiler, name: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    form, text = form_of(name), written(name, calls)
    if name == "LFM":  # nested values are JSON here, where its template has Python's
        text = text.replace("['a', 'b']", '["a", "b"]')
    assert ends(compiler, form, text)
    assert ends(compiler, form, f"So: {text}", demanded=False)
    assert not ends(compiler, form, text[:-1])
    for pieces in ([text], list(text)):
        reader = CallReader(form, TOOLS)
        parts = [part for piece in pieces for part in reader.add(piece)]
        content, found = joined([*parts, *reader.end()])
        assert (content, reader.whole) == ("", True)
        expected = [
            (one, {k: str(v) if one == "any" and name == "LFM" and v == "3" else v for k, v in given.items()})
            for one, given in calls
        ]
        assert [(one, json.loads(arguments)) for one, arguments in found] == expected


@pytest.mark.parametrize("name", FORMS)
def test_every_cut_is_how_an_object_begins(name: str) -> None:
    form, text = form_of(name), written(name, CALLS[1])
    if name == "LFM":
        text = text.replace("['a', 'b']", '["a", "b"]')
    whole = joined(CallReader(form, TOOLS).add(text))[1][0][1]
    for size in range(len(text)):
        reader = CallReader(form, TOOLS)
        calls = joined([*reader.add(text[:size]), *reader.end()])[1]
        assert all(whole.startswith(arguments) for _, arguments in calls)
        assert not reader.whole or calls[0][1] == whole


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "given",
    [
        {"days": 3},
        {"city": "x"},
        {"city": "x", "days": "y"},
        {"days": 3, "city": "x"},
        {"city": "x", "days": 3, "unit": "K"},
        {"city": "x", "days": 3, "more": 1},
        {"city": "x", "days": 3, "near": ["abcde"]},
    ],
    ids=range(7),
)
def test_what_is_not_of_the_schema_may_not(compiler: GrammarCompiler, name: str, given: dict[str, Any]) -> None:
    text = written(name, [("weather", given)]).replace("['abcde']", '["abcde"]')
    assert ends(compiler, form_of(name), text) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "maxLength": 3}}},
        {"properties": {"a": {"enum": ["x", 3]}}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        {"properties": {"a": {"type": ["string", "integer"]}}},
        {"properties": {"a": {}}, "minProperties": 1},
        {"properties": {"a": {}}, "required": ["b"]},
    ],
    ids=range(6),
)
def test_what_such_arguments_cannot_keep_to(schema: dict[str, Any]) -> None:
    with refused(GrammarError, "JSON"):
        tools_grammar(form_of("GLM"), [Tool("f", None, schema)], demanded=True, parallel=True)
