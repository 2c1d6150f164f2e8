"""Constants that a rewrite has lost on the way."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from specexport.exporter.passes.clean_up import adopt_constants
from support.small_graphs import graph, run


def test_a_constant_that_the_graph_lost_comes_back_beside_one_of_its_name() -> None:
    made = graph("agraph (float[2] x, float[2] c) => (float[2] y) { z = Add(x, c) y = Mul(z, c) }", c=np.ones(2, "f"))
    (first, second), known = made.graph, made.graph.initializers["c"]
    lost = ir.Value(name="c", const_value=ir.tensor(np.array([3, 4], np.float32)), type=known.type, shape=known.shape)
    for place, node in ((1, first), (1, second)):
        node.replace_input_with(place, lost)
    del made.graph.initializers["c"]
    assert adopt_constants(made)
    np.testing.assert_array_equal(run(made, x=np.ones(2, np.float32))[0], [12, 20])
    other = ir.Value(name="c", const_value=ir.tensor(np.array([5, 5], np.float32)), type=known.type, shape=known.shape)
    second.replace_input_with(1, other)
    assert adopt_constants(made)
    np.testing.assert_array_equal(run(made, x=np.ones(2, np.float32))[0], [20, 25])
    assert not adopt_constants(made)
