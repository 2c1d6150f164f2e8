"""Grammars over tokenizers as Llama 2's: a blank in front of every text, "▁" for blanks, a byte where no piece fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from specexport import Generation, Grammar, Session
from specexport.bundle import Contract
from specexport.engines.base import Engine, OpenedDraft
from specexport.runtime.grammar.compiler import GrammarCompiler
from specexport.runtime.grammar.constraint import Matcher
from specexport.runtime.text.token_bytes import spelled
from support.doubles import EOS as BYTE_EOS
from support.doubles import VOCAB as BYTE_VOCAB
from support.doubles import FakeDecoder, byte_tokenizer, write_bundle
from support.schemas import random_schema
from tokenizers import Tokenizer, decoders, models, normalizers

CONTRACT = Contract(capacity=200, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
SPECIAL, EOS = ["<unk>", "<s>", "</s>"], 2
LETTERS = [*"▁abcdefghijklmnopqrstuvwxyzABCDIPZ0123456789\"'{}[]():,.-é"]  # and no 日, nor "ö"
MERGES = [("n", "a"), ("t", "e"), ("d", "e"), ("r", "d"), ("m", "e"), ("na", "me"), ("▁", "na"), ("▁na", "me"),
          ("▁", "▁"), ("▁▁", "▁"), ("▁", '"'), ('"', ":"), ('"', "na"), ('"na', "me"), ('"name', '":'), ("{", '"'),
          ("1", "0")]  # fmt: skip
PADDING = 9
GRAMMARS = [
    Grammar.regex("[a-d]{0,3} name ?[日本é]{2,5}(  +x)?"),
    Grammar.choice(["name", " name", "日本 größe", "\n\tna\x00me"]),
    Grammar.json_schema(
        {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}}}, whitespace=True
    ),
    *(Grammar.json_schema(random_schema(seed)) for seed in range(6)),
]


def sentencepiece(kind: str) -> Tokenizer:
    """Of the kinds `bpe`, as Llama 2's tokenizer.json has it, and `unigram`."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
    merges = sorted(set(MERGES), key=lambda pair: len("".join(pair)))
    for pair in merges:
        pieces += [piece for piece in (*pair, "".join(pair)) if piece not in pieces]
    if kind == "bpe":
        vocabulary = {piece: place for place, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    else:
        scores = [(piece, -3.0 / len(piece) if place > 258 else 0.0) for place, piece in enumerate(pieces)]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return sentencepiece(request.param)


@pytest.fixture(scope="module")
def of_bytes() -> GrammarCompiler:
    """What a grammar takes, byte by byte: the judge."""
    return GrammarCompiler(byte_tokenizer().to_str, BYTE_VOCAB, (BYTE_EOS,))


@pytest.fixture
def session(tokenizer: Tokenizer, tmp_path: Path) -> Session:
    size = tokenizer.get_vocab_size() + PADDING
    bundle = write_bundle(tmp_path, CONTRACT, size, stop_token_ids=(EOS,))
    tokenizer.save(str(tmp_path / "tokenizer/tokenizer.json"))
    return Session(
        bundle, Engine("fake", "ort", FakeDecoder(CONTRACT, size, 1), OpenedDraft(FakeDecoder(CONTRACT, size, 1, 0.4)))
    )


def bytes_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    names = spelled(json.loads(tokenizer.to_str()))
    return b"".join(names[token] for token in tokens if token != EOS)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=range(len(GRAMMARS)))
def test_masks_are_those_of_the_bytes(tokenizer: Tokenizer, of_bytes: GrammarCompiler, grammar: Grammar) -> None:
    """A token is allowed exactly where all of its bytes are; but of what is forced, one way to write it."""
    names = spelled(json.loads(tokenizer.to_str()))
    size = tokenizer.get_vocab_size() + PADDING
    state = GrammarCompiler(tokenizer.to_str, size, (EOS,)).compile(grammar)
    judge, draw = of_bytes.compile(grammar), np.random.default_rng(7)
    for _ in range(25):
        expected = []
        for token in range(len(SPECIAL), tokenizer.get_vocab_size()):
            ahead = judge.copy()
            for byte in names[token]:
                if not ahead.accepts(byte):
                    break
                ahead.advance(byte)
            else:
                expected.append(token)
        allowed = np.flatnonzero(state.allowed()).tolist()
        assert (state.accepting, state.done) == (judge.accepting, judge.done)
        if state.forced():
            assert set(allowed) == set(state.forced()[:1]) <= set(expected)
        else:
            assert allowed == expected
        if not allowed:
            return
        token = int(draw.choice(allowed))
        state.advance(token)
        for byte in names[token]:
            judge.advance(byte)


def check(found: bytes, judge: Matcher, grammar: Grammar, generation: Generation) -> None:
    """The bytes, which the text spells, are the grammar's, whole or how it begins."""
    for byte in found:
        assert judge.accepts(byte), found
        judge.advance(byte)
    if generation.finish_reason == "stop":
        assert judge.accepting
        if grammar.kind == "schema":
            jsonschema.validate(json.loads(generation.text), json.loads(grammar.text))


@pytest.mark.parametrize("prompt", ["name", "name ", "日", ""], ids=["word", "blank", "bytes", "nothing"])
def test_the_text_is_the_grammars_whatever_stands_before_it(
    tokenizer: Tokenizer, session: Session, of_bytes: GrammarCompiler, prompt: str
) -> None:
    ids = [1, *session.encode(prompt)] if prompt else [1]
    for seed, grammar in enumerate(GRAMMARS):
        options = {"grammar": grammar, "max_new_tokens": 60}
        plain = session.generate(ids, speculate=False, **options)  # type: ignore[arg-type]
        greedy = session.generate(ids, drafter="model", num_draft_tokens=4, **options)  # type: ignore[arg-type]
        sampled = session.generate(ids, temperature=1.0, seed=seed, **options)  # type: ignore[arg-type]
        assert (greedy.tokens, greedy.text, greedy.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
        for one in (greedy, sampled):
            found = bytes_of(tokenizer, one.tokens)
            check(found, of_bytes.compile(grammar), grammar, one)
            # Behind nothing, such a tokenizer takes the blank away that it puts in front of every text.
            shown = found if prompt else found.removeprefix(b" ")
            # Of a character that was cut off, versions of tokenizers show one sign or one for each byte.
            assert one.text.rstrip("\ufffd") == shown.decode("utf-8", "replace").rstrip("\ufffd")
