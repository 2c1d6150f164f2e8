from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Role
from specexport.errors import PairError, ParameterError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.pair import check_capacity, check_models, tokenizer_differences
from specexport.exporter.checkpoints.shared_vocabulary import Translation
from support.pair import Pair
from support.refusals import refused
from support.tiny import LINES, edit_json, make_tokenizer

Change = Callable[[dict[str, Any]], object]


def models(target: Path, draft: Path | None = None) -> dict[Role, Checkpoint]:
    folders: dict[Role, Path] = {"target": target} | ({} if draft is None else {"draft": draft})
    return {role: Checkpoint.find(str(folder)) for role, folder in folders.items()}


def check(
    target: Path, draft: Path, min_overlap: float = 0.5, texts: Sequence[str] = ()
) -> tuple[Translation | None, list[str]]:
    return check_models(models(target, draft), min_overlap, texts)


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


OTHER_SPLITS: list[tuple[Change, str]] = [
    (swap_merges, "merges differ from merge 3 on"),
    (normalize, "the normalizer differs"),
    (split_digits, "the pre_tokenizer differs"),
]


@pytest.mark.parametrize(("change", "difference"), OTHER_SPLITS)
def test_the_same_tokens_split_otherwise_need_no_translation(
    change: Change, difference: str, pair: Pair, draft: Path
) -> None:
    change_tokenizer(draft, change)
    translation, (warning,) = check(pair.target, draft, 1.0)
    assert translation is None
    assert warning.startswith("target and draft have the same tokens, but ")
    assert difference in warning


def test_too_few_shared_tokens_are_refused(pair: Pair, draft: Path) -> None:
    """By how often they are used: one of 288 is missing, which LINES have twice among their tokens."""
    change_tokenizer(draft, drop_token)
    tokenizer = Checkpoint.find(str(pair.target)).tokenizer
    used = [token for line in LINES for token in tokenizer(line)["input_ids"]]
    share = 1 - used.count(287) / len(used)
    assert share < 287 / 288
    assert check(pair.target, draft, share, LINES)[0] is not None
    with refused(PairError, "rn", "--draft"):
        check(pair.target, draft, share + 0.001, LINES)


def test_tokens_that_nobody_uses_do_not_count(pair: Pair, draft: Path) -> None:
    """Many may be missing: of these texts the draft knows every token."""
    make_tokenizer(258).save_pretrained(draft)  # the bytes alone
    translation, _ = check(pair.target, draft, 1.0, ["q", "z\n"])
    assert translation is not None
    assert translation.overlap == 1.0
    assert len(translation.pairs) < 288


def test_a_small_overlap_is_told_with_what_it_costs(pair: Pair, draft: Path) -> None:
    make_tokenizer(258).save_pretrained(draft)  # the bytes alone
    translation, (warning,) = check(pair.target, draft, 0.0, LINES)
    assert translation is not None
    assert "258 of the target's 288 tokens, which are" in warning
    assert "Acceptance falls quickly with the overlap" in warning


def test_no_shared_token_is_refused_at_any_floor(pair: Pair, draft: Path) -> None:
    def rename(tokenizer: dict[str, Any]) -> None:
        tokenizer["model"]["merges"] = []
        tokenizer["model"]["vocab"] = {f"other words {index}": index for index in range(2, 9)} | {"<x>": 0, "<y>": 1}
        for entry, name in zip(tokenizer["added_tokens"], ("<x>", "<y>"), strict=True):
            entry["content"] = name

    change_tokenizer(draft, rename)
    edit_json(draft / "tokenizer_config.json", bos_token=None, eos_token=None)
    with refused(PairError, "  against "):
        check(pair.target, draft, 0.0)


def test_the_same_content_under_another_name_is_accepted(pair: Pair, draft: Path) -> None:
    edit_json(draft / "tokenizer_config.json", name_or_path="someone/else", model_max_length=77)
    assert check(pair.target, draft, 1.0) == (None, [])


def test_a_target_alone_has_nothing_to_be_compared_with(pair: Pair) -> None:
    assert check_models(models(pair.target), 1.0) == (None, [])
    assert check_capacity(models(pair.target), None) == 128


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


def test_a_unigram_vocabulary_is_compared_by_place() -> None:
    ours = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]]}}
    theirs = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["b", -1.0]]}}
    assert list(tokenizer_differences(ours, ours)) == []
    assert "the first is 1: 'a' against 'b'" in next(tokenizer_differences(ours, theirs))


def test_a_swapped_pair_gives_a_warning(pair: Pair) -> None:
    assert check(pair.target, pair.draft) == (None, [])
    _, (warning,) = check(pair.draft, pair.target)
    assert "Are the two swapped?" in warning


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
