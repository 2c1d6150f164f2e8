from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.quantize.pack_qkv import pack_attention
from support.small_graphs import operators, run, weight, with_weights

# Four heads of 16 over two of keys, a cache of 8 rows, two of them in use.
GIVEN = "float[1, t, 128] m, float[1, 2, 8, 16] k, float[1, 2, 8, 16] v, int32[1] last, int32 total"
KEPT = "float[1, t, 64] y, float[1, 2, 8, 16] nk, float[1, 2, 8, 16] nv"
ATTEND = "com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>"
PLAIN = f"a, b, c = Split<axis = -1>(m, sizes) y, nk, nv = {ATTEND}(a, b, c, k, v, last, total)"
SIZES = np.array([64, 32, 32])
SHAPES = {"list": np.array([-1, 128]), "whole": np.array([1, -1, 64]), "half": np.array([1, -1, 32])}
FEEDS = {
    "m": weight(2, 128)[None],
    "k": weight(16, 16).reshape(1, 2, 8, 16),
    "v": weight(16, 16, seed=1).reshape(1, 2, 8, 16),
    "last": np.array([3], np.int32),
    "total": np.array(8, np.int32),
}


def model(body: str, outputs: str = KEPT, **weights: np.ndarray) -> ir.Model:
    return with_weights(GIVEN, body, outputs, {"sizes": SIZES} | weights)


def feeds() -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in FEEDS.items()}  # attention may write into what it is given


def check(body: str, packed: int, outputs: str = KEPT, **weights: np.ndarray) -> ir.Model:
    made = model(body, outputs, **weights)
    assert pack_attention(made) == packed
    for ours, theirs in zip(run(made, **feeds()), run(model(body, outputs, **weights), **feeds()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    return made


def test_what_was_split_for_attention_alone_goes_there_whole() -> None:
    made = check(PLAIN, 1)
    (node,) = [node for node in made.graph if node.op_type == "GroupQueryAttention"]
    assert [value is not None and value.name for value in node.inputs[:3]] == ["m", False, False]


def test_biases_of_the_three_become_one() -> None:
    biases = {"p": weight(1, 64)[0], "q": weight(1, 32, 1)[0], "r": weight(1, 32, 2)[0]}
    added = "d = Add(a, p) e = Add(q, b) f = Add(c, r)"
    body = f"a, b, c = Split<axis = -1>(m, sizes) {added} y, nk, nv = {ATTEND}(d, e, f, k, v, last, total)"
    made = check(body, 1, **biases)
    assert [
        node.op_type for node in made.graph if any(out.uses() or out.is_graph_output() for out in node.outputs)
    ].count("Add") == 1


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        # another order
        (f"a, b, c = Split<axis = -1>(m, sizes) y, nk, nv = {ATTEND}(a, c, b, k, v, last, total)", KEPT),
        (f"{PLAIN} z = Neg(b)", f"{KEPT}, float[1, t, 32] z"),  # read elsewhere too
        # parts of other axes, or of another rank
        (
            f"r = Transpose<perm = [0, 2, 1]>(m) a, b, c = Split<axis = 1>(r, sizes) d = Reshape(a, whole) "
            f"e = Reshape(b, half) f = Reshape(c, half) y, nk, nv = {ATTEND}(d, e, f, k, v, last, total)",
            KEPT,
        ),
        (
            f"r = Reshape(m, list) a, b, c = Split<axis = 1>(r, sizes) d = Reshape(a, whole) "
            f"e = Reshape(b, half) f = Reshape(c, half) y, nk, nv = {ATTEND}(d, e, f, k, v, last, total)",
            KEPT,
        ),
        # changed
        (f"a, b, c = Split<axis = -1>(m, sizes) d = Mul(b, b) y, nk, nv = {ATTEND}(a, d, c, k, v, last, total)", KEPT),
    ],
)
def test_others_stay(body: str, outputs: str) -> None:
    assert "Split" in operators(check(body, 0, outputs, **SHAPES))
