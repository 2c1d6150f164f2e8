from __future__ import annotations

import json

import pytest
from specexport.errors import ParameterError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.shared_vocabulary import Tokens
from specexport.exporter.draft_vocabulary import coverage, pays, required_tokens, smallest
from specexport.exporter.options import parse_vocabulary
from support.pair import Pair
from support.refusals import refused


def test_stop_tokens_bytes_and_digits_are_required(pair: Pair) -> None:
    target = find_checkpoint(str(pair.target))
    tokens = Tokens(json.loads(target.tokenizer.backend_tokenizer.to_str()), {})
    required = required_tokens(target, tokens, 10_000)
    assert set(target.stop_token_ids) <= required
    assert {tokens.text[token] for token in required - set(target.stop_token_ids)} == {
        bytes([value]) for value in range(256)
    }
    assert max(required_tokens(target, tokens, 100)) < 100


def test_the_smallest_vocabulary_that_covers() -> None:
    tokens = [7] * 98 + [8, 9]
    assert smallest([1, 2, 7, 8, 9], tokens, 1) == 4  # with 8, 99 of 100
    assert smallest([1, 2, 7, 8, 9], tokens, 5) == 5
    assert smallest([1, 2, 7], tokens, 1) == 3
    assert coverage([7, 8], tokens) == 0.99


def test_a_head_is_worth_cutting_where_it_is_large() -> None:
    assert pays((0.79, 0.8), relative=0.15, saved=0.5, num_draft_tokens=4)
    assert not pays((0.79, 0.8), relative=0.15, saved=0.01, num_draft_tokens=4)
    assert not pays((0.8, 0.8), relative=0.15, saved=0.0, num_draft_tokens=4)


@pytest.mark.parametrize("given", ["0", "-3", "many", "1e4", ""])
def test_what_is_no_vocabulary(given: str) -> None:
    with refused(ParameterError, "1", field="draft_vocabulary"):
        parse_vocabulary(given)
