"""Compiled grammars: what they allow, and what hostile ones end in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from specexport import Grammar
from specexport.errors import GrammarError
from specexport.runtime.grammar import compiler as compiling
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.constraint import Matcher
from specexport.runtime.grammar.guided import GuidedMatcher
from specexport.runtime.grammar.limits import LONGEST_LARK, MAX_REFS
from support.doubles import EOS, VOCAB, byte_tokenizer
from support.refusals import refused
from support.schemas import random_schema
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def merged_tokenizer() -> Tokenizer:
    """Tokens of several bytes, so that a text has more than one way into tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [json.dumps({"orderId": 12, "name": "a name", "größe": None, "tags": ["red", "green"]})] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer().to_str, VOCAB, (EOS,))


@pytest.fixture(scope="module")
def merging() -> tuple[GrammarCompiler, Tokenizer]:
    tokenizer = merged_tokenizer()
    return GrammarCompiler(tokenizer.to_str, tokenizer.get_vocab_size() + 10, (1,)), tokenizer


def accepted(matcher: Matcher, text: bytes) -> bool:
    """Whether `text`, a byte a token, is all of a text."""
    for byte in text:
        if not matcher.accepts(byte):
            return False
        matcher.advance(byte)
    return matcher.accepting


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (Grammar.regex("[a-c]+d?"), ["a", "abcd"], ["", "d", "ad "]),
        (
            Grammar.choice(["yes", "yes sir", "a|b", "(é.*)\n", "\\d"]),
            ["yes", "yes sir", "a|b", "(é.*)\n", "\\d"],
            ["1", "a"],
        ),
        (Grammar.json_schema({"type": "integer", "minimum": 3, "maximum": 12}), ["3", "12"], ["2", "13", " 3"]),
        (Grammar.json_schema({"type": "object"}), ["{}", '{"a":[1,null]}'], ["[]", '{"a": 1}']),
        (Grammar.json_schema({"type": "object"}, whitespace=True), ["{}", '{"a": 1}'], [" {}", "{}\n"]),
        (Grammar.json_schema({"x-guidance": {"whitespace_flexible": True}, "type": "array"}), ["[1,2]"], ["[1, 2]"]),
        (Grammar.json_schema(True), ["1", "{}", "null"], ["nil"]),
        (Grammar.lark('start: "a" start "b" | "ab"'), ["ab", "aabb"], ["aab", "b"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else None,
)
def test_what_a_grammar_takes(compiler: GrammarCompiler, grammar: Grammar, right: list[str], wrong: list[str]) -> None:
    for text in (*right, *wrong):
        assert accepted(compiler.compile(grammar), text.encode()) == (text in right), text


def walks(compiler: GrammarCompiler, grammar: Grammar, seed: int) -> Iterator[tuple[Matcher, Matcher]]:
    """Two matchers of the same text, a random one, of which only the first is asked for masks."""
    rng = np.random.default_rng(seed)
    seen, unseen = compiler.compile(grammar), compiler.compile(grammar)
    for _ in range(30):
        yield seen, unseen
        tokens = np.flatnonzero(seen.allowed())
        if not len(tokens):
            return
        token = int(rng.choice(tokens))
        seen.advance(token)
        unseen.advance(token)


@pytest.mark.parametrize("seed", range(12))
def test_every_way_to_ask_gives_one_answer(merging: tuple[GrammarCompiler, Tokenizer], seed: int) -> None:
    """The mask, a single token, what is forced, and whatever was asked before."""
    compiler, tokenizer = merging
    size, forced = tokenizer.get_vocab_size() + 10, 0
    for seen, unseen in walks(compiler, Grammar.json_schema(random_schema(seed)), seed):
        asked = unseen.copy()
        assert [asked.accepts(token) for token in range(size)] == seen.allowed().tolist()
        assert asked.forced() == seen.forced()
        assert (unseen.accepting, unseen.done) == (seen.accepting, seen.done)
        assert not seen.allowed()[[0, 1, *range(size - 10, size)]].any()  # special tokens and padding
        if seen.done:
            assert not seen.allowed().any()
        if seen.forced():
            assert np.flatnonzero(seen.allowed()).tolist() == seen.forced()[:1]
            ahead = unseen.copy()
            for token in seen.forced():
                assert ahead.accepts(token)
                ahead.advance(token)
            forced += 1
    assert forced or seed


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True},
        {"$ref": "http://localhost/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/missing"},
        {"type": "text"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "format": "unheard-of"},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"x-guidance": {"lenient": True}, "not": {}},
        {"const": "\ud800"},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_schemas_that_cannot_be_kept(compiler: GrammarCompiler, schema: Any) -> None:
    with refused(GrammarError):
        compiler.compile(Grammar.json_schema(schema))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("((("),
        Grammar.regex("(?!a)b"),
        Grammar.lark("start: other"),
        Grammar.regex(""),
        Grammar.regex("a{0}"),
        Grammar.lark('start: ""'),
    ],
)
def test_grammars_with_mistakes(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with refused(GrammarError):
        compiler.compile(grammar)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("((", "unclosed group"),
        ("a" * 2000 + "[z-a]", "invalid character class range, the start must be <= the end"),
        ("a\nerror: (", "unclosed group"),
        (r"\bfoo", r"lookarounds not supported yet; WordUnicode in regex /\bfoo/"),
    ],
)
def test_what_is_wrong_with_a_regex_is_said_once(compiler: GrammarCompiler, pattern: str, reason: str) -> None:
    """However long the regex is, which the library's message begins with."""
    with pytest.raises(GrammarError) as caught:
        compiler.compile(Grammar.regex(pattern))
    assert str(caught.value) == f"invalid regex: {reason}"


def chain(length: int, part: Any) -> dict[str, Any]:
    """References that lead from one to the next."""
    parts = {f"d{number}": part(f"#/$defs/d{number + 1}") for number in range(length)}
    return {"$defs": {**parts, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


HOSTILE = [
    Grammar.json_schema(chain(MAX_REFS - 1, lambda ref: {"$ref": ref})),
    Grammar.json_schema(chain(MAX_REFS - 1, lambda ref: {"properties": {"a": {"$ref": ref}}})),
    Grammar.json_schema(chain(60, lambda ref: {"anyOf": [{"$ref": ref}, {"$ref": "#"}]})),
    Grammar.json_schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    Grammar.json_schema({"allOf": [{"type": "string", "pattern": f".*a.{{{number}}}b"} for number in range(9)]}),
    Grammar.json_schema({"type": "string", "pattern": "^(a{1000}){1000}$"}),
    Grammar.json_schema({"type": "string", "minLength": 10**9}),
    Grammar.json_schema({"type": "array", "minItems": 10**9}),
    Grammar.json_schema({"type": "integer", "multipleOf": 9973, "minimum": 10**300}),
    Grammar.json_schema({"type": "object", "properties": {f"p{number}": {} for number in range(1500)}}),
    Grammar.json_schema({"enum": [f"v{number}" for number in range(3000)]}),
    Grammar.regex("(x+x+)+y"),
    Grammar.regex(".*a.{2000}b"),
    Grammar.regex("(" * 5000 + ")" * 5000),
    Grammar.lark("\n".join(["start: r0", *(f"r{n}: r{n + 1}" for n in range(500)), 'r500: "a"'])[:LONGEST_LARK]),
    Grammar.lark("start: " + "(" * 4000 + '"a"' + ")" * 4000),
]


@pytest.mark.parametrize("grammar", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_hostile_grammars_end_in_an_error_or_in_masks(compiler: GrammarCompiler, grammar: Grammar) -> None:
    """And leave the process, and the compiler, as they were."""
    message = ""
    try:
        matcher = compiler.compile(grammar)
        for _ in range(20):
            tokens = np.flatnonzero(matcher.allowed())
            if len(tokens):
                matcher.advance(int(tokens[0]))
    except GrammarError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
    assert len(message) < 400
    assert compiler.compile(Grammar.regex("a")).accepts(ord("a"))


def test_a_grammar_that_takes_too_long_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "DEADLINE", 0.05)
    finished, entered = threading.Event(), threading.Event()
    original = GrammarCompiler._make

    def slow(self: GrammarCompiler, grammar: Grammar) -> Any:
        entered.set()
        finished.wait(60)
        return original(self, grammar)

    class Waits(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().acquire(blocking, timeout)

    waits: list[float | None] = []
    compiler = GrammarCompiler(byte_tokenizer().to_str, VOCAB, (EOS,))
    compiler._busy = Waits()
    known = compiler.compile(Grammar.regex("known"))
    monkeypatch.setattr(GrammarCompiler, "_make", slow)
    with refused(GrammarError, "0.05", code="schema_too_complex") as too_long:
        compiler.compile(Grammar.regex("slow"))
    assert entered.is_set()
    with refused(GrammarError, code="grammar_busy") as busy:  # one at a time, and nobody waits for this one any more
        compiler.compile(Grammar.regex("another"))
    assert [error.value.code for error in (too_long, busy)] == ["schema_too_complex", "grammar_busy"]
    assert waits == [0.05, 0.05, 0]
    assert compiler.compile(Grammar.regex("known")).allowed().tolist() == known.allowed().tolist()
    finished.set()
    with compiler._busy:  # it has come to its end
        monkeypatch.setattr(compiling, "DEADLINE", 60.0)
    assert compiler.compile(Grammar.regex("another")).accepts(ord("a"))
    assert waits[-1] == 60.0


def test_threads_compile_with_a_large_stack_and_others_do_not(compiler: GrammarCompiler) -> None:
    before = threading.stack_size()
    compiler.compile(Grammar.regex("stack"))
    assert threading.stack_size() == before


LETTERS = Grammar.regex("([ab]*a[ab]{8}[0-9])*x")  # the lexer gains some 20 states with each text


def small_lexers(monkeypatch: pytest.MonkeyPatch, states: int) -> tuple[GrammarCompiler, list[str]]:
    """A compiler, and what it has compiled."""
    monkeypatch.setitem(compiling.LIMITS, "max_lexer_states", states)
    made: list[str] = []
    original = GrammarCompiler._matcher
    monkeypatch.setattr(GrammarCompiler, "_matcher", lambda self, one: made.append(one.text) or original(self, one))
    return GrammarCompiler(byte_tokenizer().to_str, VOCAB, (EOS,)), made


def test_a_grammar_outlives_its_lexer(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills it, whatever was asked for then, and with the answers of a lexer that has room."""
    compiler.compile(LETTERS)
    small, made = small_lexers(monkeypatch, 200)
    rng = np.random.default_rng(0)
    for number in range(60):
        matcher, expected = small.compile(LETTERS), compiler.compile(LETTERS)
        assert isinstance(matcher, GuidedMatcher)
        assert matcher._source is not None
        assert matcher._begun is matcher._source.matcher  # not with a lexer that is known to be full
        for _ in range(30):
            if number % 3:  # else `advance` meets the full lexer
                ahead = matcher.copy()  # as for a draft
                assert ahead.accepts(ord("a")) == expected.copy().accepts(ord("a"))
                if number % 3 == 2:
                    assert ahead.allowed().tolist() == expected.allowed().tolist()
                assert matcher.forced() == expected.forced()
            token = int(rng.choice(np.flatnonzero(expected.allowed())))
            matcher.advance(token)
            expected.advance(token)
            if expected.done:
                break
        assert (matcher.accepting, matcher.done) == (expected.accepting, expected.done)
    assert 4 <= len(made) <= 20  # not once for each request


def test_a_text_that_no_lexer_has_room_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small, made = small_lexers(monkeypatch, 200)
    matcher = small.compile(LETTERS)
    with refused(GrammarError, "200", code="grammar_failed"):
        for letter in np.random.default_rng(0).choice(list(b"ab"), 2000):
            matcher.advance(int(letter))
            matcher.copy().allowed()
    assert 1 < len(made) < 50
    assert small.compile(LETTERS).accepts(ord("a"))


class Overfull:
    """llguidance's matcher where a mask is beyond the limits: it says so only when it is asked."""

    failed = False

    def deep_copy(self) -> Overfull:
        return Overfull()

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self.failed = True

    def is_error(self) -> bool:
        return self.failed

    def get_error(self) -> str:
        return "Too many items (limit 5000)\n<non-verbose/>"


def test_a_mask_in_error_is_no_end_and_spoils_no_state() -> None:
    state = Overfull()
    with refused(GrammarError, "Too", code="grammar_failed"):
        GuidedMatcher(state, VOCAB, [EOS]).allowed()  # type: ignore[arg-type]
    assert not state.failed


def test_what_is_invalid_is_compiled_once(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    made, original = [], GrammarCompiler._make
    monkeypatch.setattr(GrammarCompiler, "_make", lambda self, one: made.append(one) or original(self, one))
    errors = set()
    for _ in range(3):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(Grammar.regex("("))
        errors.add((str(caught.value), caught.value.code))
    assert len(errors) == len(made) == 1
