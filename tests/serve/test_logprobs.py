"""Tokens as texts, bytes and names: each entry is one token's, whatever texts they share."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from specexport.runtime.sampling.logprobs import TokenLogprobs
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.text.detokenizer import Detokenizer
from specexport.serve.wire.logprobs import Characters, CompletionEntries, TokenTexts, chat_logprobs
from support.doubles import BOS, EOS, byte_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models

PIECES = ["a", "b", "<0x61>", "<0xE2>", "<0x82>", "<0xAC>", "€", "▁a", "bytes:\\xe2", "<0xF0>"]


@pytest.fixture
def texts() -> TokenTexts:
    """Two tokens of "a", the bytes of "€" and the token of it, and a special one named like another's text."""
    vocabulary = {piece: place for place, piece in enumerate([*PIECES, "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("b", special=True)])
    return TokenTexts(tokenizer)


def entry(token: int, *likeliest: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(token), tuple((one, -float(one)) for one in likeliest))


def test_names(texts: TokenTexts) -> None:
    assert [texts.name_of(place) for place in range(8)] == [
        "a", "b", "a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "€", " a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("token", "likeliest", "wanted"),
    [
        (0, (0, 2, 7), {"a": 0.0, "token_id:2": -2.0, " a": -7.0}),
        (2, (0, 2), {"token_id:0": 0.0, "a": -2.0}),
        (2, (0, 7), {"token_id:0": 0.0, " a": -7.0, "a": -2.0}),
        (3, (3, 4, 9), {"bytes:\\xe2": -3.0, "bytes:\\x82": -4.0, "bytes:\\xf0": -9.0}),
        (8, (3, 8), {"token_id:3": -3.0, "bytes:\\xe2": -8.0}),
        (6, (), {"€": -6.0}),
    ],
)
def test_the_entries_of_a_position(
    texts: TokenTexts, token: int, likeliest: tuple[int, ...], wanted: dict[str, float]
) -> None:
    found = CompletionEntries(texts, Characters(texts)).add([entry(token, *likeliest)])
    assert found.top_logprobs == [wanted]
    assert found.top_logprobs[0][found.tokens[0]] == found.token_logprobs[0]


def test_offsets_are_those_of_whole_characters(texts: TokenTexts) -> None:
    """Of "a€b€ a", in which the first € is three tokens; wherever a chunk ends."""
    tokens = [0, 3, 4, 5, 1, 6, 7, 0]
    whole = CompletionEntries(texts, Characters(texts)).add([entry(token) for token in tokens]).text_offset
    assert whole == [0, 1, 1, 1, 2, 2, 3, 5]  # the special "b" has no text
    parts = CompletionEntries(texts, Characters(texts))
    assert [parts.add([entry(token)]).text_offset[0] for token in tokens] == whole


TOKENIZER = byte_tokenizer()
TOKENS = [*b"a \xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xef\xbf\xbd\xff", BOS, EOS]


@example(b"a", (), [0xED, 0x61])
@example(b"a\xe2", (), [0x82, 0xAC, 0x61])
@example(b"a", (EOS,), [0xE2, EOS, 0x61])
@given(
    st.sampled_from([b"", b"a", b"a\xe2", b"a\xf0\x9f"]),
    st.sampled_from([(), (EOS,)]),
    st.lists(st.sampled_from(TOKENS), max_size=40),
)
def test_offsets_are_those_of_the_text(prompt: bytes, shown: tuple[int, ...], tokens: list[int]) -> None:
    """Whatever bytes come, also those of no character; shown: special tokens whose names are in the text, which no byte
    follows that would go on with those before.
    """
    behind = pairwise(token for token in tokens if token != BOS)
    assume(not any(one in shown and 0x80 <= after < 0xC0 for one, after in behind))
    assume(not shown or prompt in (b"", b"a"))
    characters = Characters.after(TokenTexts(TOKENIZER), list(prompt), SamplingParameters(shown=shown))
    for place, token in enumerate(tokens, 1):
        detokenizer = Detokenizer(TOKENIZER, list(prompt), shown)
        text = "".join(map(detokenizer.add, tokens[:place])) + detokenizer.flush()
        length = 1 if token < BOS else len("<eos>") if token in shown else 0
        start = characters.add(token)
        assert start == len(text) - length or not length
        assert characters.end == len(text) or not characters.whole


def test_conversations_have_the_bytes(texts: TokenTexts) -> None:
    found = chat_logprobs([entry(3, 3, 4, 9, 0, 2)], texts).content[0]
    assert found.bytes == [0xE2]
    assert [one.bytes for one in found.top_logprobs] == [[0xE2], [0x82], [0xF0], [0x61], [0x61]]
    assert [one.logprob for one in found.top_logprobs] == [-3, -4, -9, 0, -2]
    assert json.dumps([one.token for one in found.top_logprobs][:3]) == json.dumps(["\ufffd"] * 3)
