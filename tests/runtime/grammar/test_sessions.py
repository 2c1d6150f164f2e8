"""Sessions under grammars: the same text plain and speculative, and what it is when it ends."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from specexport import Generation, Grammar, Session
from specexport.bundle import Contract
from specexport.errors import GrammarError, MissingPackageError, ParameterError
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.grammar import compiler
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.proofs.chi_squared import chi_squared
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.truncation import processed_distribution
from support.doubles import EOS, VOCAB, FakeDecoder, fake_session
from support.refusals import refused
from support.schemas import random_schema

DRAFTERS = all_drafters(("model",))

CONTRACT = Contract(capacity=160, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
PROMPT = list(b'as JSON, {"id":1,"name":"x"}: ')
SCHEMAS = [random_schema(seed) for seed in range(200)]
WAYS = [(drafter, k) for drafter in DRAFTERS for k in range(1, CONTRACT.max_draft_tokens + 1)]
MakeSession = Callable[..., Session]


class Writer(FakeDecoder):
    """Writes ASCII rather than other bytes, so that texts end; the draft's noise leaves that alone."""

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        row = super().logits_after(context).copy()
        row[32:127] += np.float32(1.0)
        row[[ord('"'), ord("}"), ord("]"), *range(EOS, len(row))]] += np.float32(2.0)
        return row


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    def make(seed: int = 0, noise: float = 0.4, vocab: int = VOCAB, draft_vocab: int | None = None) -> Session:
        draft = Writer(CONTRACT, draft_vocab or vocab, seed, noise)
        return fake_session(tmp_path, Writer(CONTRACT, vocab, seed), draft, stop_token_ids=(EOS,))

    return make


def check_rows(session: Session) -> None:
    """Every cache row that counts is the row of its token."""
    tokens = session._context.tokens
    for cached in session._context.decoders:
        decoder = getattr(cached.decoder, "_decoder", cached.decoder)  # of a draft with fewer ids
        assert decoder.rows[: cached.rows].tolist() == tokens[: cached.rows]  # type: ignore[attr-defined]


def state_behind(session: Session, grammar: Grammar, tokens: Sequence[int]) -> Any:
    """Of `tokens` that the grammar allows, one after the other; the assertion is that it does."""
    state = session._grammars.compile(grammar)
    for token in tokens:
        assert state.allowed()[token]
        state.advance(token)
    return state


def by_hand(session: Session, prompt: Sequence[int], grammar: Grammar, limit: int) -> tuple[int, ...]:
    """Plain constrained greedy decoding: the row, masked by all that the grammar allows, and its largest logit."""
    output: list[int] = []
    while len(output) < limit:
        state = state_behind(session, grammar, output)
        if state.done:
            break
        row = session.engine.target.logits_after([*prompt, *output]).copy()  # type: ignore[attr-defined]
        allowed = state.allowed().copy()
        allowed[EOS] = state.accepting
        row[~allowed] = -np.inf
        output.append(int(row.argmax()))
        if output[-1] == EOS:
            break
    return tuple(output)


def check_end(session: Session, schema: Any, grammar: Grammar, generation: Generation) -> None:
    """`stop` is valid JSON of the schema; `length` is how some such JSON begins."""
    content = [token for token in generation.tokens if token != EOS]
    state = state_behind(session, grammar, content)
    assert (generation.finish_reason == "stop") == (state.done or EOS in generation.tokens)
    if generation.finish_reason == "stop":
        value = json.loads(generation.text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator, format_checker=jsonschema.FormatChecker())
        assert bytes(content).decode() == generation.text


def check_schema(session: Session, seed: int, ways: Sequence[tuple[str, int]], limit: int) -> Counter[str]:
    schema, grammar = SCHEMAS[seed], Grammar.json_schema(SCHEMAS[seed])
    plain = session.generate(PROMPT, grammar=grammar, max_new_tokens=limit, speculate=False)
    assert plain.tokens == by_hand(session, PROMPT, grammar, limit)
    found: Counter[str] = Counter()
    for drafter, k in ways:
        options = {"grammar": grammar, "max_new_tokens": limit, "drafter": drafter, "num_draft_tokens": k}
        greedy = session.generate(PROMPT, **options)
        assert (greedy.tokens, greedy.text, greedy.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
        sampled = session.generate(PROMPT, temperature=1.0, top_p=0.95, seed=seed, **options)
        for one in (greedy, sampled):
            check_end(session, schema, grammar, one)
            check_rows(session)
            found += Counter({one.finish_reason: 1, "accepted": one.statistics.accepted})
            found += Counter({"forced": one.statistics.forced, "drafted": one.statistics.drafted})
    return found


def test_speculative_output_is_plain_constrained_output(make_session: MakeSession) -> None:
    """Every drafter and k, a schema each, and every tenth of 200 besides; the slow set takes all."""
    session = make_session()
    found: Counter[str] = Counter()
    for place, way in enumerate(WAYS):
        found += check_schema(session, 10 * place % 199, [way], 120 - 90 * (place % 5 == 0))
    assert min(found["stop"], found["length"], found["forced"]) > 3
    assert found["drafted"] > found["accepted"] > 100


def test_rounds_of_forced_tokens_alone_are_no_drafters(make_session: MakeSession) -> None:
    keys = {"type": "object", "properties": {"a long name": {"type": "string"}}, "required": ["a long name"]}
    session, options = make_session(), {"grammar": Grammar.json_schema(keys), "num_draft_tokens": 4}
    *_, last = chunks = list(session.stream(PROMPT, max_new_tokens=120, drafter="model", **options))
    drafted = [set(chunk.sources) for chunk in chunks if chunk.sources]
    assert {"grammar"} in drafted
    assert sum(last.statistics.rounds_by_drafter.values()) == len([found for found in drafted if "model" in found]) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_200_schemas_by_every_drafter(make_session: MakeSession, part: int) -> None:
    session = make_session(part)
    for seed in range(part, 200, 8):
        check_schema(session, seed, [*WAYS[seed % 4 :: 4], ("model", 4)], 120)


@pytest.mark.parametrize("draft_vocab", [VOCAB - 2, VOCAB + 30])
def test_a_draft_of_more_or_fewer_ids(make_session: MakeSession, draft_vocab: int) -> None:
    session = make_session(draft_vocab=draft_vocab)
    assert check_schema(session, 3, [("model", 4)], 100)["accepted"] > 0


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_ids_that_only_pad_the_vocabulary_never_come(make_session: MakeSession, temperature: float) -> None:
    session = make_session(vocab=VOCAB + 40)
    grammar = Grammar.regex(r"(?s:.{60})")
    tokens = session.generate(PROMPT, grammar=grammar, temperature=temperature, max_new_tokens=100, seed=1).tokens
    assert max(tokens) < 256


@pytest.mark.parametrize("k", range(5))
def test_a_grammar_that_is_complete_within_a_round_ends_there(make_session: MakeSession, k: int) -> None:
    """The draft is the target, so all of it stands, and the end comes at every place of a round."""
    session = make_session(noise=0.0)
    for length in range(1, 8):
        grammar = Grammar.regex(f"[a-z]{{{length}}}")
        generation = session.generate(PROMPT, grammar=grammar, num_draft_tokens=k, drafter="model")
        assert generation.finish_reason == "stop"
        assert len(generation.tokens) == len(generation.text) == length
        assert session._context.tokens == [*PROMPT, *generation.tokens]


@pytest.mark.parametrize("options", [{"speculate": False}, {"num_draft_tokens": 4}])
def test_stop_tokens_come_where_the_text_is_complete_and_nowhere_else(
    make_session: MakeSession, options: dict[str, Any]
) -> None:
    session, grammar = make_session(), Grammar.regex("(ab){2,40}")
    eager = {"logit_bias": {EOS: 100.0}, "grammar": grammar, **options}
    assert session.generate(PROMPT, **eager).text == "abab"
    assert session.generate(PROMPT, **eager).tokens[-1] == EOS
    endless = session.generate(PROMPT, stop_token_ids=(), max_new_tokens=30, **eager)
    assert (endless.text, endless.finish_reason) == ("ab" * 15, "length")
    # One that is text too ends the text and does not come within.
    other = session.generate(
        PROMPT, stop_token_ids=(ord("c"),), logit_bias={ord("c"): 100.0}, **options, grammar=grammar
    )
    assert (other.text, other.finish_reason) == ("abab", "stop")


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}, {"speculate": False}])
def test_bans_that_leave_nothing_are_a_dead_end(make_session: MakeSession, options: dict[str, Any]) -> None:
    session = make_session()
    with refused(GrammarError, code="grammar_failed"):
        session.generate(PROMPT, grammar=Grammar.regex("abc"), banned_tokens=[ord("b")], **options)
    assert session.generate(PROMPT, grammar=Grammar.regex("abc"), **options).text == "abc"


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_cancelled_request_leaves_nothing_behind(make_session: MakeSession, rounds: int) -> None:
    session, grammar = make_session(), Grammar.json_schema(SCHEMAS[0])
    whole = session.generate(PROMPT, grammar=grammar, max_new_tokens=60)
    for end in ("cancel", "close"):
        stream = session.stream(PROMPT, grammar=grammar, max_new_tokens=60)
        text = "".join(chunk.text for chunk in islice(stream, rounds))
        getattr(stream, end)()
        text += "".join(chunk.text for chunk in stream) if end == "cancel" else ""
        assert whole.text.startswith(text)
        check_rows(session)
        assert session.generate(PROMPT, grammar=grammar, max_new_tokens=60).tokens == whole.tokens


@pytest.mark.slow
@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("drafter", ["model", "ngram+model"])
def test_sampled_output_has_the_bounded_distribution(
    make_session: MakeSession, verification: Any, drafter: str
) -> None:
    session, grammar = make_session(noise=0.8), Grammar.choice(["ab", "aba", "abba", "b", "bca"])
    params = SamplingParameters(temperature=1.2, top_p=0.9, verification=verification, drafter=drafter, grammar=grammar)
    joint: dict[tuple[int, ...], float] = {}
    waiting = [((), 1.0)]
    while waiting:
        tokens, probability = waiting.pop()
        state = state_behind(session, grammar, [token for token in tokens if token != EOS])
        if state.done or EOS in tokens:
            joint[tokens] = probability
            continue
        allowed = state.allowed().copy()
        allowed[EOS] = state.accepting
        row = session.engine.target.logits_after([*PROMPT, *tokens]).copy()  # type: ignore[attr-defined]
        row[~allowed] = -np.inf
        for token, share in processed_distribution(row, params).items():
            waiting.append(((*tokens, token), probability * share))
    found = Counter(session.generate(PROMPT, params, seed=seed).tokens for seed in range(1500))
    statistic, limit, cells = chi_squared(joint, found)
    assert statistic <= limit
    assert cells > 2


def test_a_grammar_that_outgrows_the_limits_is_an_error_and_no_end(make_session: MakeSession) -> None:
    """llguidance allows nothing but the end there, in silence."""
    session = make_session()
    wide = {"type": "object", "properties": {f"p{number}": {} for number in range(1500)}}
    grammar = Grammar.json_schema({"prefixItems": [{"const": 17}, wide], "minItems": 2, "maxItems": 2})
    with refused(GrammarError, "6007", code="grammar_failed"):
        session.generate(PROMPT, grammar=grammar, max_new_tokens=60, temperature=1.0, seed=1)
    assert session.generate(PROMPT, grammar=Grammar.regex("ab")).text == "ab"
    # With another way to go on too: to leave out the one that fails would make the model go that way.
    for way, other in ((grammar, r"\[17,x{9}"), (Grammar.regex(r"\[17,x{9}"), grammar)):
        answer = other if isinstance(other, Grammar) else Grammar.regex(other)
        with refused(GrammarError, "Too many items", code="grammar_failed"):
            session.generate(PROMPT, grammar=way.otherwise(answer, "<"), max_new_tokens=60, temperature=1.0, seed=1)


def test_what_the_grammar_took_is_counted_by_request(make_session: MakeSession) -> None:
    session, grammar = make_session(), Grammar.regex("[ab]{20}")
    assert session.generate(PROMPT, max_new_tokens=5).statistics.grammar_seconds == 0.0
    with session.stream(PROMPT, grammar=grammar, max_new_tokens=50) as stream:
        seen = [chunk.statistics.grammar_seconds for chunk in stream]
    assert sorted(set(seen)) == seen
    assert seen[0] > 0
    statistics = session.generate(PROMPT, grammar=grammar, max_new_tokens=50).statistics
    assert (
        0 < statistics.grammar_seconds < statistics.host_seconds + statistics.setup_seconds + statistics.prefill_seconds
    )
    assert statistics.as_dict()["grammar_seconds"] > 0


def test_what_goes_with_no_grammar(make_session: MakeSession) -> None:
    session = make_session()
    with refused(ParameterError, "3", field="min_new_tokens"):
        session.generate(PROMPT, grammar=Grammar.regex("a+"), min_new_tokens=3)
    with refused(ParameterError, "a+", field="grammar"):
        session.generate(PROMPT, grammar="a+")


def test_llguidance_is_asked_for_by_name(make_session: MakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    session = make_session()
    assert session.generate(PROMPT, max_new_tokens=2).tokens
    with refused(MissingPackageError, "specexport[grammar]"):
        session.prepare_grammar()
    with refused(MissingPackageError, "specexport[grammar]"):
        session.generate(PROMPT, grammar=Grammar.regex("a"))


def test_a_grammar_that_was_prepared_is_not_compiled_again(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = make_session(), make_session()
    monkeypatch.setattr(compiler, "KEPT", 0)  # as if many others came between
    prepared = session.prepare_grammar(Grammar.regex("ab"))
    made: list[Grammar] = []
    original = GrammarCompiler._make
    monkeypatch.setattr(GrammarCompiler, "_make", lambda self, given: made.append(given) or original(self, given))
    assert [session.generate(PROMPT, grammar=prepared).text for _ in range(2)] == ["ab", "ab"]
    assert not made
    assert other.generate(PROMPT, grammar=prepared).text == "ab"  # each has its own tokenizer
    assert len(made) == 1
    assert pickle.loads(pickle.dumps(prepared)) == Grammar.regex("ab")
