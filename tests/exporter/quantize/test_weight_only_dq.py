"""int4 in blocks of inputs: what the graph computes, and how the numbers lie in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.weights.recipe import WeightRecipe
from support.recipes import in_precision
from support.small_tied import TOKENS, WIDTH, expected, graph, recipe, run, weights, written


@pytest.mark.parametrize("block", [32, 0])
def test_blocks_are_inputs_that_share_a_scale(block: int, tmp_path: Path) -> None:
    own = WeightRecipe("int4", block=block)
    path = written(graph(), recipe(own), tmp_path)
    stored = {}
    for name, weight in weights().items():
        values, scales = own.quantize(weight)
        assert np.abs(values).max() == 8  # all of the range is used
        stored[name] = np.repeat(scales.reshape(WIDTH, -1), block or WIDTH, axis=1) * values.astype(np.float32)
        assert np.abs(stored[name] - weight).max() < np.abs(weight).max() / 4
    np.testing.assert_allclose(run(path, TOKENS), expected(TOKENS, stored), rtol=1e-4, atol=1e-4)


def test_two_numbers_lie_in_a_byte_the_first_in_the_low_half(tmp_path: Path) -> None:
    """As ONNX and TensorRT have them, along the inputs."""
    own = in_precision(recipe(WeightRecipe("int4", block=32)), "fp16")
    model = ir.load(written(graph("fp16"), own, tmp_path))
    tensor = model.graph.initializers["up.int4"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.offset is not None
    content = (tmp_path / "small.weights").read_bytes()[tensor.offset : tensor.offset + WIDTH * WIDTH // 2]
    values, _ = own.weights["up"].quantize(weights("fp16")["up"].astype(np.float32))
    pairs = values.astype(np.uint8).reshape(-1, 2) & 15
    np.testing.assert_array_equal(np.frombuffer(content, np.uint8), pairs[:, 0] | pairs[:, 1] << 4)
