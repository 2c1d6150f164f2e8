"""Whole models: quantized graphs against the quantized Hugging Face model, rounding by rounding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import Format, ModelSpec
from specexport.engines.onnxruntime.cpu import OrtDecoder
from specexport.errors import ProofError, UnsupportedModelError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.passes.optimize import save
from specexport.exporter.proving.prove import record_reference
from specexport.exporter.proving.prove_layers import Recorded, prove_layers
from specexport.exporter.proving.quantized_graph import Subject
from specexport.exporter.quantize import apply
from specexport.exporter.quantize.apply import by_every_name, quantize
from specexport.exporter.quantize.rotary import absorb_rotary
from specexport.exporter.tracing.trace import probe_cache
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.layers import linear_layers, tables
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.turning import Turn
from specexport.runtime.proofs.parity import max_error
from support.refusals import refused
from support.tiny import CONTRACT, LLAMA, save_model, trace_now, traced

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


class Made:
    """A model's `ort` graph under a recipe of one format for every matrix, but for those in `others`.

    turned: the path of a layer whose inputs are turned in blocks.
    """

    def __init__(
        self,
        folder: Path,
        family: str | tuple[str, dict[str, Any]],
        form: Format,
        mutate: Any = None,
        exact: bool = False,
        others: dict[str, WeightRecipe] | None = None,
        turned: str = "",
    ) -> None:
        model_type, config = FAMILIES[family] if isinstance(family, str) else family
        checkpoint = save_model(folder / "checkpoint", model_type, config=config)
        model = find_checkpoint(str(checkpoint)).load("fp32")
        if turned:
            model.get_submodule(turned).register_forward_pre_hook(Turn(32))
        names = {layer.weight for layer in linear_layers(model)} | set(tables(model))
        own = WeightRecipe(form, block=16 if form == "int4" else 0)
        recipe = Recipe(dict.fromkeys(names, own) | (others or {}))
        layers, size = probe_cache(model), int(model.get_output_embeddings().weight.shape[0])
        with fake_quantized(model, recipe):
            self.reference = record_reference(model, CONTRACT, size, spare=exact)
        self.graph = trace_now(checkpoint, model, "ort", CONTRACT, 0) if turned else traced(checkpoint)
        self.layers = len(linear_layers(model))
        self.changed = quantize(
            self.graph, "ort", by_every_name(recipe, model), CONTRACT.capacity, {}, exact_widths=exact
        )
        if mutate:
            mutate(self.graph)
        paths, weights = save({"ort": self.graph}, folder, "model")
        spec = ModelSpec("", "", "", 0, size, layers, dict(paths), weights, 0, form, (), None)
        self.decoder = OrtDecoder(folder / paths["ort"], spec, CONTRACT)
        self.error = max_error(self.decoder, self.reference)
        recorded = Recorded(tuple(self.reference), tuple(entry.logits for entry in self.reference))
        self.proof = prove_layers(
            Subject("target", model, recipe, spec, CONTRACT), "ort", folder / paths["ort"], recorded
        )

    def count(self) -> Counter[str]:
        return Counter(node.op_type for node in self.graph.graph)

    def attention(self) -> list[ir.Node]:
        return [node for node in self.graph.graph if node.op_type == "GroupQueryAttention"]


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_rounds_what_its_twin_rounds(family: str, tmp_path: Path) -> None:
    made = Made(tmp_path, family, "int8")
    assert made.changed == made.layers
    assert made.proof.exact_error < 1e-4
    assert not {"MatMul", "FusedMatMul", "Gemm"} & set(made.count())
    assert made.error < 2e-2  # 1e-5, but for a value or two that are rounded the other way


def test_int4_and_how_a_llama_is_packed(tmp_path: Path) -> None:
    made = Made(tmp_path, "llama", "int4")
    count = made.count()
    assert (made.changed, count["MatMulNBits"]) == (8, 5)  # q+k+v, o, gate+up, down, head
    assert made.proof.as_run
    (attention,) = made.attention()
    assert attention.attributes["do_rotary"].as_int() == 1
    assert attention.inputs[1] is None
    assert not {"Neg", "Cos", "Sin"} & set(count)


def test_a_weight_that_stays_as_it_was_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "quantize_tables", lambda graph, recipe: 0)
    with refused(UnsupportedModelError, "model.model.embed_tokens.weight"):
        Made(tmp_path, "llama", "int8")


def test_a_graph_whose_scales_are_another_layers_is_seen(tmp_path: Path) -> None:
    def swap(graph: ir.Model) -> None:
        casts = [
            node
            for node in graph.graph
            if node.op_type == "Cast" and node.inputs[0].producer().op_type == "MatMulInteger"
        ]  # type: ignore[union-attr]
        (by_row,) = (use.node for use in casts[1].outputs[0].uses())
        (by_output,) = (use.node for use in by_row.outputs[0].uses())
        values = by_output.inputs[1]
        assert values is not None
        assert values.const_value is not None
        values.const_value = ir.tensor(values.const_value.numpy()[::-1].copy())

    with pytest.raises(ProofError, match=r"target: model\.layers\.0\.self_attn\.o_proj in int8 is off by"):
        Made(tmp_path, "llama", "int8", swap)


def test_tables_reach_as_far_as_the_cache(tmp_path: Path) -> None:
    contract = replace(CONTRACT, capacity=96)
    graph = traced(save_model(tmp_path, config=SIZES), contract=contract)
    assert absorb_rotary(graph, contract.capacity) == 1
    shapes = [
        list(value.const_value.shape) for name, value in graph.graph.initializers.items() if name.startswith("rotary.")
    ]  # type: ignore[union-attr]
    assert shapes == [[96, 16], [96, 16]]


def rows(decoder: OrtDecoder, width: int) -> np.ndarray:
    """Logits of eight tokens behind twenty others, in passes of `width`, over stale rows."""
    tokens = [(17 * place) % 288 for place in range(28)]
    decoder.overwrite_rows(0, 1e4)
    decoder.step(tokens[:16], 0)
    decoder.step(tokens[16:20], 16)
    return np.concatenate([decoder.step(tokens[start : start + width], start).copy() for start in range(20, 28, width)])


@pytest.mark.parametrize(("family", "form"), [("qwen2, biases", "int8"), ("gemma2, softcap", "int4")])
def test_rows_have_the_same_bits_in_passes_of_any_width(family: str, form: Format, tmp_path: Path) -> None:
    made = Made(tmp_path, family, form, exact=True)
    alone = rows(made.decoder, 1)
    for width in (2, 4):
        np.testing.assert_array_equal(rows(made.decoder, width), alone)


def test_turned_inputs_are_one_product_of_rows_that_keep_their_bits(tmp_path: Path) -> None:
    made = Made(tmp_path, "llama", "int8", exact=True, turned="model.layers.0.mlp.down_proj")
    assert made.changed == made.layers
    assert made.error < 2e-2
    (product,) = (node for node in made.graph.graph if node.op_type == "MatMul")
    around = [product.inputs[0].producer(), next(iter(product.outputs[0].uses())).node]
    assert [node.op_type for node in around] == ["Reshape", "Reshape"]
    assert all(node.inputs[1].const_value is not None for node in around)  # no shape is worked out in a pass
    alone = rows(made.decoder, 1)
    for width in (2, 4):
        np.testing.assert_array_equal(rows(made.decoder, width), alone)


def test_only_a_row_that_is_alone_has_one_behind_it(tmp_path: Path) -> None:
    decoder = Made(tmp_path, "llama", "int8", exact=True).decoder
    for start in (0, 1, 20):
        for width, behind in ((1, 1), (2, 0), (3, 0)):
            decoder.overwrite_rows(0, 7.0)
            decoder.step(list(range(40, 40 + width)), start)
            written = [
                place
                for place in range(CONTRACT.capacity)
                if any((cache[:, :, place] != 7.0).any() for cache in decoder._caches)
            ]
            assert written == list(range(start, start + width + behind))
