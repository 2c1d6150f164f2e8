from __future__ import annotations

import pytest
from specexport.exporter.quantize.linears import linears
from support.small_graphs import graph, weight

INPUTS = "agraph (float[1, t, 8] x, float[8, 6] w) => (float[1, t, 6] y)"


@pytest.mark.parametrize(
    ("body", "transposed"),
    [
        ("y = MatMul(x, w)", False),
        ("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", True),
        ("y = com.microsoft.FusedMatMul<transB = 1>(x, w)", True),
        ("y = Gemm<transB = 1>(x, w)", True),
        ("t = Transpose<perm = [1, 0]>(w) y = com.microsoft.FusedMatMul<transB = 1>(x, t)", False),
    ],
)
def test_products_with_a_weight_are_found(body: str, transposed: bool) -> None:
    stored = weight(6, 8) if transposed else weight(8, 6)
    (found,) = linears(graph(f"{INPUTS} {{ {body} }}", w=stored).graph)
    assert found.weight.const_value is not None
    assert (found.input.name, found.output.name, found.size, found.transposed) == ("x", "y", (6, 8), transposed)


def test_a_bias_of_the_node_is_told() -> None:
    (found,) = linears(
        graph(
            "agraph (float[t, 8] x, float[8, 6] w, float[6] b) => (float[t, 6] y) { y = Gemm(x, w, b) }", w=weight(8, 6)
        ).graph
    )
    assert found.bias is not None
    assert found.bias.name == "b"


@pytest.mark.parametrize(
    "body",
    [
        "y = Gemm<alpha = 2.0>(x, w)",
        "y = Gemm<beta = 2.0>(x, w)",
        "y = Gemm<transA = 1>(x, w)",
        "y = MatMul(w, x)",
        "t = Transpose<perm = [0, 1]>(w) y = MatMul(x, t)",
        "y = Mul(x, w)",
    ],
)
def test_other_nodes_are_not(body: str) -> None:
    assert linears(graph(f"{INPUTS} {{ {body} }}", w=weight(8, 8)).graph) == []
