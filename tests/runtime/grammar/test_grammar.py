"""Grammars as values: what is refused before a compiler sees it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from specexport import Grammar
from specexport.errors import GrammarError
from specexport.runtime.grammar.limits import DEEPEST, LONGEST, MAX_JOINED, MAX_REFS
from support.refusals import refused


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def lists(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[1]",
        3,
        None,
        False,
        "false",
        {"enum": {1, 2}},
        {"maximum": float("nan")},
        {"const": "x" * LONGEST},
        " " * ((1 << 20) + 1),
        "[" * 100_000,
        nested(DEEPEST + 1),
        {"const": lists(DEEPEST)},
        {"const": lists(5000)},
        {"$defs": {f"d{number}": {"$ref": "#"} for number in range(MAX_REFS + 1)}},
        {"allOf": [{"pattern": f"a{{{number}}}.*"} for number in range(MAX_JOINED + 2)]},
        {"allOf": [{"allOf": [{}] * 5}, {"allOf": [{}] * 6}]},
        {"multipleOf": 10_007},
        {"properties": {"a": {"multipleOf": 9973}, "b": {"multipleOf": 0.7}}},
    ],
    ids=map(str, range(19)),
)
def test_schemas_that_are_no_schemas_or_too_much(schema: Any) -> None:
    with refused(GrammarError, code=("invalid_schema", "schema_too_complex")):
        Grammar.json_schema(schema)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (Grammar.regex, 3),
        (Grammar.regex, "x" * (LONGEST + 1)),
        (Grammar.regex, "\ud800"),
        (Grammar.lark, "x" * 9000),
        (Grammar.choice, "yes"),
        (Grammar.choice, None),
        (Grammar.choice, []),
        (Grammar.choice, ["a", ""]),
        (Grammar.choice, ["a", 3]),
        (Grammar.choice, ["x" * 1000] * 40),
    ],
)
def test_other_grammars_that_are_none_or_too_much(make: Any, value: Any) -> None:
    with refused(GrammarError):
        make(value)


def test_a_grammar_is_a_value() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    grammar = Grammar.json_schema(schema)
    assert grammar == Grammar.json_schema('{ "type":"object", "properties": {"b": {}, "a": {}} }')
    assert grammar != Grammar.json_schema({"type": "object", "properties": {"a": {}, "b": {}}})  # the order counts
    assert grammar != Grammar.json_schema(schema, whitespace=True)
    assert len({grammar, pickle.loads(pickle.dumps(grammar))}) == 1
    schema["type"] = "array"
    assert "array" not in grammar.text
    assert Grammar.choice(iter(["é", "b"])) == Grammar.choice(("é", "b"))


def test_what_either_grammar_shows_is_shown() -> None:
    calls, answer = Grammar("tools", "start: /a/", shown=(5, 7)), Grammar("grammar", "start: /b/", shown=(3, 7))
    assert calls.otherwise(answer, "a").shown == (3, 5, 7)
