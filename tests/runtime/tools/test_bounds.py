"""What a grammar of tools allows: anything in front of a trigger, and only calls of these tools behind it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from specexport import Grammar
from specexport.errors import GrammarError
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.constraint import Matcher
from specexport.runtime.tools.bounds import tools_grammar
from specexport.runtime.tools.tool import Tool
from specexport.runtime.tools.tool_format import ToolFormat
from support.doubles import BOS, EOS, VOCAB, byte_tokenizer
from support.refusals import refused
from support.schemas import random_schema
from support.tool_forms import HERMES, LLAMA, MINISTRAL, MISTRAL, read, turn
from tokenizers import AddedToken

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    Tool("get", None, CITY),
    Tool("get_all"),
    Tool("put", "Puts.", {"properties": {"n": {"type": "integer"}}, "additionalProperties": True}),
]
PARIS, ALL, PUT = ("get", '{"city": "Paris"}'), ("get_all", "{}"), ("put", '{"n": 3, "more": [1, 2]}')
NAMES = ("[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>", "<think>", "</think>")
IDS = {name: VOCAB + place for place, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    """`[TOOL_CALLS]` and `[ARGS]` are special tokens, the others are tokens like any other, as Qwen's are."""
    tokenizer = byte_tokenizer()
    for name in NAMES:
        tokenizer.add_tokens([AddedToken(name, special=name.startswith("["), normalized=False)])
    return GrammarCompiler(tokenizer.to_str, tokenizer.get_vocab_size(), (EOS,))


def by_atoms(form: ToolFormat) -> ToolFormat:
    """With the tokens that the form's texts name."""
    return replace(form, atoms=tuple(IDS.items())[:4], shown=tuple(IDS.values())[:2], free=tuple(IDS.values())[4:])


def tokens_of(form: ToolFormat, text: str) -> list[int]:
    atoms = dict(form.atoms) | {name: number for name, number in IDS.items() if number in form.free}
    parts = re.split(f"({'|'.join(map(re.escape, atoms)) or '(?!)'})", text)
    return [token for part in parts for token in ([atoms[part]] if part in atoms else part.encode())]


def accepted(compiler: GrammarCompiler, grammar: Grammar, form: ToolFormat, text: str) -> Matcher | None:
    """The state behind `text`, None where it is forbidden."""
    matcher = compiler.compile(grammar)
    for token in tokens_of(form, text):
        assert matcher.accepts(token) == matcher.allowed()[token]
        if not matcher.accepts(token):
            return None
        matcher.advance(token)
    return matcher


FORMS = {
    "hermes": HERMES,
    "qwen": by_atoms(HERMES),
    "llama": LLAMA,
    "a llama that thinks": replace(LLAMA, free=(IDS["<think>"], IDS["</think>"])),
    "mistral": by_atoms(MISTRAL),
    "ministral": by_atoms(MINISTRAL),
    "mistral as text": MISTRAL,
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> ToolFormat:
    return FORMS[request.param]


def ends(matcher: Matcher | None) -> bool:
    return matcher is not None and matcher.accepting


def test_text_and_calls(compiler: GrammarCompiler, form: ToolFormat) -> None:
    grammar = tools_grammar(form, TOOLS, demanded=False, parallel=True)
    for call in (PARIS, ALL, PUT):
        assert ends(accepted(compiler, grammar, form, turn(form, "", call)))
    assert ends(accepted(compiler, grammar, form, "Just text é {, [TOOL or <tool"))
    assert ends(accepted(compiler, grammar, form, ""))
    thought = "<think>\nTo <tool_<think>call> or {</think><think></think> not.\n"
    assert ends(accepted(compiler, grammar, form, thought))
    assert ends(accepted(compiler, grammar, form, turn(form, thought, PARIS)))
    assert ends(accepted(compiler, grammar, form, turn(form, thought, ("got", "{}")))) == form.leads  # it is text there
    assert ends(accepted(compiler, grammar, form, turn(form, "Let me see.\n", PARIS))) != form.leads or form.leads
    wrong = [("get", "{}"), ("get", '{"town": "x"}'), ("get", '{"city":"x"}'), ("got", "{}"), ("get_all", '{"a": 1}')]
    for call in wrong:
        assert accepted(compiler, grammar, form, turn(form, "", call)) is None
    both = turn(form, "", PARIS, ALL)
    assert ends(accepted(compiler, grammar, form, both)) == (form.next is not None)
    single = tools_grammar(form, TOOLS, demanded=False, parallel=False)
    assert accepted(compiler, single, form, both) is None
    alone = accepted(compiler, single, form, turn(form, "", PARIS))
    assert alone is not None
    assert alone.done


def test_demanded(compiler: GrammarCompiler, form: ToolFormat) -> None:
    grammar = tools_grammar(form, TOOLS[:1], demanded=True, parallel=False)
    matcher = accepted(compiler, grammar, form, turn(form, "", PARIS))
    assert matcher is not None
    assert matcher.done
    assert accepted(compiler, grammar, form, " ") is None
    assert not ends(accepted(compiler, grammar, form, ""))
    start = compiler.compile(grammar)
    head = tokens_of(form, turn(form, "", PARIS))
    assert start.forced()
    assert start.forced() == head[: len(start.forced())]


def test_two_grammars_force_what_both_force(compiler: GrammarCompiler) -> None:
    calls = tools_grammar(HERMES, TOOLS[:1], demanded=True, parallel=False)
    state = compiler.compile(calls.otherwise(Grammar.choice(["<note>"]), HERMES.trigger))
    assert state.forced() == list(b"<")
    state.advance(ord("<"))
    assert state.forced() == []
    assert np.flatnonzero(state.allowed()).tolist() == sorted(b"nt")
    copy = state.copy()
    copy.advance(ord("n"))
    for token in b"ote>":
        assert copy.forced()[:1] == [token]
        copy.advance(token)
    assert copy.done
    assert state.accepts(ord("t")), "the other way is still open"
    assert state.seconds > 0


def test_a_trigger_is_one_by_its_token_and_by_its_bytes(compiler: GrammarCompiler) -> None:
    """Both read the same, behind any text."""
    form = by_atoms(HERMES)
    grammar = tools_grammar(form, TOOLS, demanded=False, parallel=True)
    state = accepted(compiler, grammar, form, "So")
    assert state is not None
    allowed = state.allowed()
    assert [allowed[number] for number in IDS.values()] == [False, False, True, False, True, True]
    assert not allowed[[BOS, EOS]].any()
    for trigger in ([IDS["<tool_call>"]], list(b"<tool_call>")):
        behind = state.copy()
        for token in trigger:
            assert behind.accepting
            behind.advance(token)
        assert np.flatnonzero(behind.allowed()).tolist() == [ord("\n")]
        assert not behind.accepting


@pytest.mark.parametrize("seed", range(10))
def test_arguments_are_of_the_schema(compiler: GrammarCompiler, seed: int) -> None:
    """Whatever is drawn from the masks, once a call has begun."""
    import jsonschema

    schema = random_schema(seed)
    if schema.get("type") != "object":
        schema = {
            "type": "object",
            "properties": {"value": schema},
            "required": ["value"],
            "$defs": schema.pop("$defs", {}),
        }
    grammar = tools_grammar(HERMES, [Tool("f", None, schema), Tool("g")], demanded=True, parallel=True)
    rng, matcher, text = np.random.default_rng(seed), compiler.compile(grammar), b""
    weights = np.ones(compiler._vocab_size)
    weights[[ord('"'), ord("}"), ord("]")]] = 30.0
    while not matcher.accepting and len(text) < 2000:
        allowed = matcher.allowed() * weights
        token = int(rng.choice(len(allowed), p=allowed / allowed.sum()))
        matcher.advance(token)
        text += bytes([token])
    assert matcher.accepting
    content, calls = read(HERMES, [text.decode()])
    assert content == ""
    for name, arguments in calls:
        assert name in "fg"
        jsonschema.validate(json.loads(arguments), schema if name == "f" else {"maxProperties": 0})


def refused_tools(*tools: Tool) -> Grammar:
    return tools_grammar(HERMES, tools, demanded=True, parallel=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tool("a b"),
        lambda: Tool(""),
        lambda: Tool("a", None, {"type": "string"}),
        lambda: refused_tools(),
        lambda: refused_tools(Tool("a"), Tool("a")),
        lambda: refused_tools(*(Tool(f"t{number}") for number in range(129))),
        lambda: refused_tools(Tool("a", None, {"properties": {"x": {"enum": ["x" * 40_000]}}})),
    ],
    ids=range(7),
)
def test_tools_that_are_refused(make: Any) -> None:
    with refused(GrammarError, field=("grammar", "name", "parameters", "tools")):
        make()


def test_the_deepest_and_the_most(compiler: GrammarCompiler) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"properties": {"a": deep}}
    with refused(GrammarError, "64", code="schema_too_complex"):
        refused_tools(Tool("a", None, deep))
    with refused(GrammarError, "not"):
        compiler.compile(refused_tools(Tool("a", None, {"properties": {"x": {"not": {}}}})))
    many = [Tool(f"tool_{number}", None, CITY) for number in range(128)]
    state = accepted(compiler, refused_tools(*many), HERMES, turn(HERMES, "", ("tool_127", '{"city": "x"}')))
    assert ends(state)
