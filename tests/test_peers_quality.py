"""What benchmarks/peers compares systems on: prompts, logits, and how far they are from the fp32 model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence import Divergence, compare_rows, measure, shared_prefix


class Finished:
    def __init__(self) -> None:
        self.finished: dict[str, Any] = {}

    def add(self, key: str, row: dict[str, Any]) -> None:
        self.finished[key] = json.loads(json.dumps(row))


class Shows:
    """Logits that are its seed's: rows that all sequences share, and others."""

    def __init__(self, name: str, scale: float, vocab: int = 5) -> None:
        self.name, self.scale, self.vocab, self.asked = name, scale, vocab, 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        rows = [np.arange(self.vocab) * (0.0 if token == 1 else self.scale) for token in request["logits_of"]]
        np.array(rows, np.float32).tofile(request["file"])
        return {"rows": len(rows), "columns": self.vocab}


def test_divergence_is_over_what_sequences_do_not_share(tmp_path: Path) -> None:
    assert shared_prefix([[1, 1, 2], [1, 1, 3, 4], [1, 1, 2]]) == 2
    assert shared_prefix([[1, 2]]) == shared_prefix([[1, 2], [1, 2]]) == 0  # never all of it
    exact, other, kept = Shows("transformers", 1.0), Shows("peer", 2.0), Finished()
    sequences = [[1, 1, 2], [1, 1, 3, 4]]
    found = measure(exact, [exact, other], sequences, tmp_path, kept)
    row = compare_rows(np.arange(5, dtype=np.float32)[None], np.arange(5, dtype=np.float32)[None] * 2)[0]
    assert found["transformers"] == Divergence(0, 1, 3)
    assert (found["peer"].nats, found["peer"].agreement, found["peer"].rows) == (pytest.approx(row), 1, 3)
    assert (exact.asked, other.asked, list(tmp_path.iterdir())) == (2, 2, [])
    assert measure(exact, [exact, other], sequences, tmp_path, kept) == found
    assert (exact.asked, other.asked) == (2, 2)
