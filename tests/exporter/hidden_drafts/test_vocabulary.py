"""d2t and t2d: checked against each other and against the target's vocabulary."""

from __future__ import annotations

import pytest
import torch
from specexport.errors import CheckpointError
from specexport.exporter.hidden_drafts.vocabulary import read_target_ids
from support.refusals import refused
from torch import Tensor

IDS = torch.tensor([1, 4, 6, 7, 11])
D2T, VOCAB = IDS - torch.arange(5), 12
T2D = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, IDS, True)


@pytest.mark.parametrize("t2d", [T2D, None])
def test_offsets(t2d: Tensor | None) -> None:
    ids = read_target_ids("draft", D2T, t2d, 5, VOCAB)
    assert ids is not None
    assert torch.equal(ids, IDS)


@pytest.mark.parametrize("d2t", [None, torch.zeros(VOCAB, dtype=torch.int64)])
@pytest.mark.parametrize("t2d", [None, torch.ones(VOCAB, dtype=torch.bool)])
def test_the_whole_vocabulary(d2t: Tensor | None, t2d: Tensor | None) -> None:
    assert read_target_ids("draft", d2t, t2d, VOCAB, VOCAB) is None


@pytest.mark.parametrize(
    ("d2t", "t2d", "facts"),
    [
        (D2T + torch.tensor([0, 0, 0, 0, 1]), None, ("d2t", "draft token 4", 12)),
        (D2T - torch.tensor([2, 0, 0, 0, 0]), None, ("d2t", "draft token 0", -1)),
        (D2T - torch.tensor([0, 0, 0, 1, 0]), None, ("d2t", "token 6")),
        (D2T[:4], T2D, ("d2t", 5)),
        (D2T.float(), T2D, ("d2t", "float32")),
        (torch.arange(5), None, ("d2t", "0, 1, 2")),
        (D2T, T2D.roll(1), ("d2t", "t2d", "token 0")),
        (D2T, torch.ones(VOCAB, dtype=torch.bool), ("d2t", "t2d", "token 0")),
        (D2T, T2D[:11], ("t2d", 11, 12)),
        (None, T2D, ("d2t", 5, 12)),
        (None, None, ("d2t", 5, 12)),
    ],
    ids=["beyond", "before", "twice", "short", "fractions", "unset", "shifted", "all", "t2d short", "alone", "neither"],
)
def test_tables_that_do_not_agree(d2t: Tensor | None, t2d: Tensor | None, facts: tuple[object, ...]) -> None:
    with refused(CheckpointError, "head", *facts, field="draft"):
        read_target_ids("head", d2t, t2d, 5, VOCAB)
