from __future__ import annotations

import numpy as np
import pytest
from specexport.runtime.state.cached_decoder import CachedDecoder
from specexport.runtime.state.context import Context
from support.doubles import CONTRACT, FakeDecoder


def context_with(tokens: list[int], target_rows: int, draft_rows: int) -> Context:
    return Context(
        CachedDecoder(FakeDecoder(), 8, target_rows),
        {"model": CachedDecoder(FakeDecoder(), 8, draft_rows)},
        "model",
        list(tokens),
    )


@pytest.mark.parametrize(
    ("prompt", "target_rows", "draft_rows"),
    [
        ([1, 2, 3, 4, 5, 6], 4, 3),  # a longer prompt keeps all rows
        ([1, 2, 9, 4, 5], 2, 2),  # a different token ends what is shared
        ([1, 2, 3], 2, 3),  # the last token of a shorter prompt is fed again
        ([1, 2, 3, 4, 5], 4, 3),  # the same prompt
        ([9], 0, 0),
    ],
)
def test_start_keeps_the_shared_prefix(prompt: list[int], target_rows: int, draft_rows: int) -> None:
    context = context_with([1, 2, 3, 4, 5], target_rows=4, draft_rows=3)
    assert context.start(prompt) == target_rows
    assert (context.target.rows, context.draft.rows) == (target_rows, draft_rows)
    assert context.tokens == prompt


def test_rows_never_grow_by_truncating() -> None:
    context = context_with([1, 2, 3, 4, 5], target_rows=4, draft_rows=2)
    context.truncate(3)
    assert (context.tokens, context.target.rows, context.draft.rows) == ([1, 2, 3], 3, 2)
    context.truncate(0)
    assert (context.tokens, context.target.rows, context.draft.rows) == ([], 0, 0)


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("rows", [0, 5])
def test_prefill_feeds_what_is_missing_in_chunks(chunk: int, rows: int) -> None:
    decoder, tokens = FakeDecoder(), list(range(20))
    decoder.write(tokens[:rows], 0)
    cached = CachedDecoder(decoder, chunk, rows)
    cached.prefill(tokens, 17)
    assert cached.rows == 17
    assert decoder.rows[:17].tolist() == tokens[:17]
    assert decoder.rows[17:].tolist() == [-1.0] * (CONTRACT.capacity - 17)
    assert [width for width, _ in decoder.steps][:-1] == [chunk] * (len(decoder.steps) - 1)
    cached.prefill(tokens, 10)
    assert cached.rows == 17


def test_without_a_draft_there_is_one_decoder() -> None:
    context = Context(CachedDecoder(FakeDecoder(), 8))
    assert context.decoders == (context.target,)
    context.start([1, 2, 3])
    context.target.prefill(context.tokens, 2)
    assert context.start([1, 2, 4]) == 2
    context.truncate(1)
    assert (context.tokens, context.target.rows) == ([1], 1)


@pytest.mark.parametrize("has_draft", [True, False])
def test_to_forget_is_to_start_with_clean_caches(has_draft: bool) -> None:
    context = context_with([1, 2, 3, 4, 5], target_rows=4, draft_rows=3)
    if not has_draft:
        context.drafts = {}
    for cached in context.decoders:
        cached.decoder.write([1, 2, np.nan, 4], 0)
    context.forget()
    assert context.tokens == []
    for cached in context.decoders:
        assert cached.rows == 0
        assert (cached.decoder.rows == -1.0).all()
