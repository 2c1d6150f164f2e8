"""Which tokens a draft with a cut vocabulary proposes, and what is left of its output embedding."""

from __future__ import annotations

import pytest
import torch
from specexport.exporter.hidden_drafts.base import HiddenDraft, cut_head
from specexport.exporter.hidden_drafts.vocabulary import most_frequent
from torch import nn
from transformers import LlamaConfig


@pytest.mark.parametrize(
    ("tokens", "size", "always", "kept"),
    [
        pytest.param([5, 5, 2, 7, 7, 2, 2], 2, [], (2, 5), id="of equally frequent ones the smaller"),
        pytest.param([9, 9, 4, 4, 4], 2, [], (4, 9), id="in the order of their ids"),
        pytest.param([5, 5, 2, 7, 7, 7], 2, [1], (1, 7), id="the stop token is among them"),
        pytest.param([8], 3, [], (0, 1, 8), id="the first ones where texts have too few"),
        pytest.param([3, 3], 1, [0, 6], (0, 6), id="all stop tokens, though they are more"),
        pytest.param([3, 11], 2, [12], (0, 3), id="none beyond the vocabulary"),
        pytest.param([3], 20, [1], tuple(range(10)), id="never more than there are"),
    ],
)
def test_the_most_frequent_tokens_are_kept(
    tokens: list[int], size: int, always: list[int], kept: tuple[int, ...]
) -> None:
    assert most_frequent(tokens, size, always, vocab_size=10) == kept


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_keeps_their_rows(bias: bool) -> None:
    draft = HiddenDraft(LlamaConfig())
    draft.embed_tokens, draft.lm_head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=bias)
    draft.lm_head.weight = draft.embed_tokens.weight  # tied
    rows = torch.randn(3, 4)
    whole = draft.lm_head(rows)
    cut_head(draft, (1, 4))
    assert draft.target_ids is not None
    assert draft.target_ids.tolist() == [1, 4]
    assert draft.lm_head.out_features == 2
    assert torch.allclose(draft.lm_head(rows), whole[:, [1, 4]])
    assert draft.embed_tokens.weight.shape == (6, 4)
