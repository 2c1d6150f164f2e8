"""Tokens as texts, bytes and names: each entry is one token's, whatever texts they share."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from specexport.runtime.loop.chunks import Chunk
from specexport.runtime.sampling.logprobs import TokenLogprobs
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.state.statistics import Statistics
from specexport.runtime.text.detokenizer import Detokenizer
from specexport.serve.routes.output import Entries
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
    ends = [0, 1, 4, 5, 6, 7, 8]
    split = [parts.add([entry(token) for token in tokens[start:end]]).text_offset for start, end in pairwise(ends)]
    assert [place for part in split for place in part] == whole


@pytest.mark.parametrize("ends", [[0, 3], [0, 2, 3]])
def test_each_byte_of_no_character_has_a_place(texts: TokenTexts, ends: list[int]) -> None:
    """As the decoder writes it: "\ufffd\ufffda"."""
    entries = CompletionEntries(texts, Characters.after(texts, [0], SamplingParameters()))
    tokens = [3, 4, 0]
    split = [entries.add([entry(token) for token in tokens[start:end]]).text_offset for start, end in pairwise(ends)]
    assert [place for part in split for place in part] == [0, 1, 2]


def test_no_entry_is_sent_of_a_text_that_was_cut_off(texts: TokenTexts) -> None:
    """The bytes of half a character, and "a a", which a stop string cut off."""
    tokens = (3, 4, 0, 7)
    held = Entries(Characters.after(texts, [0], SamplingParameters()), frozenset())
    chunk = Chunk("\ufffd\ufffd", tokens, "stop", Statistics(), logprobs=tuple(map(entry, tokens)))
    assert not {one.token for one in held.add(chunk)} & {0, 7}


def fallback_tokenizer() -> Tokenizer:
    """Tokens of bytes with their bytes as ids, and "a"."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256, "<unk>": 257}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


FALLBACK = fallback_tokenizer()
A, END = 256, 258


@example([], [0xE2, 0x82, A])
@example([0xE2], [0x82, 0xAC, A])
@example([0xE2], [0x82, A])
@example([0xFF, 0xE2], [0x82, 0xAC, A])
@given(
    st.sampled_from([[], [0xE2], [0xF0, 0x9F], [0xFF], [0xFF, 0xE2], [0xC3, 0xA9]]),
    st.lists(st.sampled_from([A, A, *b"\n\xe2\x82\xac\xf0\x9f\x98\xff", END]), max_size=13),
)
def test_offsets_are_those_of_the_text_with_byte_fallback(prompt: list[int], tokens: list[int]) -> None:
    """Of a run of bytes either the characters or, from the first that is none on, each byte as U+FFFD."""
    characters = Characters.after(TokenTexts(FALLBACK), [A, *prompt], SamplingParameters())
    detokenizer = Detokenizer(FALLBACK, [A, *prompt])
    places, text = [], ""
    for token in tokens:
        places += characters.add(token)
        text += detokenizer.add(token)
        assert len(text) <= characters.end
    places += characters.rest()
    text += detokenizer.flush()
    wanted = [place for place, one in enumerate(text) for _ in range(1 if one == "\ufffd" else len(one.encode()))]
    begun = len(wanted) - len(tokens) + tokens.count(END)
    assert begun == (0 if 0xFF in prompt or 0xA9 in prompt else len(prompt)) or not wanted
    found = [place for place, token in zip(places[len(places) - len(tokens) :], tokens, strict=True) if token != END]
    assert found == wanted[max(begun, 0) :]


def test_a_replacement_character_in_a_run_of_bytes() -> None:
    """It is one, unless a byte of no character follows, or too many to be held back."""
    for tokens, wanted, text in (
        ([*"\ufffd".encode(), A], [0, 0, 0, 1], "\ufffda"),
        ([*"\ufffd€".encode(), A], [0, 0, 0, 1, 1, 1, 2], "\ufffd€a"),
        ([*"\ufffd".encode(), 0xFF, A], [0, 1, 2, 3, 4], "\ufffd" * 4 + "a"),
        ([*"\ufffd".encode() * 6, A], [*range(19)], "\ufffd" * 18 + "a"),
    ):
        characters = Characters.after(TokenTexts(FALLBACK), [A], SamplingParameters())
        detokenizer = Detokenizer(FALLBACK, [A])
        assert "".join(map(detokenizer.add, tokens)) == text
        assert [place for token in tokens for place in characters.add(token)] == wanted


def test_replacement_characters_of_the_prompt_break_no_run() -> None:
    """However many they are."""
    prompt, tokens = [A, *"\ufffd".encode() * 9], [*"€".encode(), A]
    characters = Characters.after(TokenTexts(FALLBACK), prompt, SamplingParameters())
    detokenizer = Detokenizer(FALLBACK, prompt)
    assert "".join(map(detokenizer.add, tokens)) == "€a"
    assert [place for token in tokens for place in characters.add(token)] == [0, 0, 0, 1]


def test_a_run_that_the_prompt_broke_stays_broken() -> None:
    """However long before."""
    prompt, tokens = [A, 0xFF, *b"\n\n\n\n"], [*"€".encode(), A]
    characters = Characters.after(TokenTexts(FALLBACK), prompt, SamplingParameters())
    detokenizer = Detokenizer(FALLBACK, prompt)
    assert "".join(map(detokenizer.add, tokens)) == "\ufffd" * 3 + "a"
    assert [place for token in tokens for place in characters.add(token)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "prompt", [b"a\xff", b"a\xff\xff", "a\ufffd".encode(), b"\xff", b"\xe2\x82\xff", "\ufffd".encode()]
)
def test_offsets_behind_a_prompt_that_ends_in_a_replacement_character(prompt: bytes) -> None:
    """Which is its own, so the output does not begin with it."""
    characters = Characters.after(TokenTexts(TOKENIZER), list(prompt), SamplingParameters())
    detokenizer = Detokenizer(TOKENIZER, list(prompt))
    assert "".join(map(detokenizer.add, b"ab")) + detokenizer.flush() == "ab"
    assert [characters.add(token) for token in b"ab"] == [[0], [1]]


TOKENIZER = byte_tokenizer()
TOKENS = [*b"a \xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xef\xbf\xbd\xff", BOS, EOS]


@example(b"a", (), [0xED, 0x61])
@example(b"a\xe2", (), [0x82, 0xAC, 0x61])
@example(b"a", (EOS,), [0xE2, EOS, 0x61])
@given(
    st.sampled_from([b"", b"a", b"a\xe2", b"a\xf0\x9f", b"a\xff", b"a\xef\xbf\xbd", b"\xe2\xe2", b"\xff\xe2\x82"]),
    st.sampled_from([(), (EOS,)]),
    st.lists(st.sampled_from(TOKENS), max_size=40),
)
def test_offsets_are_those_of_the_text(prompt: bytes, shown: tuple[int, ...], tokens: list[int]) -> None:
    """Whatever bytes come, also those of no character; shown: special tokens whose names are in the text, which no byte
    follows that would go on with those before.
    """
    behind = pairwise(token for token in tokens if token != BOS)
    assume(not any(one in shown and 0x80 <= after < 0xC0 for one, after in behind))
    assume(not shown or prompt in (b"", b"a", b"a\xff"))
    characters = Characters.after(TokenTexts(TOKENIZER), list(prompt), SamplingParameters(shown=shown))
    for place, token in enumerate(tokens, 1):
        detokenizer = Detokenizer(TOKENIZER, list(prompt), shown)
        text = "".join(map(detokenizer.add, tokens[:place])) + detokenizer.flush()
        length = 1 if token < BOS else len("<eos>") if token in shown else 0
        (start,) = characters.add(token)
        assert start == len(text) - length or not length
        assert characters.end == len(text) or not characters.whole


def test_conversations_have_the_bytes(texts: TokenTexts) -> None:
    found = chat_logprobs([entry(3, 3, 4, 9, 0, 2)], texts).content[0]
    assert found.bytes == [0xE2]
    assert [one.bytes for one in found.top_logprobs] == [[0xE2], [0x82], [0xF0], [0x61], [0x61]]
    assert [one.logprob for one in found.top_logprobs] == [-3, -4, -9, 0, -2]
    assert json.dumps([one.token for one in found.top_logprobs][:3]) == json.dumps(["\ufffd"] * 3)
