"""L0 where a grammar begins in mid-round: behind a trigger, or the end of the thinking, that a draft completes.

What may follow is written here once more as a function of the text so far.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from specexport import Grammar
from specexport.errors import GrammarError
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.constraint import Matcher
from specexport.runtime.grammar.thinking import Thinking
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE
from specexport.runtime.tools.bounds import _start
from support.bounded import Bounded, with_a_model
from support.tool_forms import HERMES
from tokenizers import Tokenizer, models, pre_tokenizers

TOKENS = ("t", "u", "ut", "uu")  # the last two end the trigger `tu` and go on, rightly and wrongly
CALL = "tt*"
TOOLS = Grammar("tools", "\n".join([*_start(replace(HERMES, trigger="tu"), demanded=False), f"calls: /{CALL}/"]))
THOUGHTS = Grammar.regex(CALL).after(Thinking("uuu", "tu", begun=True))
EITHER = Grammar("tools", "start: /tt?u?t*/").otherwise(Grammar.regex("[tu]?uu*"), "tt")
both = pytest.mark.parametrize("grammar", [TOOLS, THOUGHTS, EITHER], ids=["tools", "thoughts", "either"])


class Written:
    """Free text until `tu`; behind it what begins a call."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def allowed(self) -> np.ndarray:
        return np.array([self._may(self.text + token) for token in TOKENS])

    @staticmethod
    def _may(text: str) -> bool:
        behind = text.partition("tu")[2]
        return not behind or re.fullmatch(CALL, behind) is not None

    def advance(self, token: int) -> None:
        if not self.allowed()[token]:
            raise GrammarError(f"{TOKENS[token]} does not follow {self.text}")
        self.text += TOKENS[token]

    def copy(self) -> Written:
        return type(self)(self.text)


class EitherWritten(Written):
    """What begins a text of one of the two, which have some in common."""

    @staticmethod
    def _may(text: str) -> bool:
        return re.fullmatch("(tt?u?t*)?|[tu]?u*", text) is not None


def written(grammar: Grammar) -> Written:
    return EitherWritten() if grammar is EITHER else Written()


@cache
def compiled(grammar: Grammar) -> Matcher:
    vocabulary = {token: number for number, token in enumerate((*TOKENS, "e"))}  # the library must have an end
    tokenizer = Tokenizer(models.BPE(vocabulary, [("u", "t"), ("u", "u")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    description = json.loads(tokenizer.to_str())
    description["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    compiler = GrammarCompiler(lambda: json.dumps(description), len(vocabulary), (len(TOKENS),))
    return compiler.compile(grammar)


def pair(grammar: Grammar, masked: bool = True) -> tuple[Bounded, Bounded]:
    seed = 8 if grammar is EITHER else 1
    matcher = compiled(grammar)
    options = {"top_p": 0.9}
    target = Bounded(len(TOKENS), seed, grammar=written(grammar), matcher=matcher, options=options)
    return target, Bounded(len(TOKENS), 100 + seed, grammar=written(grammar) if masked else None, options=options)


@both
def test_the_mask_is_a_function_of_the_text(grammar: Grammar) -> None:
    matcher = compiled(grammar)
    rng, crossed = np.random.default_rng(0), 0
    for _ in range(60):
        state, text = matcher.copy(), written(grammar)
        for _ in range(8):
            assert state.allowed()[:-1].tolist() == text.allowed().tolist(), text.text
            assert [state.accepts(token) for token in range(len(TOKENS))] == text.allowed().tolist()
            token = int(rng.choice(np.flatnonzero(text.allowed())))
            state.advance(token)
            text.advance(token)
        crossed += "tut" in text.text
    assert crossed > 5


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("masked", [True, False])
@both
def test_a_trigger_in_mid_round_leaves_the_output_the_targets_own(
    grammar: Grammar, verification: str, masked: bool
) -> None:
    target, draft = pair(grammar, masked)
    result = with_a_model(target, draft, 2, verification, masked)
    assert result.error(target) <= PROBABILITY_TOLERANCE
    behind = sum(share for tokens, share in result.joint.items() if tokens[:2] in ((0, 1), (0, 2)))
    assert behind > 1e-2  # there are rounds in which the draft completes the trigger
