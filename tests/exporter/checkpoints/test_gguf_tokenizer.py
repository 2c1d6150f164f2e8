"""The tokenizer of a GGUF file: the ids that llama.cpp gives, and pieces of each way to split text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_ids import differences, mixed_lines, values_of, write_vocabulary
from specexport.errors import CheckpointError, UnsupportedModelError
from specexport.exporter.checkpoints.gguf_tokenizer import SPLITS, read_tokenizer
from support import gguf_files
from support.refusals import refused
from support.tiny import save_checkpoint
from transformers import PreTrainedTokenizerBase
from write_gguf import write_gguf

# What llama.cpp made of it: scripts/gguf_ids.py --every-pre compared 10 000 lines.
PIECES: dict[str, list[str]] = {
    name: pieces
    for names, pieces in json.loads(Path(__file__).with_name("splits.json").read_text(encoding="utf-8")).items()
    for name in names.split()
}
GGML = "tokenizer.ggml."


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a byte-level BPE of 288 tokens."""
    folder = save_checkpoint(tmp_path_factory.mktemp("llama"), intermediate_size=64)
    return values_of(write_gguf(folder, tmp_path_factory.mktemp("gguf") / "a.gguf"))


def tokenizer_of(values: dict[str, Any], **changed: Any) -> PreTrainedTokenizerBase:
    return read_tokenizer("a.gguf", values | {GGML + key: value for key, value in changed.items()})


def with_token(values: dict[str, Any], token: str, kind: int) -> dict[str, Any]:
    """With one token more, whose type is `kind`."""
    more = dict(tokens=[*values[f"{GGML}tokens"], token], token_type=[*values[f"{GGML}token_type"], kind])
    return values | {GGML + key: value for key, value in more.items()}


@pytest.mark.parametrize("name", SPLITS)
def test_a_text_is_split_as_the_name_says(name: str, values: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(values, pre=name).backend_tokenizer
    text = "".join(PIECES[name])
    found = [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert found == PIECES[name]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_a_name_that_is_not_known(values: dict[str, Any]) -> None:
    with refused(UnsupportedModelError, field="tokenizer.ggml.pre"):
        tokenizer_of(values, pre="superbpe")


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)])
def test_whether_a_text_begins_with_bos(pre: str, begins: bool, values: dict[str, Any]) -> None:
    silent = {key: value for key, value in values.items() if key != f"{GGML}add_bos_token"}
    assert (tokenizer_of(silent, pre=pre).encode("a")[0] == 0) == begins
    for said in (True, False):
        assert (tokenizer_of(values, pre=pre, add_bos_token=said).encode("a")[0] == 0) == said
    assert tokenizer_of(values, pre=pre, add_bos_token=False, add_eos_token=True).encode("a")[-1] == 1


def test_a_word_that_is_a_token_is_not_merged(values: dict[str, Any]) -> None:
    grown = with_token(values, "xqz", 1)
    number = len(grown[f"{GGML}tokens"]) - 1
    assert tokenizer_of(grown, pre="llama-bpe", add_bos_token=False).encode("xqz") == [number]
    assert tokenizer_of(grown, pre="dbrx", add_bos_token=False).encode("xqz") != [number]


@pytest.mark.parametrize("token", ["<\uff5cUser\uff5c>", "<think>", "  "])
@pytest.mark.parametrize("kind", [3, 4])
def test_a_token_that_is_found_whole(token: str, kind: int, values: dict[str, Any]) -> None:
    """DeepSeek's are written with characters that no byte has in a byte-level vocabulary."""
    grown = with_token(values, token, kind)
    tokenizer = tokenizer_of(grown)
    number = len(grown[f"{GGML}tokens"]) - 1
    ids = tokenizer.encode(f"a{token}b")
    assert ids[1] == number
    assert len(ids) == 3
    assert tokenizer.decode(ids) == f"a{token}b"
    assert tokenizer.decode(ids, skip_special_tokens=True) == ("ab" if kind == 3 else f"a{token}b")


HARMED: dict[str, dict[str, Any]] = {
    "an id beyond the vocabulary": dict(eos_token_id=100_000),
    "BOS wanted, and none there": dict(bos_token_id=None, add_bos_token=True),
    "a token twice": dict(tokens=["a", "b", "a"]),
}


@pytest.mark.parametrize("case", HARMED)
def test_a_damaged_tokenizer(case: str, values: dict[str, Any]) -> None:
    with refused(CheckpointError, "a.gguf", field=(None, "tokenizer.ggml.eos_token_id")):
        tokenizer_of(values, **HARMED[case])


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool) -> None:
    values = gguf_files.sentencepiece_values() | {f"{GGML}add_space_prefix": prefix}
    tokenizer = read_tokenizer("a.gguf", values)
    # Where a prefix comes behind tokens that are found whole, it is text too.
    for text in ["the return", " the", "\u4f60 the", *([] if prefix else [" the  return", "x</s>y"])]:
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        assert tokenizer.decode(ids[1:]) == text
    first = tokenizer.encode("x", add_special_tokens=False)[0]
    assert (values[f"{GGML}tokens"][first][0] == "\u2581") == prefix
    assert tokenizer.encode("y")[-1] == tokenizer.encode("x</s>y")[-1]  # a prefix behind a special token too


@pytest.mark.parametrize("name", SPLITS)
def test_llama_cpp_gives_these_ids(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    silent = {key: value for key, value in values.items() if key != f"{GGML}add_bos_token"}
    file = write_vocabulary(silent | {f"{GGML}pre": name}, tmp_path / "a.gguf")
    assert differences(file, mixed_lines(400, seed=1)) == []


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("model", ["other", "Phi-3 Mini"])
def test_llama_cpp_gives_these_ids_of_sentencepiece(model: str, prefix: bool, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    values = gguf_files.sentencepiece_values(spaces=model == "other")
    values |= {f"{GGML}add_space_prefix": prefix, "general.name": model}
    lines = [*mixed_lines(2000, seed=2), "a <|user|>  b", "</s> x", "<unk> x", "  ", "   y"]
    assert differences(write_vocabulary(values, tmp_path / "a.gguf"), lines) == []
