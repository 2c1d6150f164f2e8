"""Tokens of two tokenizers are paired by the bytes they stand for; a draft of another tokenizer, build to tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specexport
from click.testing import CliRunner
from specexport.bundle import Bundle
from specexport.cli import main
from specexport.engines.shared_vocabulary import load_maps
from specexport.exporter.checkpoints.shared_vocabulary import Tokens, Translation
from specexport.runtime.session import Session
from specexport.runtime.text.token_bytes import BYTE_ALPHABET
from support.pair import Pair
from support.tiny import LINES, LLAMA, make_tokenizer, save_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

pytestmark = pytest.mark.slow

TEXT = "naïve 日本 the quick\n\tbrown  fox 🦊"
FALLBACKS = [f"<0x{byte:02X}>" for byte in range(256)]
TO_SPACE = decoders.Replace("▁", " ")
BYTES_NAME = {byte: name for name, byte in BYTE_ALPHABET.items()}
SENTENCEPIECE = decoders.Sequence([TO_SPACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def content(tokenizer: Tokenizer) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(tokenizer.to_str())
    return parsed


def words(*tokens: str, special: tuple[str, ...] = (), added: tuple[str, ...] = (), decoder: Any = None) -> Tokenizer:
    """Whole words as tokens in this order, then those that are added."""
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer


def sentencepiece(*pieces: str, fallbacks: bool = True) -> Tokenizer:
    """`<unk>`, the bytes, then the pieces."""
    vocabulary = [
        (token, -1.0 - index) for index, token in enumerate(("<unk>", *(FALLBACKS if fallbacks else ()), *pieces))
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=fallbacks))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = SENTENCEPIECE
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


def byte_level(lines: list[str] = LINES, vocab_size: int = 288) -> Tokenizer:
    tokenizer: Tokenizer = make_tokenizer(vocab_size, lines).backend_tokenizer
    return tokenizer


def tokens(tokenizer: Tokenizer, **purposes: str) -> Tokens:
    """purposes: name of the token, as in `eos_token="</s>"`."""
    return Tokens(content(tokenizer), {purpose: tokenizer.token_to_id(name) for purpose, name in purposes.items()})


def between(target: Tokenizer, draft: Tokenizer) -> dict[str, str]:
    """What is paired, by how it is written."""
    pairs = Translation.between(tokens(target), tokens(draft)).pairs
    return {str(target.id_to_token(ours)): str(draft.id_to_token(theirs)) for ours, theirs in pairs}


@pytest.mark.parametrize("declared", ["decoder", "pre_tokenizer", "sequence"])
def test_byte_level_tokens_spell_the_text(declared: str) -> None:
    tokenizer = byte_level([TEXT, *LINES], 330)
    ids = tokenizer.encode(TEXT).ids
    raw = content(tokenizer)
    if declared == "pre_tokenizer":
        raw["decoder"] = None
    elif declared == "sequence":
        raw["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, raw["decoder"]]}
    found = Tokens(raw, {})
    assert len(ids) < len(TEXT.encode())
    assert b"".join(found.text[token] for token in ids) == TEXT.encode()


@pytest.mark.parametrize("decoder", [SENTENCEPIECE, decoders.Metaspace(), None])
def test_sentencepiece_tokens_spell_the_text(decoder: Any) -> None:
    tokenizer = sentencepiece("▁the", "▁", "na", "b", "rown", "ï")
    tokenizer.decoder = decoder
    found = tokens(tokenizer)
    text = TEXT.replace("\n", "").replace("\t", "")
    ids = tokenizer.encode(text).ids
    assert tokenizer.token_to_id("▁the") in ids
    assert b"".join(found.text[token] for token in ids) == f" {text}".encode()
    assert found.text[tokenizer.token_to_id("<0x0A>")] == b"\n"


def test_tokens_of_two_families_meet_by_their_bytes() -> None:
    target = byte_level(["the the the"] * 9, 262)
    draft = sentencepiece("▁the", "▁", "the", "o", "▁zebra", "\n")
    pairs = between(target, draft)
    assert pairs["Ġthe"] == "▁the"
    assert (pairs["Ġ"], pairs["Ċ"], pairs["o"], pairs["a"]) == ("▁", "\n", "o", "<0x61>")
    assert pairs[BYTES_NAME[0xFF]] == "<0xFF>"
    assert "▁zebra" not in pairs.values()
    assert len(pairs) == 256 + 2  # no special token, none of the other merges


def test_an_ordinary_token_goes_before_a_byte_and_none_is_paired_twice() -> None:
    target = sentencepiece("a", "b")
    assert between(target, byte_level())["a"] == "a"
    assert "<0x61>" not in between(target, byte_level())
    assert between(target, target) == {name: name for name in target.get_vocab()}
    added = words("x", added=("x y",))
    assert between(added, words("x y", "x")) == {"x": "x", "x y": "x y"}
    twice = words("x▁y", added=("x y",), decoder=TO_SPACE)
    assert Translation.between(tokens(twice), tokens(added)).pairs == ((1, 1),)
    assert Translation.between(tokens(added), tokens(twice)).pairs == ((1, 1),)


@pytest.mark.parametrize("seed", range(8))
def test_pairs_are_injective_and_stand_for_the_same(seed: int) -> None:
    """Random vocabularies of few letters, full of duplicates."""
    rng = np.random.default_rng(seed)
    pieces = ["<0x61>", "<0x20>", "a", "b", " ", "▁", "▁a", " a", "a▁", "<s>", "é"]

    def random_tokens() -> Tokens:
        chosen = list(rng.permutation(pieces)[: rng.integers(4, len(pieces))])
        tokenizer = words(*map(str, chosen), special=("<s>", "</s>")[: rng.integers(3)], decoder=SENTENCEPIECE)
        return tokens(tokenizer, eos_token="</s>", bos_token="<s>")

    target, draft = random_tokens(), random_tokens()
    pairs = Translation.between(target, draft).pairs
    assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)
    for ours, theirs in pairs:
        assert target.text.get(ours) == draft.text.get(theirs)  # None for special ones
        assert (ours in target.special) == (theirs in draft.special)
    for value, ids in target.by_bytes.items():
        both = min(len(ids), len(draft.by_bytes.get(value, ())))
        assert len([ours for ours, _ in pairs if ours in ids]) == both


def test_a_special_token_never_meets_a_text_that_looks_like_it() -> None:
    assert between(words("a", "<s>"), words("a", special=("<s>",))) == {"a": "a"}
    assert between(words("a", special=("<s>",)), words("a", "<s>")) == {"a": "a"}
    assert between(words("a", special=("<s>",)), words(special=("<s>",))) == {"<s>": "<s>"}
    assert between(words(special=("<think>",)), words(added=("<think>",))) == {"<think>": "<think>"}


def test_special_tokens_meet_by_purpose_where_no_content_is_the_same() -> None:
    target = words("a", special=("<|begin|>", "<|eot|>", "<pad>"))
    draft = words("a", special=("<|im_start|>", "<|im_end|>", "<pad>"))
    ours = tokens(target, bos_token="<|begin|>", eos_token="<|eot|>", pad_token="<|eot|>")
    theirs = tokens(draft, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<pad>")
    assert Translation.between(ours, theirs).pairs == ((0, 0), (1, 1), (2, 2), (3, 3))
    # The target's end is the draft's pad: taken already, and still the nearest to read.
    taken = Translation.between(ours, tokens(draft, eos_token="<pad>"))
    assert taken.pairs == ((0, 0), (3, 3))
    assert taken.maps(4, 4)[0][2] == 3
    # Content goes before purpose.
    renamed = tokens(draft, eos_token="<|im_end|>", bos_token="<pad>")
    assert Translation.between(tokens(target, eos_token="<pad>"), renamed).pairs == ((0, 0), (3, 3))
    # Text is nobody's end of text.
    assert Translation.between(ours, tokens(words("a", "b"), eos_token="b")).pairs == ((0, 0),)


def test_context_tokens_that_are_not_shared_are_read_as_the_nearest() -> None:
    target = words("quick", "quick fox", "é", "<other>", "a", special=("<s>", "<tool>"))
    draft = byte_level(["quick quick"] * 9, 270)
    to_draft, shared = Translation.between(tokens(target), tokens(draft)).maps(9, 300)
    written = [draft.id_to_token(token) for token in to_draft]
    assert written == ["quick", "x", BYTES_NAME[0xA9], ">", "a", "<s>", ">", "<s>", "<s>"]  # padding: id 0
    assert shared.T.tolist() == [[0, draft.token_to_id("quick")], [4, draft.token_to_id("a")], [5, 0]]


def test_ids_beyond_the_logits_are_dropped_and_padding_has_no_pair() -> None:
    translation = Translation.between(tokens(words("a", "b", "c", "d")), tokens(words("d", "c", "b", "a")))
    to_draft, shared = translation.maps(3, 3)  # no d in the target, no a in the draft
    assert shared.tolist() == [[1, 2], [2, 1]]
    assert to_draft.tolist() == [0, 2, 1]
    assert (translation.target.count(3), translation.target.count(9)) == (3, 4)
    to_draft, shared = translation.maps(6, 9)
    assert shared.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert to_draft.tolist() == [3, 2, 1, 0, 0, 0]
    assert (to_draft.dtype, shared.dtype, shared.flags.c_contiguous) == (np.int64, np.int64, True)


DRAFT_LINES = [*LINES[:2], "while true: continue\n"]
DRAFT_SIZE = 320  # padded: the draft's tokenizer has 300 tokens


@dataclass(frozen=True)
class Translated:
    """A bundle whose draft is its target under another tokenizer's ids: what both know, both expect alike."""

    bundle: Path
    draft: Path
    messages: str
    shared: dict[int, int]  # made from how the tokens are written, and by none of the code under test

    @property
    def unshared(self) -> list[int]:
        return sorted(set(range(288)) - set(self.shared))


def reversed_tokenizer() -> PreTrainedTokenizerFast:
    """Other merges, other special tokens, and every id counted from the end."""
    raw = content(make_tokenizer(300, DRAFT_LINES).backend_tokenizer)
    names = {"<s>": "<|begin|>", "</s>": "<|end|>"}
    last = len(raw["model"]["vocab"]) - 1
    raw["model"]["vocab"] = {names.get(name, name): last - token for name, token in raw["model"]["vocab"].items()}
    for entry in raw["added_tokens"]:
        entry.update(id=last - entry["id"], content=names[entry["content"]])
    raw["added_tokens"].reverse()  # by id, as they are kept
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(raw)), bos_token="<|begin|>", eos_token="<|end|>"
    )


@pytest.fixture(scope="module")
def translated(pair: Pair, built: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Translated:
    base = tmp_path_factory.mktemp("translated")
    tokenizer = reversed_tokenizer()
    ours, theirs = make_tokenizer().get_vocab(), tokenizer.get_vocab()
    names = {"<s>": "<|begin|>", "</s>": "<|end|>"}
    shared = {token: theirs[other] for name, token in ours.items() if (other := names.get(name, name)) in theirs}

    target = AutoModelForCausalLM.from_pretrained(pair.target)
    folder = save_model(base / "draft", seed=7, config=LLAMA | dict(vocab_size=DRAFT_SIZE))
    draft = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    weights = target.state_dict() | {
        name: draft.state_dict()[name] for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name][list(shared.values())] = target.state_dict()[name][list(shared)]
    draft.load_state_dict(weights)
    draft.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    arguments = ["build", "--target", pair.target, "--draft", folder, "-o", base / "tiny.bundle", "--cache", cache]
    arguments += ["--max-seq-len", 64, "--prompt-chunk", 16]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return Translated(base / "tiny.bundle", folder, result.stderr, shared)


@pytest.fixture
def session(translated: Translated) -> Session:
    return specexport.load(translated.bundle)


def test_the_bundle_holds_the_maps_and_says_so(translated: Translated) -> None:
    manifest = Bundle.open(translated.bundle).manifest
    vocabulary = manifest.drafts[0].shared_vocabulary
    assert vocabulary is not None
    assert (vocabulary.shared_tokens, vocabulary.target_tokens, vocabulary.draft_tokens) == (
        len(translated.shared),
        288,
        300,
    )
    assert 258 < len(translated.shared) < 288
    assert (manifest.target.vocab_size, manifest.drafts[0].model.vocab_size) == (288, DRAFT_SIZE)
    assert vocabulary.maps == "tokenizer/shared_vocabulary.npz"
    to_draft, shared = load_maps(translated.bundle / vocabulary.maps, vocabulary, 288, DRAFT_SIZE)
    assert dict(shared.T.tolist()) == translated.shared
    assert all(to_draft[ours] == theirs for ours, theirs in translated.shared.items())
    assert manifest.text.stop_token_ids == (1,)  # the target's, and not the draft's 298
    assert to_draft[1] == 298


@pytest.mark.parametrize("prompt", ["def add(a, b):", "日本"])
def test_greedy_output_is_the_targets_own(prompt: str, session: Session) -> None:
    plain = session.generate(prompt, max_new_tokens=40, stop_token_ids=(), speculate=False)
    found = session.generate(prompt, max_new_tokens=40, stop_token_ids=(), num_draft_tokens=4, drafter="model")
    assert found.tokens == plain.tokens
    assert found.statistics.drafted > 0


def shared_prompt(session: Session, translated: Translated) -> list[int]:
    return [token for token in session.encode("def add(a, b):\n    return") if token in translated.shared]


def test_what_both_know_is_accepted_without_exception(session: Session, translated: Translated) -> None:
    options: dict[str, Any] = dict(max_new_tokens=40, stop_token_ids=(), banned_tokens=translated.unshared)
    prompt = shared_prompt(session, translated)
    plain = session.generate(prompt, speculate=False, **options)
    found = session.generate(prompt, num_draft_tokens=4, drafter="model", **options)
    assert found.tokens == plain.tokens
    assert len(set(found.tokens)) > 3
    assert found.statistics.acceptance_rate == 1.0
