"""benchmarks/late_commit.py: the graph that it compares with computes the same, by fewer operators."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.hybrids import KINDS, decoder, save_hybrid
from support.tiny import CONTRACT, VOCAB, export_cached

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from late_commit import Asked, Plain, compare, weights_of_the_file, without_late_commit


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
    for accepted, checked in ((4, True), (2, False)):
        compare(path, exported.spec, CONTRACT, Asked(12, 2, (1, 5), accepted), threads=1, sessions=2)
        told = capsys.readouterr().out
        assert "5 rows: " in told
        assert ("logits differ by" in told) == checked


def test_sessions_that_are_compared_read_the_same_weights(tmp_path: Path) -> None:
    """Packed ones lie elsewhere in each, which takes as long as what is measured."""
    exported = export_cached(save_hybrid(tmp_path / "checkpoint", "convolution"), tmp_path / "graphs", ("ort",))
    path = exported.folder / exported.spec.graphs["ort"]

    def opened() -> list[str]:
        found = []
        for part in (decoder(exported), Plain(path, exported.spec, CONTRACT, 1)):
            options = part._session.get_session_options()  # type: ignore[union-attr]
            try:
                found.append(options.get_session_config_entry("session.disable_prepacking"))
            except RuntimeError:  # not set
                found.append("0")
        return found

    with weights_of_the_file():
        assert opened() == ["1", "1"]
    assert opened() == ["0", "0"]
