from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from specexport.runtime.text.detokenizer import Detokenizer, StopStrings
from support.doubles import BOS, byte_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEXT = "Grüße, 世界! 🎉👩‍👩‍👧 naïve\n\ttab  two spaces é."


def metaspace_tokenizer(decoder: str) -> Tokenizer:
    """Words with the space in front, as SentencePiece models have them; unknown characters as bytes."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁world", "▁a", "b", "!", "▁"]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(
        models.Unigram([(word, -1.0 - (len(word) == 6)) for word in vocabulary], unk_id=0, byte_fallback=True)
    )
    if decoder == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 17])
def test_pieces_are_whole_characters_and_join_to_the_full_text(tokenizer: Tokenizer, cut: int) -> None:
    prompt, rest = TEXT[:cut], TEXT[cut:]
    detokenizer = Detokenizer(tokenizer, tokenizer.encode(prompt).ids)
    pieces = [detokenizer.add(token) for token in rest.encode()]
    assert "".join(pieces) == rest
    assert "\ufffd" not in "".join(pieces)
    assert [len(piece) for piece in pieces if piece] == [1] * len(rest)


@pytest.mark.parametrize("given", [1, 2, 3])
def test_a_prompt_cut_within_a_character_gives_that_character_and_no_prompt(tokenizer: Tokenizer, given: int) -> None:
    before, character = b"some prompt text", "🎉".encode()
    detokenizer = Detokenizer(tokenizer, [*before, *character[:given]])
    assert "".join(detokenizer.add(token) for token in [*character[given:], *b" on"]) == "🎉 on"


@pytest.mark.parametrize("given", [1, 2, 3])
def test_a_whole_text_does_not_begin_with_what_the_prompt_leaves_unfinished(tokenizer: Tokenizer, given: int) -> None:
    detokenizer = Detokenizer(tokenizer, [*b"a prompt", *"🎉".encode()[:given]], whole=True)
    assert "".join(detokenizer.add(token) for token in '{"ü"}'.encode()) == '{"ü"}'


@pytest.mark.parametrize("given", [1, 2, 3])
def test_nor_do_its_bytes_join_those_of_the_prompt(given: int) -> None:
    tokenizer = metaspace_tokenizer("sequence")
    character = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🎉".encode()]
    detokenizer = Detokenizer(tokenizer, [*tokenizer.encode("a").ids, *character[:given]], whole=True)
    assert "".join(map(detokenizer.add, character)) + detokenizer.flush() == "🎉"


@pytest.mark.parametrize("decoder", ["metaspace", "sequence"])
def test_the_space_before_a_word_is_kept_behind_a_prompt(decoder: str) -> None:
    tokenizer = metaspace_tokenizer(decoder)
    start = tokenizer.token_to_id("<s>")
    hello, world, a, b = (tokenizer.token_to_id(word) for word in ("▁Hello", "▁world", "▁a", "b"))
    detokenizer = Detokenizer(tokenizer, [start, hello])
    assert [detokenizer.add(token) for token in (world, a, b, hello)] == [" world", " a", "b", " Hello"]


def collect(stops: StopStrings, text: str, size: int = 1) -> str:
    emitted = ""
    for start in range(0, len(text), size):
        emitted += stops.add(text[start : start + size])
        if stops.found:
            return emitted
    return emitted + stops.flush()


@example("bab", ["b", "ab"], 31)
@example("éab", ["b", "ab"], 1)
@given(st.text("abé", max_size=30), st.lists(st.text("abéx", min_size=1, max_size=6), max_size=40), st.integers(1, 31))
def test_text_ends_before_the_stop_that_ends_first(text: str, stops: list[str], size: int) -> None:
    """Of those that end in one piece the one that begins first; with pieces of one letter, the longest."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    found = StopStrings(stops)
    emitted = collect(found, text, size)
    assert found.found == bool(ends)
    if size == 1:
        assert emitted == text[: min(ends, default=(0, len(text)))[1]]
    elif size >= len(text):
        assert emitted == text[: min((start for _, start in ends), default=len(text))]
    else:
        assert emitted in {text[:start] for _, start in ends} | ({text} if not ends else set())


def test_many_stops_cost_no_search_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = StopStrings([f"{number:05}END" for number in range(20_000)])
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert found.add("x" * 50 + "01234EN") == "x" * 50
    finally:
        sys.setprofile(None)
    assert calls < 1000
    assert found.add("D!") == ""
    assert found.found


def test_what_may_become_a_stop_is_held_back_and_no_more() -> None:
    stops = StopStrings(["STOP"])
    assert [stops.add(text) for text in ("aS", "T", "x", "ST", "O")] == ["a", "", "STx", "", ""]
    assert stops.flush() == "STO"
    assert stops.flush() == ""
    assert not stops.found


REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "text", ["Grüße", "ends with \ufffd", "\ufffd", "a\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd", "\ufffd🎉\ufffdé"]
)
def test_replacement_characters_of_the_model_are_kept(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer, list(b"prompt "))
    pieces = [detokenizer.add(token) for token in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_is_cut_off_ends_in_a_replacement_character(tokenizer: Tokenizer, cut: int) -> None:
    detokenizer = Detokenizer(tokenizer, list(b"x"))
    pieces = [detokenizer.add(token) for token in b"ab" + "🎉".encode()[:cut]]
    assert pieces == ["a", "b", *[""] * cut]
    assert detokenizer.flush() == REPLACED


@pytest.mark.parametrize("data", [b"\xff", b"\xf0\x9f", b"\xe2\x82\xff"])
def test_bytes_of_no_character_take_nothing_back(data: bytes) -> None:
    """Behind a whole character, in whose run a byte of SentencePiece's is."""
    tokenizer = metaspace_tokenizer("sequence")
    detokenizer = Detokenizer(tokenizer, [tokenizer.token_to_id("b")])
    run = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🎉".encode() + data]
    text = "".join(map(detokenizer.add, [*run, tokenizer.token_to_id("!")])) + detokenizer.flush()
    assert text == f"🎉{REPLACED * len(data)}!"


class Counts:
    """A tokenizer that remembers the most tokens it was asked to decode at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.widest = tokenizer, 0
        self.id_to_token = tokenizer.id_to_token

    def decode(self, tokens: list[int]) -> str:
        self.widest = max(self.widest, len(tokens))
        return self.tokenizer.decode(tokens)


@pytest.mark.parametrize("make", [byte_tokenizer, lambda: metaspace_tokenizer("sequence")])
@pytest.mark.parametrize("kind", ["lone bytes", "replacement characters"])
def test_a_run_that_never_becomes_a_character_is_read_in_a_small_window(
    make: Callable[[], Tokenizer], kind: str
) -> None:
    tokenizer = make()
    sentencepiece = tokenizer.token_to_id("▁Hello") is not None
    bytes_ = b"\xff" if kind == "lone bytes" else REPLACED.encode()
    run = [byte + (1 if sentencepiece else 0) for byte in bytes_] * 200
    counts = Counts(tokenizer)
    prompt = [tokenizer.token_to_id("▁Hello")] if sentencepiece else list(b"x")
    detokenizer = Detokenizer(counts, prompt)  # type: ignore[arg-type]
    text = "".join(detokenizer.add(token) for token in run) + detokenizer.flush()
    assert counts.widest < 48
    assert len(text) >= 200
    assert set(text) == {REPLACED}


@pytest.mark.parametrize("before", ["", "\xe2\x82"])
@pytest.mark.parametrize("kind", ["special", "shown", "of no token"])
def test_a_run_without_a_text_is_read_in_a_small_window(kind: str, before: str) -> None:
    """As models write it that go on after their stop token."""
    tokenizer, half = metaspace_tokenizer("sequence"), [1 + ord(byte) for byte in before]
    hello, special = tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("<s>")
    mark, counts = special + (kind == "of no token"), Counts(tokenizer)
    detokenizer = Detokenizer(counts, [hello], [special] if kind == "shown" else [])  # type: ignore[arg-type]
    text = "".join(detokenizer.add(token) for token in [hello, *half, *[mark] * 200, hello]) + detokenizer.flush()
    assert counts.widest < 48
    assert text == " Hello" + REPLACED * len(half) + "<s>" * (200 * (kind == "shown")) + " Hello"


@pytest.mark.parametrize("shown", [True, False])
def test_special_tokens_that_are_shown_part_the_text_around_them(shown: bool) -> None:
    """Between characters: no grammar has them within one."""
    name, text = "<bos>" if shown else "", "größe 🎉"
    for cut in range(len(text) + 1):
        detokenizer = Detokenizer(byte_tokenizer(), list(b"x"), (BOS,) if shown else ())
        pieces = [detokenizer.add(token) for token in (*text[:cut].encode(), BOS, *text[cut:].encode(), BOS)]
        assert "".join(pieces) == text[:cut] + name + text[cut:] + name
        assert detokenizer.flush() == ""


def test_the_space_behind_a_shown_token_is_kept() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁Hello", -1.0), ("[X]", -1.0)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["[X]"])
    mark = tokenizer.token_to_id("[X]")
    detokenizer = Detokenizer(tokenizer, [1], (mark,))
    assert [detokenizer.add(token) for token in (1, mark, 1, mark)] == [" Hello", "[X]", " Hello", "[X]"]
