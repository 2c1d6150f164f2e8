"""int4 weights for ONNX Runtime, and tables of int8 and int4, against the recipe's own restored weights."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.exporter.quantize.for_onnxruntime import packed, quantize_nbits, quantize_rows
from specexport.exporter.quantize.picked_weights import quantize_tables
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.small_graphs import graph, operators, run, weight

INT4 = WeightRecipe("int4", block=16)
TWO = """agraph (float[1, t, 64] x, float[48, 64] v, float[32, 64] w) => (float[1, t, 48] y, float[1, t, 32] z) {
    y = com.microsoft.FusedMatMul<transB = 1>(x, v) z = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
TIED = """agraph (int64[1, t] tokens, float[50, 64] w) => (float[1, t, 64] x, float[1, t, 50] y) {
    x = Gather(w, tokens) y = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
X = np.random.default_rng(1).standard_normal((1, 3, 64)).astype(np.float32)
TOKENS = np.array([[0, 7, 49]])


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_two_a_byte_the_first_in_the_low_half() -> None:
    np.testing.assert_array_equal(packed(np.array([[-8, 7, 0, -1]], np.int8)), [[0xF0, 0x78]])


@pytest.mark.parametrize("block", [16, 32, 64])
def test_layers_over_one_value_become_one_product_in_four_bits(block: int) -> None:
    own = WeightRecipe("int4", block=block)
    v, w = weight(48, 64) * np.linspace(0.1, 3, 64, dtype=np.float32), 5 * weight(32, 64, seed=1)
    made = graph(TWO, v=v, w=w)
    assert quantize_nbits(made, Recipe({"v": own, "w": own})) == 2
    assert operators(made).count("MatMulNBits") == 1
    found = run(made, x=X)
    # The kernel rounds activations to int8 by blocks; wrong scales, nibbles or zero points are off by tenths.
    assert relative(found[0], X @ own.restore(v).T) < 0.02
    assert relative(found[1], X @ own.restore(w).T) < 0.02


@pytest.mark.parametrize("signed", [False, True])
def test_a_row_of_zeros_in_a_tied_table_is_zero(signed: bool) -> None:
    """As padding of a vocabulary is: what is left of sums that cancel would be a logit that no weight made."""
    own, w = WeightRecipe("int4", block=16, signed=signed), weight(50, 64)
    w[30:33] = 0.0
    w[7, :16] = 0.0
    made = graph(TIED, w=w)
    assert quantize_nbits(made, Recipe({"w": own})) + quantize_tables(made, Recipe({"w": own})) == 2
    x, y = run(made, tokens=np.array([[30, 7, 49]]))
    assert not x[0, 0].any()
    assert not x[0, 1, :16].any()
    assert not y[..., 30:33].any()
    assert relative(y[:, 1:], own.restore(w)[[7, 49]] @ own.restore(w).T) < 0.02


@pytest.mark.parametrize(("own", "change"), [(INT4, quantize_nbits), (WeightRecipe("int8"), quantize_rows)])
def test_a_tied_table_is_stored_once(own: WeightRecipe, change: object) -> None:
    w = weight(50, 64)
    made = graph(TIED, w=w)
    assert (quantize_nbits(made, Recipe({"w": own})), quantize_rows(made, Recipe({"w": own}))).count(1) == 1
    assert quantize_tables(made, Recipe({"w": own})) == 1
    stored = sum(
        value.const_value.nbytes
        for value in made.graph.initializers.values()
        if value.const_value is not None and value.uses()
    )
    assert stored < 0.6 * w.nbytes if own.format == "int4" else stored < 0.4 * w.nbytes
    x, y = run(made, tokens=TOKENS)
    np.testing.assert_allclose(x, own.restore(w)[TOKENS], rtol=1e-6)
    assert relative(y, own.restore(w)[TOKENS] @ own.restore(w).T) < 0.02
