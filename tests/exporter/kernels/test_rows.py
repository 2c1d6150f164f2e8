"""In the dialect `kernels` a row has the same bits in passes of any width, and behind a prompt in any chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from specexport.bundle import Contract, Format
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.exporter.kernels.layouts import FLOAT_FORMATS
from specexport.runtime.proofs.parity import max_error
from support.quantized import Quantized, load
from support.tiny import LLAMA, VOCAB, Exported, export_cached, save_model

pytest.importorskip("specexport_kernels")

# Over three blocks of keys, whose softmax is a partial result each.
CONTRACT = Contract(capacity=320, max_draft_tokens=8, prompt_chunk=256, precision="fp32")
CONFIG = LLAMA | dict(hidden_size=128, intermediate_size=160, initializer_range=0.1, max_position_embeddings=512)
CONFIG |= dict(attention_bias=True, tie_word_embeddings=True)
PROMPT, ROWS = 271, 36
TOKENS = [(17 * place + place // 7) % VOCAB for place in range(PROMPT + ROWS)]
CHUNKS = (256, 64, 7, 1)
# By format of the weights, with that of the checkpoint.
TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORMATS = [*TORCH_TYPES, "int8", "int4"]

Open = Callable[[int], OrtDecoder]
Make = Callable[[str], tuple[Exported, Open]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """What is exported in a format, and how to open it with so many threads."""
    base = tmp_path_factory.mktemp("rows")
    made: dict[str, tuple[Exported, Open]] = {}

    def make(form: str) -> tuple[Exported, Open]:
        if form not in made:
            checkpoint = save_model(base / form / "checkpoint", config=CONFIG)
            if form in TORCH_TYPES:
                load(checkpoint).to(TORCH_TYPES[form]).save_pretrained(checkpoint)
                exported = export_cached(checkpoint, base / form / "graphs", ("kernels",), CONTRACT)
            else:
                exported = _quantized(base / form, checkpoint, form)
            made[form] = exported, lambda threads: _opened(exported, threads)
        return made[form]

    return make


def _quantized(folder: Path, checkpoint: Path, form: Any) -> Exported:
    return Quantized(folder / "graphs", load(checkpoint), form, "kernels", CONTRACT).exported()


def _opened(exported: Exported, threads: int) -> OrtDecoder:
    path = exported.folder / exported.spec.graphs["kernels"]
    return OrtDecoder(path, exported.spec, exported.contract, "kernels", DecoderOptions(threads))


def rows(decoder: OrtDecoder, width: int, chunk: int = 64) -> np.ndarray:
    """Logits of the rows behind a prompt, over stale rows."""
    decoder.overwrite_rows(0, 1e4)
    for start, end in pairwise([*range(0, PROMPT, chunk), PROMPT]):
        decoder.feed(TOKENS[start:end], start)
    starts = range(PROMPT, PROMPT + ROWS, width)
    return np.concatenate([decoder.step(TOKENS[start : start + width], start).copy() for start in starts])


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_has_the_same_bits_in_passes_of_any_width(form: str, make: Make) -> None:
    decoder = make(form)[1](1)
    alone = rows(decoder, 1)
    assert len(np.unique(alone)) > ROWS * VOCAB / 2
    for width in range(2, CONTRACT.widest_step + 1):
        np.testing.assert_array_equal(rows(decoder, width), alone, err_msg=f"width {width}")
    np.testing.assert_array_equal(rows(make(form)[1](2), 5), alone, err_msg="two threads")


@pytest.mark.parametrize("form", FORMATS)
def test_it_has_them_behind_a_prompt_in_any_chunks(form: str, make: Make) -> None:
    decoder = make(form)[1](2)
    whole = rows(decoder, 4, CHUNKS[0])
    caches = decoder.read_rows(PROMPT)
    for chunk in CHUNKS[1:]:
        np.testing.assert_array_equal(rows(decoder, 4, chunk), whole, err_msg=f"chunks of {chunk}")
        for ours, theirs in zip(decoder.read_rows(PROMPT), caches, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"the cache after chunks of {chunk}")


@pytest.mark.parametrize("form", TORCH_TYPES)
def test_weights_keep_the_checkpoints_values_and_bytes(form: str, make: Make) -> None:
    """They are stored in the checkpoint's format, once each, and give its logits in fp32."""
    exported, open_ = make(form)
    assert max_error(open_(1), exported.reference) < 2e-5
    graph = ir.load(exported.folder / exported.spec.graphs["kernels"]).graph
    name, dtype = FLOAT_FORMATS[form]
    kinds = [node.op_type for node in graph if node.domain == "specexport"]
    assert {kind for kind in kinds if kind != "Attention"} == {f"Linear{name}", f"Embedding{name}"}
    matrices = [value for value in graph.initializers.values() if len(value.shape or ()) > 2]
    assert {value.dtype for value in matrices} == {dtype}
    assert len(matrices) == 2 * 4 + 1  # qkv, o, gate and up, down by layer; the table that the head shares
    nothing = exported.num_parameters * np.dtype({"bf16": ml_dtypes.bfloat16}.get(form, dtype.numpy())).itemsize
    assert nothing < (exported.folder / exported.spec.weights).stat().st_size < 1.3 * nothing


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_quantized_rows_do_not_depend_on_stale_rows(form: Format, make: Make) -> None:
    decoder = make(form)[1](1)
    before = rows(decoder, 3)
    decoder.step(TOKENS[:9], 300)
    decoder.overwrite_rows(PROMPT, -5.0)
    np.testing.assert_array_equal(decoder.step(TOKENS[PROMPT : PROMPT + 3], PROMPT), before[:3])


def test_a_sliding_window_and_heads_that_are_padded(tmp_path: Path) -> None:
    """Heads of 8 in a cache of 16, a window that begins within a block of keys."""
    config = CONFIG | dict(num_attention_heads=16, num_key_value_heads=4, sliding_window=150)
    checkpoint = save_model(tmp_path / "checkpoint", "mistral", config=config)
    exported = export_cached(checkpoint, tmp_path / "graphs", ("kernels",), replace(CONTRACT, max_draft_tokens=4))
    assert {layer.head_dim for layer in exported.spec.layers} == {16}
    decoder = _opened(exported, 2)
    assert max_error(decoder, exported.reference) < 2e-5
    alone = rows(decoder, 1)
    for width, chunk in ((2, 256), (5, 7)):
        np.testing.assert_array_equal(rows(decoder, width, chunk), alone)
