"""Row-wise W8A8 against the same in numpy, and the bounds that keep its integers exact."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.quantize.for_onnxruntime import quantize_rows
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.small_graphs import graph, operators, run, weight

INT8 = WeightRecipe("int8")
ONE = """agraph (float[1, t, 64] x, float[48, 64] w) => (float[1, t, 48] y) {
    y = com.microsoft.FusedMatMul<transB = 1>(x, w)
}"""
TWO = """agraph (float[1, t, 64] x, float[48, 64] v, float[32, 64] w) => (float[1, t, 48] y, float[1, t, 32] z) {
    y = com.microsoft.FusedMatMul<transB = 1>(x, v) z = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
X = (
    np.random.default_rng(1).standard_normal((1, 5, 64)).astype(np.float32)
    * np.array([1, 10, 0.1, 1, 3], np.float32)[None, :, None]
)


def rows(x: np.ndarray, w: np.ndarray, steps: int = 127) -> np.ndarray:
    """Written anew: `x [..., K]` rounded by rows, `w [N, K]` by outputs to 64 steps."""
    scale = np.abs(x).max(-1, keepdims=True) / steps
    own = np.abs(w).max(1, keepdims=True) / 64
    return (np.rint(x / scale) * scale) @ (np.rint(w / own) * own).T


def quantized(text: str, recipe: dict[str, WeightRecipe], **weights: np.ndarray) -> tuple[int, ir.Model]:
    made = graph(text, **weights)
    return quantize_rows(made, Recipe(recipe)), made


def test_a_layer_becomes_a_product_of_integers() -> None:
    w = weight(48, 64)
    changed, made = quantized(ONE, {"w": INT8}, w=w)
    assert changed == 1
    assert operators(made) == ["Abs", "ReduceMax", "Div", "QuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"]
    np.testing.assert_allclose(run(made, x=X)[0], rows(X, w), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    _, made = quantized(ONE, {"w": INT8}, w=weight(48, 64))
    together = run(made, x=X)[0]
    for index in range(X.shape[1]):
        np.testing.assert_array_equal(run(made, x=X[:, index : index + 1])[0][:, 0], together[:, index])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_saturate(sign: int) -> None:
    """Kernels without VNNI add products of neighbours in 16 bits."""
    w = np.full((48, 64), sign, np.float32)
    _, made = quantized(ONE, {"w": INT8}, w=w)
    np.testing.assert_allclose(
        run(made, x=np.ones((1, 2, 64), np.float32))[0], np.full((1, 2, 48), 64.0 * sign), rtol=1e-6
    )


def test_layers_over_one_value_become_one_product() -> None:
    v, w = weight(48, 64), 5 * weight(32, 64, seed=1)
    changed, made = quantized(TWO, {"v": INT8, "w": INT8}, v=v, w=w)
    assert changed == 2
    assert operators(made).count("MatMulInteger") == 1
    assert operators(made).count("QuantizeLinear") == 1
    found = run(made, x=X)
    np.testing.assert_allclose(found[0], rows(X, v), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], rows(X, w), rtol=1e-4, atol=1e-4)


def test_layers_of_other_limits_stay_apart_and_round_once() -> None:
    v, w = weight(48, 64), weight(32, 64, seed=1)
    recipe = {"v": WeightRecipe("int8", limit=127), "w": INT8}
    changed, made = quantized(TWO, recipe, v=v, w=w)
    assert changed == 2
    assert operators(made).count("MatMulInteger") == 2
    assert operators(made).count("QuantizeLinear") == 1
    np.testing.assert_allclose(run(made, x=X)[1], rows(X, w), rtol=1e-4, atol=1e-4)
