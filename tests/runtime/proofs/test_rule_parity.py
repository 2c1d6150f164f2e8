"""The proof of compiled rules finds graphs out that decide almost right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from specexport.bundle import RuleSpec
from specexport.engines.base import Arrays
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.exporter.rules import graphs, parts
from specexport.exporter.rules import graphs as write
from specexport.exporter.rules.parts import RuleGraph
from specexport.runtime.proofs import rule_parity
from specexport.runtime.proofs.rule_parity import RuleProof, measure_rule

VOCAB = 600  # more than one block of the cumulative sum


def prove(spec: RuleSpec, model: onnx.ModelProto, folder: Path) -> RuleProof:
    path = folder / "rule.onnx"
    path.write_bytes(model.SerializeToString())
    return measure_rule(open_graph(path), spec, VOCAB)


def exchange(monkeypatch: pytest.MonkeyPatch, operator: str, other: str) -> None:
    original = RuleGraph.__getattr__
    monkeypatch.setattr(
        RuleGraph, "__getattr__", lambda self, name: original(self, other if name == operator else name)
    )


def highest_id_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def argmax(op: RuleGraph, logits: object, top: object, num_rows: int, vocab_size: int) -> object:
        best = op.Equal(logits, top)
        return op.ReduceMax(op.Where(best, op.Range(0, vocab_size, 1), 0), [1], keepdims=0)

    monkeypatch.setattr(graphs, "argmax", argmax)


def equal_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange(monkeypatch, "Less", "LessOrEqual")


def nothing_left_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original = graphs._following

    def following(op: RuleGraph, target: object, draft: object, accepted: object, scale: object, k: int) -> object:
        return original(op, target, draft, accepted, scale, k)[:1]  # what is left over, even where that is nothing

    monkeypatch.setattr(graphs, "_following", following)


def no_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    original = parts.element
    monkeypatch.setattr(parts, "element", lambda op, vector, index: 1.0 if index == 0 else original(op, vector, index))


def specs(k: int) -> dict[str, tuple[RuleSpec, Callable[[], onnx.ModelProto]]]:
    return {Path(spec.graph).stem: (spec, make) for spec, make in write._rules(k, VOCAB)}


@pytest.mark.parametrize("name", specs(3))
def test_a_right_graph_passes(name: str, tmp_path: Path) -> None:
    spec, make = specs(3)[name]
    proof = prove(spec, make(), tmp_path)
    assert proof.passed, proof
    assert proof.cases >= 2


@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (highest_id_wins, ["select_greedy", "accept_greedy_1", "accept_greedy_2", "accept_greedy_3"]),
        (equal_is_enough, ["accept_token_1", "accept_token_2", "accept_token_3"]),
        (
            nothing_left_is_nothing,
            ["accept_token_1", "accept_token_2", "accept_block_1", "accept_block_2", "accept_block_3"],
        ),
        (no_temperature, ["select"]),
    ],
)
def test_mutants_are_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant(monkeypatch)
    for name in names:
        spec, make = specs(3)[name]
        assert not prove(spec, make(), tmp_path).passed, name


@pytest.mark.parametrize("name", ["select", "accept_token_2", "accept_block_2"])
def test_tokens_smaller_than_the_nudge(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a vocabulary of 128k, where what float32 may move spans several tokens: those are right, others are not."""
    monkeypatch.setattr(rule_parity, "NUDGE", 0.02)
    spec, make = specs(3)[name]
    assert prove(spec, make(), tmp_path).passed
    run = open_graph(tmp_path / "rule.onnx")
    token = "token" if name == "select" else "next_token"

    def next_but_many(arrays: Arrays) -> Arrays:
        found = dict(run(arrays))
        return found | {token: (found[token] + VOCAB // 3) % VOCAB}

    assert not rule_parity.measure_rule(next_but_many, spec, VOCAB).passed


@pytest.mark.parametrize("name", ["select", "select_greedy"])
def test_what_is_no_number_must_be_told(name: str, tmp_path: Path) -> None:
    """As a compiler hides that takes x - x for 0."""
    spec, write_graph = specs(3)[name]
    path = tmp_path / "rule.onnx"
    path.write_bytes(write_graph().SerializeToString())
    run = open_graph(path)

    def hides(inputs: Arrays) -> Arrays:
        found = dict(run(inputs))
        return found | {"confidence": np.nan_to_num(found["confidence"])}

    assert measure_rule(run, spec, VOCAB).passed
    assert not measure_rule(hides, spec, VOCAB).passed
