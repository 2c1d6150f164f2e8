from __future__ import annotations

import pytest
from specexport.bundle import Contract
from specexport.engines.base import feed_passes

CONTRACT = Contract(capacity=32, max_draft_tokens=3, prompt_chunk=8, precision="fp32")


@pytest.mark.parametrize("pad_from", [1, CONTRACT.widest_step + 1])
@pytest.mark.parametrize("position", range(32))
def test_every_token_once_in_passes_that_exist(position: int, pad_from: int) -> None:
    widths = {*range(1, CONTRACT.widest_step + 1), CONTRACT.prompt_chunk}
    for count in range(32 - position + 1):
        tokens, at = list(range(count)), position
        fed: list[int] = []
        for width, part, start in feed_passes(tokens, position, CONTRACT, pad_from):
            assert start == at
            assert width in widths
            assert 0 < len(part) <= width
            assert start + width <= CONTRACT.capacity
            assert width == CONTRACT.prompt_chunk or len(part) == width  # only chunks are padded
            fed += part
            at += len(part)
        assert fed == tokens


def test_few_tokens_are_padded_only_where_that_is_asked_for() -> None:
    assert [width for width, _, _ in feed_passes([1, 2], 0, CONTRACT, pad_from=1)] == [8]
    assert [width for width, _, _ in feed_passes([1, 2], 0, CONTRACT, CONTRACT.widest_step + 1)] == [2]
    assert [width for width, _, _ in feed_passes([0] * 10, 0, CONTRACT, CONTRACT.widest_step + 1)] == [8, 2]
