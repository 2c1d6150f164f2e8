"""Whole models: quantized graphs against the quantized Hugging Face model, rounding by rounding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import Format
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.errors import ProofError, UnsupportedModelError
from specexport.exporter.quantize import apply
from specexport.exporter.quantize.rotary import absorb_rotary
from specexport.exporter.weights.turning import Turn
from specexport.runtime.proofs.parity import max_error
from support.quantized import Quantized, load, plain_recipe
from support.refusals import refused
from support.tiny import CONTRACT, LLAMA, save_model, traced

pytestmark = pytest.mark.slow

# Large enough that no weight counts as a small constant, heads as wide as the kernel turns them.
SIZES = LLAMA | dict(hidden_size=128, intermediate_size=160, num_hidden_layers=1, initializer_range=0.1)
GPT2 = dict(
    vocab_size=288,
    n_embd=128,
    n_layer=1,
    n_head=4,
    n_positions=128,
    initializer_range=0.1,
    bos_token_id=0,
    eos_token_id=1,
)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "qwen2, biases": ("qwen2", SIZES | dict(tie_word_embeddings=True)),
    "gemma2, softcap": (
        "gemma2",
        SIZES | dict(head_dim=32, query_pre_attn_scalar=7, attn_logit_softcapping=2.0, sliding_window=8),
    ),
    "gpt2, stored the other way round": ("gpt2", GPT2),
    "phi, partial rotary": ("phi", SIZES | dict(partial_rotary_factor=0.5)),
}


def made(folder: Path, family: str, form: Format, turned: str = "") -> Quantized:
    """A model's `ort` graph, every matrix in one format. turned: the path of a layer whose inputs are turned."""
    model_type, config = FAMILIES[family]
    model = load(save_model(folder / "checkpoint", model_type, config=config))
    if turned:
        model.get_submodule(turned).register_forward_pre_hook(Turn(32))
    return Quantized(folder, model, form, "ort", CONTRACT, plain_recipe(model, form, "ort", block=16))


def kinds(quantized: Quantized) -> Counter[str]:
    return Counter(node.op_type for node in ir.load(quantized.path).graph)


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_rounds_what_its_twin_rounds(family: str, tmp_path: Path) -> None:
    quantized = made(tmp_path, family, "int8")
    assert quantized.prove().exact_error < 1e-4
    assert not {"MatMul", "FusedMatMul", "Gemm"} & set(kinds(quantized))
    # 1e-5, but for a value or two that are rounded the other way
    assert max_error(quantized.decoder(), quantized.recorded.reference) < 2e-2


def test_int4_and_how_a_llama_is_packed(tmp_path: Path) -> None:
    quantized = made(tmp_path, "llama", "int4")
    assert kinds(quantized)["MatMulNBits"] == 5  # q+k+v, o, gate+up, down, head
    assert quantized.prove().as_run
    (attention,) = (node for node in ir.load(quantized.path).graph if node.op_type == "GroupQueryAttention")
    assert attention.attributes["do_rotary"].as_int() == 1
    assert attention.inputs[1] is None
    assert not {"Neg", "Cos", "Sin"} & set(kinds(quantized))


def test_a_weight_that_stays_as_it_was_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "quantize_tables", lambda graph, recipe: 0)
    with refused(UnsupportedModelError, "model.model.embed_tokens.weight"):
        made(tmp_path, "llama", "int8")


def test_a_graph_whose_scales_are_another_layers_is_seen(tmp_path: Path) -> None:
    def swap(graph: ir.Model) -> None:
        casts = [
            node
            for node in graph.graph
            if node.op_type == "Cast" and node.inputs[0].producer().op_type == "MatMulInteger"  # type: ignore[union-attr]
        ]
        (by_row,) = (use.node for use in casts[1].outputs[0].uses())
        (by_output,) = (use.node for use in by_row.outputs[0].uses())
        values = by_output.inputs[1]
        assert values is not None
        assert values.const_value is not None
        values.const_value = ir.tensor(values.const_value.numpy()[::-1].copy())

    with pytest.raises(ProofError, match=r"target: model\.layers\.0\.self_attn\.o_proj in int8 is off by"):
        made(tmp_path, "llama", "int8").prove(swap)


def test_tables_reach_as_far_as_the_cache(tmp_path: Path) -> None:
    contract = replace(CONTRACT, capacity=96)
    graph = traced(save_model(tmp_path, config=SIZES), contract=contract)
    assert absorb_rotary(graph, contract.capacity) == 1
    shapes = [
        list(value.const_value.shape) for name, value in graph.graph.initializers.items() if name.startswith("rotary.")
    ]  # type: ignore[union-attr]
    assert shapes == [[96, 16], [96, 16]]


def rows(decoder: OrtDecoder, width: int) -> np.ndarray:
    """Logits of eight tokens after twenty others, in passes of `width`, over stale rows."""
    tokens = [(17 * place) % 288 for place in range(28)]
    decoder.overwrite_rows(0, 1e4)
    decoder.step(tokens[:16], 0)
    decoder.step(tokens[16:20], 16)
    return np.concatenate([decoder.step(tokens[start : start + width], start).copy() for start in range(20, 28, width)])


@pytest.mark.parametrize(
    ("family", "form", "turned"),
    [
        ("qwen2, biases", "int8", ""),
        ("gemma2, softcap", "int4", ""),
        ("llama", "int8", "model.layers.0.mlp.down_proj"),
    ],
)
def test_rows_have_the_same_bits_in_passes_of_any_width(family: str, form: Format, turned: str, tmp_path: Path) -> None:
    quantized = made(tmp_path, family, form, turned)
    decoder = quantized.decoder()
    alone = rows(decoder, 1)
    for width in (2, 4):
        np.testing.assert_array_equal(rows(decoder, width), alone)
    if turned:
        assert max_error(decoder, quantized.recorded.reference) < 2e-2
        (product,) = (node for node in ir.load(quantized.path).graph if node.op_type == "MatMul")
        around = [product.inputs[0].producer(), next(iter(product.outputs[0].uses())).node]  # type: ignore[union-attr]
        assert [node.op_type for node in around] == ["Reshape", "Reshape"]  # type: ignore[union-attr]
        assert all(node.inputs[1].is_initializer() for node in around)  # type: ignore[union-attr] # no shape is computed


def test_only_a_row_that_is_alone_has_one_after_it(tmp_path: Path) -> None:
    decoder = made(tmp_path, "llama", "int8").decoder()
    for start in (0, 1, 20):
        for width, more in ((1, 1), (2, 0), (3, 0)):
            decoder.overwrite_rows(0, 7.0)
            decoder.step(list(range(40, 40 + width)), start)
            written = [
                place
                for place in range(CONTRACT.capacity)
                if any((cache[:, :, place] != 7.0).any() for cache in decoder._caches)
            ]
            assert written == list(range(start, start + width + more))
