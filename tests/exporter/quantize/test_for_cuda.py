"""Attention for ONNX Runtime's CUDA provider: one product of queries, keys and values, which goes there whole.

The CPU provider runs the graphs. No GPU is needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.passes.optimize import optimize
from specexport.exporter.quantize.for_cuda import use_packed_attention
from support.small_graphs import operators, run, weight, with_weights
from support.tiny import CONTRACT, LLAMA, export, save_model, trace_once, traced

LAYERS = 2


def attentions(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def is_packed(attention: ir.Node) -> bool:
    return attention.inputs[1] is None and attention.inputs[2] is None


# Heads of 16, which the kernel turns.
@pytest.mark.parametrize(
    ("model_type", "changes", "packed"),
    [
        ("llama", {}, LAYERS),
        ("llama", {"attention_bias": True}, LAYERS),
        ("qwen3", {}, 0),  # a norm of each head lies between the products and attention
    ],
    ids=["llama", "biases", "norms"],
)
def test_a_model_gives_the_references_logits(
    model_type: str, changes: dict[str, Any], packed: int, tmp_path: Path
) -> None:
    checkpoint = save_model(tmp_path / "checkpoint", model_type, config=LLAMA | {"head_dim": 16} | changes)
    before: list[ir.Model] = []
    after: list[ir.Model] = []

    def made(*given: Any) -> ir.Model:
        before.append(trace_once(*given))
        model = trace_once(*given)
        contract = given[4]
        assert use_packed_attention(model, contract.capacity) == packed
        after.append(model)
        return model

    exported = export(checkpoint, tmp_path / "graphs", ("ort",), trace=made)
    assert exported.error("ort") < 1e-4
    found = attentions(after[0])
    assert len(found) == LAYERS
    assert all(node.attributes.get_int("do_rotary", 0) for node in found)
    assert [is_packed(node) for node in found] == [packed > 0] * LAYERS
    products = [operators(model).count("FusedMatMul") for model in (before[0], after[0])]
    assert products[0] - products[1] == 2 * packed, "three products become one"


def test_rows_of_trees_keep_angles_of_their_own(tmp_path: Path) -> None:
    """The kernel turns a row by its place in the cache."""
    checkpoint = save_model(tmp_path / "checkpoint", "llama", config=LLAMA | {"head_dim": 16})
    model = traced(checkpoint, "ort", replace(CONTRACT, tree_rows=6))
    optimize(model, "ort")
    assert use_packed_attention(model, CONTRACT.capacity) == 0
    assert len(attentions(model)) == LAYERS
    assert not any(node.attributes.get_int("do_rotary", 0) for node in attentions(model))


# Four heads of 16 over two of keys, a cache of 8 rows, two of them in use.
GIVEN = "float[1, t, 32] x, float[1, 2, 8, 16] pk, float[1, 2, 8, 16] pv, int32[1] last, int32 total"
KEPT = "float[1, t, 64] y, float[1, 2, 8, 16] nk, float[1, 2, 8, 16] nv"
TIMES = "com.microsoft.FusedMatMul<transB = 1>"
THREE = f"q = {TIMES}(x, wq) k = {TIMES}(x, wk) v = {TIMES}(x, wv) "
ATTEND = "y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(q, k, v, pk, pv, last, total) "
FLAT = "f = Reshape(x, list) "
WHOLE = "q = Reshape(a, whole) k = Reshape(b, half) v = Reshape(c, half) "
WEIGHTS = {
    "wq": weight(64, 32),
    "wk": weight(32, 32, 1),
    "wv": weight(32, 32, 2),
    "bq": weight(1, 64, 3)[0],
    "bk": weight(1, 32, 4)[0],
    "bv": weight(1, 32, 5)[0],
    "list": np.array([-1, 32]),
    "whole": np.array([1, -1, 64]),
    "half": np.array([1, -1, 32]),
}


def check(body: str, packed: int, more: str = "") -> ir.Model:
    """What became of the graph, which gives what it gave. more: outputs besides attention's."""
    model, same = (with_weights(GIVEN, body, KEPT + more, WEIGHTS) for _ in range(2))
    assert use_packed_attention(model, 8) == packed
    for ours, theirs in zip(run(model, **feeds()), run(same, **feeds()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return model


def feeds() -> dict[str, np.ndarray]:
    caches = {name: weight(16, 16, seed).reshape(1, 2, 8, 16) for name, seed in (("pk", 6), ("pv", 7))}
    counts = {"last": np.array([3], np.int32), "total": np.array(8, np.int32)}
    return {"x": weight(2, 32, 8)[None], **caches, **counts}


def test_three_products_become_one() -> None:
    model = check(THREE + ATTEND, 1)
    assert operators(model) == ["FusedMatMul", "GroupQueryAttention"]
    (attention,) = attentions(model)
    assert is_packed(attention)


def test_biases_that_are_added_behind_become_one() -> None:
    added = "q = Add(a, bq) k = Add(b, bk) v = Add(c, bv) "
    three = f"a = {TIMES}(x, wq) b = {TIMES}(x, wk) c = {TIMES}(x, wv) "
    model = check(three + added + ATTEND, 1)
    assert operators(model) == ["FusedMatMul", "Add", "GroupQueryAttention"]


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_products_that_another_node_reads_stay(part: str) -> None:
    size = 64 if part == "q" else 32
    model = check(f"{THREE}{ATTEND}z = Neg({part})", 0, f", float[1, t, {size}] z")
    assert sorted(operators(model)) == ["FusedMatMul"] * 3 + ["GroupQueryAttention", "Neg"]


def test_products_of_a_weight_that_another_has_too_stay() -> None:
    """Joined, it would be stored twice."""
    model = check(f"{THREE}{ATTEND}n = Neg(x) z = {TIMES}(n, wk)", 0, ", float[1, t, 32] z")
    assert operators(model).count("FusedMatMul") == 4


@pytest.mark.parametrize(
    "three",
    [
        # a bias of their own
        f"{FLAT}a = Gemm<transB = 1>(f, wq, bq) b = Gemm<transB = 1>(f, wk) c = Gemm<transB = 1>(f, wv) {WHOLE}",
        f"{FLAT}a = Gemm<transB = 1>(f, wq) b = Gemm<transB = 1>(f, wk, bk) c = Gemm<transB = 1>(f, wv) {WHOLE}",
        # weights that are stored otherwise
        f"q = {TIMES}(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) ",
        # of another value
        f"n = Neg(x) q = {TIMES}(x, wq) k = {TIMES}(n, wk) v = {TIMES}(n, wv) ",
        # values that no product gives
        f"q = {TIMES}(x, wq) k = {TIMES}(x, wk) v = Neg(x) ",
    ],
    ids=["a bias of the first", "a bias of another", "stored otherwise", "another value", "no product"],
)
def test_others_stay(three: str) -> None:
    untouched = sorted(operators(with_weights(GIVEN, three + ATTEND, KEPT, WEIGHTS)))
    assert sorted(operators(check(three + ATTEND, 0))) == untouched
