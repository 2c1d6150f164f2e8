"""Which products and tables the kernels compute, in which format, and that a weight is stored once."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from specexport.errors import UnsupportedModelError
from specexport.exporter.kernels.fuse import DOMAIN
from specexport.exporter.kernels.products import use_kernels, use_products
from specexport.exporter.passes.clean_up import CLEAN_UP
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.rotation import hadamard
from support.refusals import refused
from support.small_graphs import operators, run, weight, with_weights

pytest.importorskip("specexport_kernels")

X = weight(3, 64)[None]
TOKENS = np.array([[5, 0, 5, 94]])
INT8, INT4 = WeightRecipe("int8", limit=127), WeightRecipe("int4", block=32, signed=True)
MATRICES = {"a": weight(64, 48, 1), "b": weight(64, 32, 2), "c": weight(64, 17, 3), "table": weight(95, 64, 4)}


def made(body: str, outputs: str, **weights: np.ndarray) -> ir.Model:
    results = ", ".join(f"float[1, t, n] {name}" for name in outputs.split())
    return with_weights("float[1, t, 64] x, int64[1, t] tokens", body, results, MATRICES | weights)


def changed(
    body: str, outputs: str = "y", recipe: dict[str, WeightRecipe] | None = None, **weights: np.ndarray
) -> ir.Model:
    """The graph with its products, which computes what it did."""
    model = made(body, outputs, **weights)
    use_products(model, Recipe(recipe or {}))
    CLEAN_UP(model)
    ours = run(model, x=X, tokens=TOKENS)
    for name, mine, theirs in zip(
        outputs.split(), ours, run(made(body, outputs, **weights), x=X, tokens=TOKENS), strict=True
    ):
        allowed = 0.25 * np.abs(theirs).max() if recipe else 2e-5
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=allowed, err_msg=name)
    return model


def stored(model: ir.Model) -> dict[str, list[int]]:
    return {name: list(value.shape or ()) for name, value in model.graph.initializers.items()}  # type: ignore[arg-type]


def test_what_reads_the_same_values_is_one_product() -> None:
    model = changed("y = MatMul(x, a) z = MatMul(x, b) n = Neg(x) v = MatMul(n, c)", "y z v")
    assert sorted(operators(model)) == ["LinearFloat", "LinearFloat", "Neg", "Split"]
    assert stored(model)["a+b.fp32"] == [5, 64, 16]
    assert stored(model)["c.fp32"] == [2, 64, 16]  # 17 outputs
    assert not {"a", "b", "c"} & set(stored(model))


def test_other_formats_are_other_products() -> None:
    half = {"b": MATRICES["b"].astype(np.float16).astype(np.float32)}
    model = changed("y = MatMul(x, a) z = MatMul(x, b) v = MatMul(x, c)", "y z v", {"c": INT8}, **half)
    assert sorted(operators(model)) == ["LinearFloat", "LinearFloat16", "LinearInt8"]
    kinds = {name: value.dtype for name, value in model.graph.initializers.items()}
    assert kinds["b.fp16"] == ir.DataType.FLOAT16
    assert kinds["c.int8"] == ir.DataType.INT8
    assert stored(model)["c.int8.scales"] == [17]


def test_weights_in_bf16_are_stored_so() -> None:
    half = {"a": MATRICES["a"].astype(ml_dtypes.bfloat16).astype(np.float32)}
    model = changed("y = MatMul(x, a)", **half)
    assert operators(model) == ["LinearBFloat16"]
    assert [(name, value.dtype) for name, value in model.graph.initializers.items()] == [
        ("a.bf16", ir.DataType.BFLOAT16)
    ]


def test_a_bias_of_a_gemm_is_added() -> None:
    model = changed("r = Reshape(x, rows) y = Gemm(r, b, bias)", bias=weight(1, 32, 5)[0], rows=np.array([-1, 64]))
    assert operators(model) == ["Reshape", "LinearFloat", "Add"]  # which `fuse_around_products` takes in


@pytest.mark.parametrize("recipe", [{}, {"table": INT8}, {"table": INT4}], ids=["float", "int8", "int4"])
def test_a_table_that_a_product_shares_is_stored_once(recipe: dict[str, WeightRecipe]) -> None:
    body = "e = Gather(table, tokens) y = Add(e, one) z = com.microsoft.FusedMatMul<transB = 1>(x, table)"
    model = changed(body, "y z", recipe, one=np.ones((1, 1), np.float32))
    form = {"int8": "Int8", "int4": "Int4"}.get(next(iter(recipe.values())).format if recipe else "", "Float")
    assert sorted(operators(model)) == ["Add", f"Embedding{form}", f"Linear{form}"]
    large = [name for name, shape in stored(model).items() if len(shape) > 2]
    assert len([name for name in large if "scales" not in name]) == 1
    products = [node for node in model.graph if node.domain == DOMAIN]
    assert products[0].inputs[1] is products[1].inputs[1]


def test_it_is_a_product_of_its_own() -> None:
    """Or what is stored once would be the table and another weight."""
    body = "e = Gather(table, tokens) y = Neg(e) z = com.microsoft.FusedMatMul<transB = 1>(x, table) v = MatMul(x, a)"
    model = changed(body, "y z v")
    assert sorted(operators(model)) == ["EmbeddingFloat", "LinearFloat", "LinearFloat", "Neg"]


def test_a_product_that_does_not_multiply_by_the_rows_shares_no_table() -> None:
    """`[64, 95]` is multiplied, and rows of 95 are picked from it."""
    body = "e = Gather(wide, tokens) y = Neg(e) z = MatMul(x, wide)"
    model = made(body, "y z", wide=weight(64, 95, 4))
    use_products(model, Recipe({}))
    assert sorted(operators(model)) == ["Gather", "LinearFloat", "Neg"]


@pytest.mark.parametrize(
    ("own", "operator"),
    [
        (INT8, "EmbeddingInt8"),
        (INT4, "EmbeddingInt4"),
        (replace(INT8, block=32), "Gather"),  # finer scales than the kernel's
        (replace(INT4, block=16), "Gather"),
        (None, "Gather"),  # fp32: nothing to gain
    ],
)
def test_tables_that_no_product_reads(own: WeightRecipe | None, operator: str) -> None:
    recipe = {"table": own} if own is not None else {}
    assert operators(changed("e = Gather(table, tokens) y = Neg(e)", "y", recipe)) == [operator, "Neg"]


def test_a_table_in_half_precision_is_looked_up_as_it_is() -> None:
    half = {"table": MATRICES["table"].astype(ml_dtypes.bfloat16).astype(np.float32)}
    model = made("e = Gather(table, tokens) y = Neg(e)", "y", **half)
    use_products(model, Recipe({}))
    assert operators(model) == ["EmbeddingBFloat16", "Neg"]
    assert next(iter(model.graph)).attributes["num_outputs"].as_int() == 95  # not 96, which the panels hold
    (rows,) = run(model, x=X, tokens=TOKENS)
    np.testing.assert_array_equal(-rows, half["table"][TOKENS])


def test_a_matrix_that_turns_is_left_for_its_product() -> None:
    model = changed("y = MatMul(x, H)", H=hadamard(64).numpy())
    assert operators(model) == ["MatMul"]


def test_a_weight_that_stays_is_an_error() -> None:
    """A recipe names it, and nothing here knows how it is used."""
    model = made("y = MatMul(x, a) z = Transpose(b)", "y")
    model.graph.outputs.append(next(node for node in model.graph if node.op_type == "Transpose").outputs[0])
    with refused(UnsupportedModelError, "b ", "Transpose"):
        use_kernels(model, Recipe({"a": INT8, "b": INT8}), 64)
