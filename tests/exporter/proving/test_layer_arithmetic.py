"""What is allowed is what right arithmetic needs, and no more."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.exporter.proving.layer_arithmetic import layer_error
from specexport.exporter.weights.recipe import WeightRecipe

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((48, 96)).astype(np.float32)
INPUTS = RNG.standard_normal((7, 96)).astype(np.float32)
RECIPES = {
    "MatMulInteger": WeightRecipe("int8"),
    "MatMulNBits": WeightRecipe("int4", block=32),
    "DequantizeLinear": WeightRecipe("int8", limit=127, input_scale=0.03),
}


def rounded(form: str, inputs: np.ndarray) -> np.ndarray:
    """As kernels do it, in fp32."""
    own = RECIPES[form]
    if form == "MatMulNBits":
        blocks = inputs.reshape(len(inputs), -1, own.block)
        step = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
        return (np.rint(blocks / step) * step).reshape(inputs.shape)
    step = np.abs(inputs).max(-1, keepdims=True) / np.float32(127) if form == "MatMulInteger" else np.float32(0.03)
    return np.clip(np.rint(inputs / step), -128, 127) * step


def product(form: str, inputs: np.ndarray = INPUTS) -> np.ndarray:
    return (rounded(form, inputs) @ RECIPES[form].restore(WEIGHT).T).astype(np.float32)


def error(form: str, outputs: np.ndarray, inputs: np.ndarray = INPUTS, bias: np.ndarray | None = None) -> float:
    return layer_error(form, RECIPES[form], WEIGHT, inputs, outputs, bias)


@pytest.mark.parametrize("form", RECIPES)
def test_a_product_in_fp32_passes_and_one_that_is_a_thousandth_off_does_not(form: str) -> None:
    assert error(form, product(form)) < 1
    assert error(form, product(form) * np.float32(1 + 1e-3)) > 1
    assert error(form, product(form) + np.float32(1e-2)) > 1


@pytest.mark.parametrize(("place", "passes"), [(0.5, True), (0.4, False)])
def test_a_value_may_become_either_step_only_at_their_edge(place: float, passes: bool) -> None:
    inputs = INPUTS.copy()
    step = np.abs(inputs[0]).max() / np.float32(127)
    at = int(np.argmin(np.abs(inputs[0])))
    inputs[0, at] = np.float32(3 + place) * step
    outputs = product("MatMulInteger", inputs)
    for way in (3, 4):
        other = rounded("MatMulInteger", inputs)
        other[0, at] = way * step
        outputs = (other @ RECIPES["MatMulInteger"].restore(WEIGHT).T).astype(np.float32)
        assert (error("MatMulInteger", outputs, inputs) < 1) == (passes or way == 3)


def test_rows_of_zeros_and_what_is_no_number() -> None:
    zeros = np.zeros_like(INPUTS)
    assert error("MatMulInteger", np.zeros((7, 48), np.float32), zeros) < 1
    outputs = product("MatMulInteger")
    outputs[3, 5] = np.nan
    assert error("MatMulInteger", outputs) == np.inf
