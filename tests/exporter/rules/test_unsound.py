"""Logits that are no numbers: the compiled rules stop in front of them and say so; no host looks at the logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.onnxruntime.cpu import open_graph
from specexport.exporter.rules import graphs
from specexport.exporter.rules.parts import LARGEST, RuleGraph

VOCAB, K = 300, 2
ONE = {"sampling": np.array([1, 0, 1, 0], np.float32)}


def run(tmp_path: Path, model: Any, **inputs: Any) -> dict[str, Any]:
    (tmp_path / "rule.onnx").write_bytes(model.SerializeToString())
    return dict(open_graph(tmp_path / "rule.onnx")(inputs))


def sound() -> np.ndarray:
    return np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)


def broken(kind: str) -> np.ndarray:
    row = sound()
    if kind == "nan":
        row[:] = np.nan
    elif kind == "one nan":
        row[5] = np.nan
    elif kind == "one inf":
        row[5] = np.inf
    else:
        row[:] = -np.inf
    return row


KINDS = ("nan", "one nan", "one inf", "nothing")


@pytest.fixture(params=["as it is", "smallest"])
def nan_in_topk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX does not say where a TopK has it."""
    original = RuleGraph.largest
    if request.param == "smallest":
        monkeypatch.setattr(
            RuleGraph,
            "largest",
            lambda op, values, count: original(op, op.Where(op.Equal(values, values), values, -LARGEST), count),
        )


@pytest.mark.usefixtures("nan_in_topk")
@pytest.mark.parametrize("rule", ["greedy", "token", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_ends_in_front_of_a_broken_row(tmp_path: Path, kind: str, rule: str) -> None:
    best = int(sound().argmax())
    for place in range(K + 1):
        logits = np.stack([broken(kind) if row == place else sound() for row in range(K + 1)])
        inputs: dict[str, Any] = {"logits": logits, "draft_tokens": np.array([best] * K), "position": np.array([3])}
        if rule == "greedy":
            found = run(tmp_path, graphs.accept_greedy(VOCAB, K), **inputs)
        else:  # a draft that the target accepts for certain, as long as it is asked
            probs = np.full((K, VOCAB), 1e-9, np.float32)
            found = run(
                tmp_path,
                graphs.accept(VOCAB, K, rule),
                **inputs,
                **ONE,
                draft_probs=probs,
                noise=np.zeros(K + 1, np.float32),
            )
        assert [int(found[name][0]) for name in ("num_accepted", "next_token", "next_position")] == [
            place,
            VOCAB,
            3 + place + 1,
        ]


@pytest.mark.parametrize("rule", ["greedy", "token", "block"])
def test_a_broken_row_behind_the_rejected_does_no_harm(tmp_path: Path, rule: str) -> None:
    logits = np.stack([sound(), sound(), broken("nan")])
    worst = int(sound().argmin())
    inputs: dict[str, Any] = {"logits": logits, "draft_tokens": np.array([worst] * K), "position": np.array([3])}
    if rule == "greedy":
        found = run(tmp_path, graphs.accept_greedy(VOCAB, K), **inputs)
    else:
        certain = np.zeros((K, VOCAB), np.float32)
        certain[:, worst] = 1.0
        noise = np.full(K + 1, 0.99, np.float32)
        found = run(tmp_path, graphs.accept(VOCAB, K, rule), **inputs, **ONE, draft_probs=certain, noise=noise)
    assert int(found["num_accepted"][0]) == 0
    assert 0 <= int(found["next_token"][0]) < VOCAB


@pytest.mark.usefixtures("nan_in_topk")
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_token_stays_an_id_and_its_confidence_tells(tmp_path: Path, kind: str) -> None:
    for model, more in (
        (graphs.select_greedy(VOCAB), {}),
        (graphs.select(VOCAB), ONE | {"noise": np.array([0.5], np.float32)}),
    ):
        found = run(tmp_path, model, logits=broken(kind)[None], **more)
        assert 0 <= int(found["token"][0]) < VOCAB
        assert np.isnan(found["confidence"][0])
