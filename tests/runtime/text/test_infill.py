from __future__ import annotations

import pytest
from specexport.runtime.text.infill import ENDS, MARKS, Infill
from support.doubles import byte_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors


def tokenizer_with(names: tuple[str, ...]) -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


@pytest.mark.parametrize("names", MARKS)
def test_the_order_of_each_model(names: tuple[str, ...]) -> None:
    """Text, suffix, and last of all the mark after which the middle is written."""
    tokenizer = tokenizer_with((*names, ENDS[0], ENDS[-1]))
    infill = Infill.of(tokenizer)
    assert infill is not None
    text = tokenizer.decode(infill.encode("def f(", "):\n  pass"), skip_special_tokens=False)
    assert text == f"{names[0]}def f({names[1]}):\n  pass{names[2]}"
    assert infill.stops == tuple(tokenizer.token_to_id(name) for name in (*names, ENDS[0], ENDS[-1]))
    assert tokenizer.decode(infill.encode("", "x"), skip_special_tokens=False) == f"{names[0]}{names[1]}x{names[2]}"


@pytest.mark.parametrize("names", [(), MARKS[0][:2], (MARKS[0][0], *MARKS[1][1:])])
def test_a_tokenizer_without_all_of_them(names: tuple[str, ...]) -> None:
    assert Infill.of(tokenizer_with(names)) is None


def test_a_start_token_and_blanks_before_texts() -> None:
    """As of CodeLlama: the suffix goes on where the middle ends, without a blank of the tokenizer's own."""
    pieces = ["<unk>", "<s>", "▁", "a", "b", "▁a", "▁b", "<0x0A>"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", *MARKS[2])])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    infill = Infill.of(tokenizer)
    assert infill is not None
    named = [tokenizer.id_to_token(token) for token in infill.encode("a b", "b\na")]
    assert named == ["<s>", MARKS[2][0], "▁a", "▁b", MARKS[2][1], "b", "<0x0A>", "a", MARKS[2][2]]
    assert tokenizer.id_to_token(infill.encode("a", " b")[4]) == "▁b"
