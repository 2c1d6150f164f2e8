"""What surrounds a product and becomes a part of it, and what looks like that and must not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.kernels.fuse import fuse_around_products
from specexport.exporter.kernels.products import use_products
from specexport.exporter.passes.clean_up import CLEAN_UP
from specexport.exporter.weights.recipe import Recipe
from specexport.exporter.weights.rotation import hadamard
from support.small_graphs import operators, run, weight, with_weights

pytest.importorskip("specexport_kernels")

ROWS, INPUTS, OUTPUTS = 3, 64, 96
X, SKIP = weight(ROWS, INPUTS)[None], weight(ROWS, INPUTS, 1)[None]
H = hadamard(32).numpy()
WEIGHTS = {
    "w": weight(INPUTS, OUTPUTS, 2),
    "narrow": weight(INPUTS, 40, 3),
    "gain": weight(1, INPUTS, 4)[0],
    "bias": weight(1, OUTPUTS, 5)[0],
    "one": weight(1, 1, 6)[0],
    "row": weight(1, OUTPUTS, 7),
    "halves": np.array([OUTPUTS // 2] * 2),
    "twenty": np.array([20, 20]),
    "parts": np.array([-1, 32]),
    "whole": np.array([1, -1, INPUTS]),
    "heads": np.array([1, -1, 4, INPUTS // 4]),
    "list": np.array([-1, INPUTS]),
    "pairs": np.array([1, -1, 2, INPUTS // 2]),
    "half_w": weight(INPUTS // 2, OUTPUTS, 10),
    "rows": np.array([1, -1, OUTPUTS]),
    "square": weight(INPUTS, INPUTS, 9),
    "H": H,
    "H2": 2 * H,
    "R": np.linalg.qr(weight(32, 32, 8).astype(np.float64))[0].astype(np.float32),
}
MULTIPLIED, SPLIT = "m = MatMul(x, w)", "m = MatMul(x, w) g, u = Split<axis = -1>(m, halves)"
SWISH, NORM = "s = Sigmoid(g) a = Mul(g, s)", "n = SimplifiedLayerNormalization<epsilon = 0.01>(x, gain)"
SKIPPED = "n, p, q, total = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(x, skip, gain)"
PAIRS = "r = Reshape(x, pairs) m = MatMul(r, half_w)"
GIVEN = f"float[1, t, {INPUTS}] x, float[1, t, {INPUTS}] skip"


def turn(by: str, after: str = "MatMul(v, w)") -> str:
    return f"r = Reshape(x, parts) h = MatMul(r, {by}) v = Reshape(h, whole) y = {after}"


def made(body: str, outputs: str) -> ir.Model:
    return with_weights(GIVEN, body, ", ".join(f"float[1, t, n] {name}" for name in outputs.split()), WEIGHTS)


def fused(body: str, outputs: str = "y") -> tuple[ir.Model, int]:
    """What became of the graph, and how many things were fused; it computes what it did."""
    model = made(body, outputs)
    use_products(model, Recipe({}))
    count = fuse_around_products(model)
    CLEAN_UP(model)
    assert [value.name for value in model.graph.outputs] == outputs.split()
    for ours, theirs in zip(run(model, x=X, skip=SKIP), run(made(body, outputs), x=X, skip=SKIP), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
    return model, count


@pytest.mark.parametrize(
    "body",
    [
        f"{MULTIPLIED} y = Add(m, bias)",
        f"{MULTIPLIED} y = Add(bias, m)",
        f"{SPLIT} {SWISH} y = Mul(a, u)",
        f"{SPLIT} {SWISH} y = Mul(u, a)",
        f'{SPLIT} a = Gelu<approximate = "tanh">(g) y = Mul(a, u)',
        f"{NORM} y = MatMul(n, w)",
        f"{SKIPPED} y = MatMul(n, w)",
    ],
)
def test_it_becomes_one_operator(body: str) -> None:
    model, count = fused(body)
    assert operators(model) == ["LinearFloat"]
    assert count == 1


def test_all_at_once() -> None:
    split = "m = MatMul(n, w) k = Add(m, bias) g, u = Split<axis = -1>(k, halves)"
    model, count = fused(f"{SKIPPED} {split} {SWISH} y = Mul(a, u)")
    assert operators(model) == ["LinearFloat"]
    assert count == 3


@pytest.mark.parametrize(
    ("outputs", "read"), [("y z", "z = Neg(total)"), ("total y", "z = Neg(total)"), ("y total", "")]
)
def test_the_sum_of_a_norm_is_given_too(outputs: str, read: str) -> None:
    """To nodes that stand before the product as well, and where the graph alone gives it."""
    model, count = fused(f"{SKIPPED} {read} y = MatMul(n, w)", outputs)
    assert [kind for kind in operators(model) if kind != "Neg"] == ["LinearFloat"]
    assert count == 1


def test_a_turn_goes_into_the_product() -> None:
    model, count = fused(turn("H"))
    assert operators(model) == ["Reshape", "LinearFloat"]  # the rows may have come in another shape
    assert count == 1
    product = f"e = MatMul(x, square) {turn('H').replace('(x', '(e')}"
    assert operators(fused(product)[0]) == ["LinearFloat", "LinearFloat"]
    # a product of rows in one list gives no [1, T, K]
    flat = f"l = Reshape(x, list) e = MatMul(l, square) {turn('H').replace('(x', '(e')}"
    assert operators(fused(flat)[0]) == ["Reshape", "LinearFloat", "Reshape", "LinearFloat"]
    heads = f"e = Reshape(x, heads) {turn('H').replace('(x', '(e')}"
    assert operators(fused(heads)[0])[-1:] == ["LinearFloat"]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        # biases that are none: of another shape, of one number, of a graph's input, of a value that others read
        (f"{MULTIPLIED} y = Add(m, row)", "y"),
        (f"{MULTIPLIED} y = Add(m, one)", "y"),
        (f"{MULTIPLIED} o = Neg(m) y = Add(m, o)", "y"),
        (f"{MULTIPLIED} y = Add(m, bias)", "y m"),
        (f"{MULTIPLIED} y = Add(m, bias) z = Neg(m)", "y z"),
        (f"{MULTIPLIED} y = Sub(m, bias)", "y"),
        # gates: the second half activated, an activation that is another, or is read, halves of no whole panels
        (f"{SPLIT} s = Sigmoid(u) a = Mul(u, s) y = Mul(a, g)", "y"),
        (f"{SPLIT} s = Sigmoid(g) y = Mul(s, u)", "y"),
        (f"{SPLIT} a = Gelu(g) y = Mul(a, u)", "y"),
        (f"{SPLIT} {SWISH} y = Mul(a, u) z = Neg(a)", "y z"),
        (f"{SPLIT} {SWISH} y = Mul(a, u) z = Neg(u)", "y z"),
        (f"{SPLIT} {SWISH} y = Mul(a, u) z = Neg(g)", "y z"),
        (f"{SPLIT} {SWISH} y = Add(a, u)", "y"),
        (f"{SPLIT} s = Sigmoid(u) a = Mul(g, s) y = Mul(a, u)", "y"),
        (f"m = MatMul(x, narrow) g, u = Split<axis = -1>(m, twenty) {SWISH} y = Mul(a, u)", "y"),
        # gates: halves of the rows, not of each
        (f"{PAIRS} g, u = Split<axis = 2, num_outputs = 2>(m) {SWISH} p = Mul(a, u) y = Reshape(p, rows)", "y"),
        # norms that others read, or that add a bias of their own
        (f"{NORM} y = MatMul(n, w) z = Neg(n)", "y z"),
        (f"{NORM} y = MatMul(n, w)", "y n"),
        (f"{SKIPPED} y = MatMul(n, w) z = Neg(n)", "y z"),
        (f"{SKIPPED.replace('gain)', 'gain, gain)')} y = MatMul(n, w)", "y"),
        ("n = LayerNormalization(x, gain) y = MatMul(n, w)", "y"),
        # turns: by what is no Hadamard matrix, or one that is not normalized, or of what others read
        (turn("R"), "y"),
        (turn("H2"), "y"),
        (turn("H", "MatMul(v, w) z = Neg(v)"), "y z"),
    ],
)
def test_others_stay(body: str, outputs: str) -> None:
    before = [kind for kind in operators(made(body, outputs)) if kind != "MatMul"]
    model, count = fused(body, outputs)
    assert count == 0
    assert [kind for kind in operators(model) if kind not in ("LinearFloat", "MatMul")] == before


def test_a_second_bias_stays() -> None:
    model, count = fused(f"{MULTIPLIED} k = Add(m, bias) y = Add(k, bias)")
    assert operators(model) == ["LinearFloat", "Add"]
    assert count == 1


@pytest.mark.parametrize(("axis", "shape"), [(1, [INPUTS]), (-1, [1, INPUTS])])
def test_a_norm_over_another_axis_or_by_a_matrix_stays(axis: int, shape: list[int]) -> None:
    model = made(f"{NORM} y = MatMul(n, w)", "y")
    (norm,) = (node for node in model.graph if node.op_type == "SimplifiedLayerNormalization")
    norm.attributes["axis"] = ir.AttrInt64("axis", axis)
    gain = norm.inputs[1]
    assert gain is not None
    gain.shape = ir.Shape(shape)
    use_products(model, Recipe({}))
    assert fuse_around_products(model) == 0
