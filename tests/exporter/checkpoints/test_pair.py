from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from specexport.errors import PairError, ParameterError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.pair import check_capacity, check_draft, tokenizer_differences
from specexport.exporter.checkpoints.shared_vocabulary import Translation
from support.pair import Pair
from support.refusals import refused
from support.tiny import LINES, edit_json, make_tokenizer

Change = Callable[[dict[str, Any]], object]


def models(target: Path, draft: Path) -> dict[str, Checkpoint]:
    return {"target": find_checkpoint(str(target)), "draft": find_checkpoint(str(draft))}


def check(
    target: Path, draft: Path, min_overlap: float = 0.5, texts: Sequence[str] = ()
) -> tuple[Translation | None, list[str]]:
    return check_draft(*models(target, draft).values(), min_overlap, texts)


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


def add_token(tokenizer: dict[str, Any]) -> None:
    entry = dict(tokenizer["added_tokens"][0], id=len(tokenizer["model"]["vocab"]), content="<|new|>")
    tokenizer["added_tokens"].append(entry)


OTHER_TOKENS: list[tuple[Change, str, str]] = [
    (swap_tokens, "2 ids differ, the first is 10", "288 of the target's 288 tokens"),
    (drop_token, "against 287 tokens, 1 ids differ, the first is 287", "287 of the target's 288 tokens"),
    (add_token, "special and added tokens differ: <|new|>", "288 of the target's 288 tokens"),
]


@pytest.mark.parametrize(("change", "difference", "overlap"), OTHER_TOKENS)
def test_a_draft_of_other_tokens_is_translated_and_what_differs_is_named(
    change: Change, difference: str, overlap: str, pair: Pair, draft: Path
) -> None:
    change_tokenizer(draft, change)
    translation, (warning,) = check(pair.target, draft)
    assert translation is not None
    assert difference in warning
    assert overlap in warning
    assert "Acceptance falls" not in warning
    assert "\n" not in warning


def test_too_few_shared_tokens_are_refused(pair: Pair, draft: Path) -> None:
    """By how often they are used: one of 288 is missing, which LINES have twice among their tokens."""
    change_tokenizer(draft, drop_token)
    tokenizer = find_checkpoint(str(pair.target)).tokenizer
    used = [token for line in LINES for token in tokenizer(line)["input_ids"]]
    share = 1 - used.count(287) / len(used)
    assert share < 287 / 288
    assert check(pair.target, draft, share, LINES)[0] is not None
    with refused(PairError, "rn", "--draft"):
        check(pair.target, draft, share + 0.001, LINES)


def test_a_small_overlap_is_told_with_what_it_costs(pair: Pair, draft: Path) -> None:
    make_tokenizer(258).save_pretrained(draft)  # the bytes alone
    translation, (warning,) = check(pair.target, draft, 0.0, LINES)
    assert translation is not None
    assert "258 of the target's 288 tokens, which are" in warning
    assert "Acceptance falls quickly with the overlap" in warning


def test_merges_as_text_equal_merges_as_pairs(pair: Pair) -> None:
    pairs = json.loads((pair.target / "tokenizer.json").read_text())
    text = json.loads((pair.target / "tokenizer.json").read_text())
    text["model"]["merges"] = [
        " ".join(merge) if isinstance(merge, list) else merge for merge in text["model"]["merges"]
    ]
    pairs["model"]["merges"] = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in pairs["model"]["merges"]
    ]
    assert list(tokenizer_differences(pairs, text)) == []


def test_capacity_follows_the_shorter_positions(pair: Pair, draft: Path) -> None:
    edit_json(draft / "config.json", max_position_embeddings=48)
    assert check_capacity(models(pair.target, draft), None) == 48
    edit_json(draft / "config.json", max_position_embeddings=1 << 20)
    assert check_capacity(models(pair.target, draft), None) == 128
    assert check_capacity(models(draft, draft), None) == 4096


def test_capacity_beyond_the_positions_is_refused(pair: Pair, draft: Path) -> None:
    edit_json(draft / "config.json", max_position_embeddings=48)
    with refused(ParameterError, "48", field="max_seq_len"):
        check_capacity(models(pair.target, draft), 49)
    with refused(ParameterError, "128", field="max_seq_len"):
        check_capacity(models(pair.target, draft), 129)
    assert check_capacity(models(pair.target, draft), 48) == 48


def test_positions_that_end_before_the_stated_length_say_why(pair: Pair, draft: Path) -> None:
    rope = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0] * 8, long_factor=[2.0] * 8)
    edit_json(draft / "config.json", rope_parameters=rope | dict(original_max_position_embeddings=64))
    with refused(ParameterError, "64 positions (longrope", field="max_seq_len"):
        check_capacity(models(pair.target, draft), 100)
