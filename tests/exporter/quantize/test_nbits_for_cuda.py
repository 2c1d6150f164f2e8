"""int4 and int8 weights for ONNX Runtime's CUDA provider, against the recipe's own restored weights.

The CPU provider runs the graphs. No GPU is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir import DataType
from specexport.bundle import Bundle
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.exporter.quantize.apply import quantize
from specexport.exporter.quantize.for_cuda import quantize_for_cuda
from specexport.exporter.weights.recipe import Format, Recipe, WeightRecipe
from specexport.runtime.describe import describe, render
from support.pair import Pair
from support.placement import copies
from support.small_graphs import graph, operators, run, weight, with_weights

X = np.random.default_rng(1).standard_normal((1, 3, 64)).astype(np.float32)
TWO = """agraph (float[1, t, 64] x, float[48, 64] v, float[32, 64] w) => (float[1, t, 48] y, float[1, t, 32] z) {
    y = com.microsoft.FusedMatMul<transB = 1>(x, v) z = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
TIED = """agraph (int64[1, t] tokens, float[50, 64] w) => (float[1, t, 64] x, float[1, t, 50] y) {
    x = Gather(w, tokens) y = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
FORMS: list[Format] = ["int4", "int8"]


def recipe(form: Format) -> WeightRecipe:
    return WeightRecipe(form, block=32, limit=127, scale_type="fp16", weight_only=form == "int8")


@pytest.mark.parametrize("form", FORMS)
def test_each_layer_is_a_product_of_its_own_over_activations_as_they_are(form: Format) -> None:
    own = recipe(form)
    v, w = weight(48, 64) * np.linspace(0.1, 3, 64, dtype=np.float32), 5 * weight(32, 64, seed=1)
    made = graph(TWO, v=v, w=w)
    assert quantize_for_cuda(made, Recipe({"v": own, "w": own}), 8) == 2
    assert operators(made) == ["MatMulNBits", "MatMulNBits"]
    found = run(made, x=X)
    np.testing.assert_allclose(found[0], X @ own.restore(v).T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[1], X @ own.restore(w).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_tied_table_is_stored_once_and_its_rows_of_zeros_are_zero(form: Format) -> None:
    own, w = recipe(form), weight(50, 64)
    w[30:33] = 0.0
    made = graph(TIED, w=w)
    assert quantize_for_cuda(made, Recipe({"w": own}), 8) == 2
    stored = [value.const_value for value in made.graph.initializers.values() if value.uses()]
    assert sum(tensor.nbytes for tensor in stored if tensor is not None and tensor.dtype == DataType.UINT8) == (
        w.size // 2 if form == "int4" else w.size
    )
    x, y = run(made, tokens=np.array([[30, 7, 49]]))
    np.testing.assert_allclose(x, own.restore(w)[[[30, 7, 49]]], rtol=1e-6)
    assert not x[0, 0].any()
    assert not y[..., 30:33].any()
    np.testing.assert_allclose(y, own.restore(w)[[[30, 7, 49]]] @ own.restore(w).T, rtol=1e-5, atol=1e-4)


# Two heads of 16 over one of keys, a cache of 8 rows, two of them in use.
GIVEN = "float[1, t, 64] x, float[1, 1, 8, 16] pk, float[1, 1, 8, 16] pv, int32[1] last, int32 total"
KEPT = "float[1, t, 32] y, float[1, 1, 8, 16] nk, float[1, 1, 8, 16] nv"
TIMES = "com.microsoft.FusedMatMul<transB = 1>"
ATTEND = f"""q = {TIMES}(x, wq) k = {TIMES}(x, wk) v = {TIMES}(x, wv)
y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(q, k, v, pk, pv, last, total)"""


@pytest.mark.parametrize("form", FORMS)
def test_queries_keys_and_values_are_one_product_which_attention_takes_whole(form: Format) -> None:
    own = recipe(form)
    weights = {"wq": weight(32, 64), "wk": weight(16, 64, 1), "wv": weight(16, 64, 2)}
    made = with_weights(GIVEN, ATTEND, KEPT, weights)
    restored = with_weights(GIVEN, ATTEND, KEPT, {name: own.restore(values) for name, values in weights.items()})
    assert quantize(made, "ort", Recipe(dict.fromkeys(weights, own)), 8, {}, False, "onnxruntime-cuda") == 3
    assert operators(made) == ["MatMulNBits", "GroupQueryAttention"]
    caches = {name: weight(8, 16, seed).reshape(1, 1, 8, 16) for name, seed in (("pk", 6), ("pv", 7))}
    fed = {"x": weight(2, 64, 8)[None], **caches, "last": np.array([3], np.int32), "total": np.array(8, np.int32)}
    for ours, theirs in zip(run(made, **fed), run(restored, **fed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_build_is_proved_and_reads_its_weights_in_half_precision(
    form: Format, pair: Pair, cache: Path, tmp_path: Path
) -> None:
    """The proofs of the build, layer by layer and of what is between, are most of this test."""
    given: dict[str, Any] = dict(max_seq_len=64, prompt_chunk=16, cache=cache, engines=("onnxruntime-cuda",))
    build(str(pair.target), str(pair.draft), tmp_path / "a.bundle", BuildOptions(precision=form, **given))
    bundle = Bundle.open(tmp_path / "a.bundle")
    manifest = bundle.manifest
    assert manifest.contract.precision == "fp16"
    assert [model.format for model in manifest.pair.values()] == [form, form]
    assert manifest.target.fidelity is not None
    assert manifest.target.fidelity.divergence < (1e-3 if form == "int8" else 0.1)
    assert "up to 64 tokens, " in render(describe(bundle)), "no row is kept free"
    for model in manifest.pair.values():
        (proof,) = model.layer_proofs
        assert proof.layer_error <= 1
        made = ir.load(bundle.path(model.graphs["ort"]))
        assert copies(made) == []
        products = [node for node in made.graph if node.op_type == "MatMulNBits"]
        assert {node.inputs[2].dtype for node in products if node.inputs[2] is not None} == {DataType.FLOAT16}
