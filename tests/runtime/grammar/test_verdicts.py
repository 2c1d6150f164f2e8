"""The first of some grammars that can be compiled: none is compiled twice, none after the deadline."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from specexport import Grammar
from specexport.errors import GrammarError
from specexport.runtime.grammar import compiler as compiling
from specexport.runtime.grammar.compiler import GrammarCompiler
from support.doubles import EOS, VOCAB, byte_tokenizer

pytest.importorskip("llguidance")
GOOD, BAD, WORSE = Grammar.regex("a+"), Grammar.regex("("), Grammar.json_schema({"not": {}})


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer().to_str, VOCAB, (EOS,))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled."""
    found: list[str] = []
    original = GrammarCompiler._make

    def noted(self: GrammarCompiler, grammar: Grammar) -> Any:
        found.append(grammar.text)
        return original(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_make", noted)
    return found


def test_the_first_that_can_be_compiled(compiler: GrammarCompiler, made: list[str]) -> None:
    other = Grammar.regex("b")
    ways = [[GOOD, other], [BAD, WORSE, other], [BAD, WORSE], []]
    for _ in range(2):
        assert compiler.first_kept(ways) == [GOOD, other, None, None]
    assert made == [GOOD.text, BAD.text, WORSE.text, other.text, BAD.text, WORSE.text]
    assert compiler.first_kept([[BAD, GOOD]]) == [GOOD]
    assert len(made) == 6  # within one call they may come twice, in the next one they are known


def test_what_is_wrong_is_remembered(compiler: GrammarCompiler, made: list[str]) -> None:
    told = []
    for _ in range(3):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(BAD)
        told.append((str(caught.value), caught.value.code))
    assert len({*told}) == 1
    assert made == [BAD.text]


@pytest.mark.parametrize("own", [1.0, 0.0])
def test_one_deadline_for_all(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, own: float) -> None:
    """What was not looked at in time is not kept, and not compiled later; own: seconds that the slow one computes."""
    slow, behind = Grammar.regex("slow"), Grammar.regex("behind")
    released, original, begun = threading.Event(), GrammarCompiler._make, []

    def make(self: GrammarCompiler, grammar: Grammar) -> Any:
        begun.append(grammar)
        if grammar == slow:
            clock[0] += own
            assert released.wait(60)
        return original(self, grammar)

    clock = [0.0]
    compiler.compile(GOOD)
    monkeypatch.setattr(compiling, "thread_time", lambda: clock[0])
    monkeypatch.setattr(GrammarCompiler, "_make", make)
    monkeypatch.setattr(compiling, "DEADLINE", 0.05)
    assert compiler.first_kept([[GOOD], [slow, GOOD], [behind]]) == [GOOD, None, None]
    with pytest.raises(GrammarError) as busy:
        compiler.first_kept([[behind]])
    assert busy.value.code == "grammar_busy"
    assert compiler.first_kept([[GOOD]]) == [GOOD]  # it is known
    released.set()
    with compiler._busy:  # it has come to its end
        assert begun == [slow]
    monkeypatch.setattr(compiling, "DEADLINE", 60.0)
    assert compiler.first_kept([[slow, GOOD], [behind]]) == [GOOD if own else slow, behind]
