"""benchmarks/late_commit.py: the graph that it compares with computes the same, by fewer operators."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.hybrids import KINDS, decoder, save_hybrid
from support.tiny import CONTRACT, VOCAB, export_cached

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from late_commit import Plain, compare, without_late_commit


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_advance_at_once_give_the_same_logits(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = export_cached(save_hybrid(tmp_path / "checkpoint", kind), tmp_path / "graphs", ("ort",))
    path = exported.folder / exported.spec.graphs["ort"]
    late, plain = decoder(exported), Plain(path, exported.spec, CONTRACT, 1)
    tokens, position = np.random.default_rng(0).integers(0, VOCAB, 40).tolist(), 0
    for width in (12, 5, 5, 1, 1, 5, 2):
        given = tokens[position : position + width]
        assert np.allclose(late.step(given, position), plain.step(given, position), atol=1e-5)
        position += width
    graph = without_late_commit(path, exported.spec).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("LinearAttention") == (0 if kind == "convolution" else 1)
    assert kinds.count("CausalConvWithState") == 1
    assert not {value.name for value in graph.input} & {"pending", "certain", "past.0.rows"}
    compare(late, plain, (12, 2, [1, 5]))
    assert "5 rows: " in capsys.readouterr().out
