"""d2t and t2d: checked against each other and against the target's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from specexport.errors import CheckpointError
from specexport.exporter.hidden_drafts.folder import tensors_of
from specexport.exporter.hidden_drafts.vocabulary import read_tables, read_target_ids
from support.refusals import refused

Table = NDArray[Any]
IDS, VOCAB = np.array([1, 4, 6, 7, 11]), 12
D2T = IDS - np.arange(5)
T2D = np.isin(np.arange(VOCAB), IDS)


def read(d2t: Table | None, t2d: Table | None, size: int = 5) -> NDArray[np.int64] | None:
    tables = {name: table for name, table in (("d2t", d2t), ("t2d", t2d)) if table is not None}
    return read_target_ids("head", tables, size, VOCAB)


@pytest.mark.parametrize("t2d", [T2D, None])
def test_offsets(t2d: Table | None) -> None:
    assert np.array_equal(read(D2T, t2d), IDS)


@pytest.mark.parametrize("d2t", [None, np.zeros(VOCAB, np.int64)])
@pytest.mark.parametrize("t2d", [None, np.ones(VOCAB, bool)])
def test_the_whole_vocabulary(d2t: Table | None, t2d: Table | None) -> None:
    assert read(d2t, t2d, VOCAB) is None


@pytest.mark.parametrize(
    ("d2t", "t2d", "facts"),
    [
        (D2T + np.eye(5, dtype=int)[4], None, ("d2t", "draft token 4", 12)),
        (D2T - 2 * np.eye(5, dtype=int)[0], None, ("d2t", "draft token 0", -1)),
        (D2T - np.eye(5, dtype=int)[3], None, ("d2t", "token 6")),
        (D2T[:4], T2D, ("d2t", 5)),
        (np.arange(5), None, ("d2t", "0, 1, 2")),
        (D2T, np.roll(T2D, 1), ("d2t", "t2d", "token 0")),
        (D2T, np.ones(VOCAB, bool), ("d2t", "t2d", "token 0")),
        (D2T, T2D[:11], ("t2d", 11, 12)),
        (None, T2D, ("d2t", 5, 12)),
        (None, None, ("d2t", 5, 12)),
    ],
    ids=["beyond", "before", "twice", "short", "unset", "shifted", "all", "t2d short", "alone", "neither"],
)
def test_tables_that_do_not_agree(d2t: Table | None, t2d: Table | None, facts: tuple[object, ...]) -> None:
    with refused(CheckpointError, "head", *facts, field="draft"):
        read(d2t, t2d)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tables_as_they_are_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"d2t": torch.tensor(D2T).to(dtype), "t2d": torch.tensor(T2D), "norm.weight": torch.ones(2)}, path)
    tables = read_tables("head", tensors_of([path]))
    assert np.array_equal(tables["d2t"], D2T)
    assert np.array_equal(tables["t2d"], T2D)
    assert len(tables) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fractions(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"d2t": torch.tensor(D2T).to(dtype)}, tmp_path / "model.safetensors")
    with refused(CheckpointError, "head", "d2t", "F", field="draft"):
        read_tables("head", tensors_of([tmp_path / "model.safetensors"]))
