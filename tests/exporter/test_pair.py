from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from specexport.errors import PairError, ParameterError
from specexport.exporter.checkpoint import Checkpoint
from specexport.exporter.pair import check_capacity, check_pair, tokenizer_differences
from tiny import edit_json

Change = Callable[[dict[str, Any]], object]


def checkpoints(pair: Pair) -> tuple[Checkpoint, Checkpoint]:
    return Checkpoint.find(str(pair.target)), Checkpoint.find(str(pair.draft))


@pytest.fixture
def draft(pair: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair.draft, tmp_path / "another_name"))


def change_tokenizer(folder: Path, change: Change) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swap_tokens(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token in vocabulary if vocabulary[token] in (10, 20)]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def drop_token(tokenizer: dict[str, Any]) -> None:
    last = max(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    tokenizer["model"]["merges"].pop()
    del tokenizer["model"]["vocab"][last]


def swap_merges(tokenizer: dict[str, Any]) -> None:
    merges = tokenizer["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]


def add_token(tokenizer: dict[str, Any]) -> None:
    entry = dict(tokenizer["added_tokens"][0], id=len(tokenizer["model"]["vocab"]), content="<|new|>")
    tokenizer["added_tokens"].append(entry)


def normalize(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Lowercase"}


def split_digits(tokenizer: dict[str, Any]) -> None:
    digits = {"type": "Digits", "individual_digits": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}


DIFFERENCES: list[tuple[Change, str]] = [
    (swap_tokens, "2 ids differ, the first is 10"),
    (drop_token, "against 287 tokens, 1 ids differ, the first is 287"),
    (swap_merges, "merges differ from merge 3 on"),
    (add_token, "special and added tokens differ: <|new|>"),
    (normalize, "the normalizer differs"),
    (split_digits, "the pre_tokenizer differs"),
]


@pytest.mark.parametrize(("change", "difference"), DIFFERENCES)
def test_what_differs_is_named(change: Change, difference: str, pair: Pair, draft: Path) -> None:
    change_tokenizer(draft, change)
    with pytest.raises(PairError) as caught:
        check_pair(Checkpoint.find(str(pair.target)), Checkpoint.find(str(draft)))
    assert difference in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_content_under_another_name_is_accepted(pair: Pair, draft: Path) -> None:
    edit_json(draft / "tokenizer_config.json", name_or_path="someone/else", model_max_length=77)
    assert check_pair(Checkpoint.find(str(pair.target)), Checkpoint.find(str(draft))) == []


def test_merges_as_text_equal_merges_as_pairs(pair: Pair) -> None:
    pairs = json.loads((pair.target / "tokenizer.json").read_text())
    text = json.loads((pair.target / "tokenizer.json").read_text())
    text["model"]["merges"] = [" ".join(merge) if isinstance(merge, list) else merge for merge in text["model"]["merges"]]
    pairs["model"]["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in pairs["model"]["merges"]]
    assert list(tokenizer_differences(pairs, text)) == []


def test_a_unigram_vocabulary_is_compared_by_place() -> None:
    ours = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]]}}
    theirs = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["b", -1.0]]}}
    assert list(tokenizer_differences(ours, ours)) == []
    assert "the first is 1: 'a' against 'b'" in next(tokenizer_differences(ours, theirs))


def test_a_swapped_pair_gives_a_warning(pair: Pair) -> None:
    target, draft = checkpoints(pair)
    assert check_pair(target, draft) == []
    (warning,) = check_pair(draft, target)
    assert "Are they swapped?" in warning


def test_capacity_follows_the_shorter_positions(pair: Pair, draft: Path) -> None:
    target = Checkpoint.find(str(pair.target))
    edit_json(draft / "config.json", max_position_embeddings=48)
    assert check_capacity(target, Checkpoint.find(str(draft)), None) == 48
    edit_json(draft / "config.json", max_position_embeddings=1 << 20)
    assert check_capacity(target, Checkpoint.find(str(draft)), None) == 128
    assert check_capacity(Checkpoint.find(str(draft)), Checkpoint.find(str(draft)), None) == 4096


def test_capacity_beyond_the_positions_is_refused(pair: Pair, draft: Path) -> None:
    target = Checkpoint.find(str(pair.target))
    edit_json(draft / "config.json", max_position_embeddings=48)
    with pytest.raises(ParameterError, match="--max-seq-len is 49; the draft's positions end at 48"):
        check_capacity(target, Checkpoint.find(str(draft)), 49)
    with pytest.raises(ParameterError, match="--max-seq-len is 129; the target's positions end at 128"):
        check_capacity(target, Checkpoint.find(str(draft)), 129)
    assert check_capacity(target, Checkpoint.find(str(draft)), 48) == 48
