"""A grammar behind the model's thinking: free text up to the end marker, and only the grammar's texts behind it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import pytest
from specexport import Grammar
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.thinking import Thinking
from support.doubles import EOS, VOCAB, byte_tokenizer
from tokenizers import AddedToken

NAMES = ("<think>", "</think>", "<b>", "[THINK]", "[/THINK]")
IDS = {name: VOCAB + place for place, name in enumerate(NAMES)}
QWEN = Thinking(
    "<think>",
    "</think>",
    "\n",
    "\n\n",
    atoms=(("<think>", IDS["<think>"]), ("</think>", IDS["</think>"])),
    free=(IDS["<think>"], IDS["<b>"]),
)
SEVERAL = Thinking(  # markers with tokens in them
    "[THINK]so[/THINK]",
    "#<b>.",
    gap="!",
    atoms=tuple((name, IDS[name]) for name in ("[THINK]", "[/THINK]", "<b>")),
    shown=(IDS["[THINK]"], IDS["[/THINK]"]),
)
GRAMMARS = [
    Grammar.json_schema({"type": "integer"}),
    Grammar.regex("[0-9]+"),
    Grammar.choice(["12", "345"]),
    Grammar.lark("start: /[0-9]+/"),
]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_tokenizer()
    for name in NAMES:
        tokenizer.add_tokens([AddedToken(name, special=name.startswith("["), normalized=False)])
    return GrammarCompiler(tokenizer.to_str, tokenizer.get_vocab_size(), (EOS,))


def ending(compiler: GrammarCompiler, grammar: Grammar, text: str, spelled: Collection[str] = ()) -> bool | None:
    """Whether the output may end behind `text`, None where it is forbidden. spelled: names written without tokens."""
    state = compiler.compile(grammar)
    for part in re.split(f"({'|'.join(map(re.escape, NAMES))})", text):
        for token in [IDS[part]] if part in IDS and part not in spelled else part.encode():
            assert state.accepts(token) == state.allowed()[token]
            if not state.accepts(token):
                return None
            state.advance(token)
    return state.accepting


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_what_a_model_may_think(compiler: GrammarCompiler, grammar: Grammar) -> None:
    """Or not: then the answer comes at once."""
    behind = grammar.after(QWEN)
    cases = {
        "12": True,
        "<think>So {<b> é <think></think>\n\n12": True,
        "\n<think></think>\n\n12": True,
        "<think>12": False,
        "": False,
        "12<think>": None,
        "So</think>\n\n12": None,
        "<think>a</think>12": None,  # the gap is the template's
        "<think>a</think>\n\n</think>": None,
        "<think>[THINK]": None,
    }
    assert {text: ending(compiler, behind, text) for text in cases} == cases
    assert ending(compiler, behind, "<think>a</thin</think>\n\n12", NAMES)  # both read the same
    assert ending(compiler, behind, "\n<think>a</think>\n\nb", NAMES) is None


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_a_prompt_that_has_begun_it(compiler: GrammarCompiler, grammar: Grammar) -> None:
    behind = grammar.after(replace(QWEN, begun=True))
    cases = {"12": False, "So</think>\n\n12": True, "</think>\n\n12": True, "So</think>\n\nx": None, "</think>12": None}
    assert {text: ending(compiler, behind, text) for text in cases} == cases


def test_an_answer_that_begins_like_thoughts_is_thoughts(compiler: GrammarCompiler) -> None:
    """As it is read: whoever spells the opening has begun to think."""
    behind = Grammar.regex(r"[^x]+").after(QWEN)
    assert ending(compiler, behind, "<thin a", NAMES)
    assert ending(compiler, behind, "<think>a", NAMES) is False
    assert ending(compiler, behind, "<think>a</think>b", NAMES) is None


@pytest.mark.parametrize("spelled", [(), NAMES], ids=["by tokens", "by bytes"])
def test_markers_that_hold_tokens(compiler: GrammarCompiler, spelled: Collection[str]) -> None:
    """A model writes them with these tokens; what other tokens spell reads the same."""
    grammar = Grammar.regex("[0-9]+").after(SEVERAL)
    for thoughts in ("", "hm #", "#.\n"):
        assert ending(compiler, grammar, f"[THINK]so[/THINK]{thoughts}#<b>.!12", spelled)
    assert ending(compiler, grammar, "[THINK]so[/THINK]hm#<b>.12", spelled) is None
    assert ending(compiler, grammar, "12", spelled)


def test_thoughts_that_may_be_all_there_is(compiler: GrammarCompiler) -> None:
    """As where tools may be called: nothing is demanded of the text."""
    for begun, opening in ((False, "<think>"), (True, "")):
        behind = GRAMMARS[1].after(replace(QWEN, begun=begun, may_stop=True))
        assert ending(compiler, behind, f"{opening}12 <b>")
        assert ending(compiler, behind, f"{opening}a</think>12")
        assert ending(compiler, behind, f"{opening}a</think>b") is None
