"""The confidence head of a draft's graph: it reads what the Hugging Face embeddings read and give, without weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from specexport.bundle import Precision
from specexport.engines.onnxruntime.cpu import OrtDecoder
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.tracing.confidence_head import probe_features
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.tiny import CONTRACT, LLAMA, VOCAB, Exported, export_cached, save_model
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel

RNG = np.random.default_rng(0)
GPT2 = dict(
    vocab_size=96,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=128,
    initializer_range=0.2,
    bos_token_id=0,
    eos_token_id=1,
)
GEMMA = LLAMA | dict(sliding_window=8, head_dim=16, query_pre_attn_scalar=7, tie_word_embeddings=True)
# The last column: F.
FAMILIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("llama", LLAMA, 64),
    "gemma3, tied and scaled in the embedding": (
        "gemma3_text",
        GEMMA | dict(layer_types=["sliding_attention", "full_attention"]),
        64,
    ),
    "gpt2, which knows no logits_to_keep": ("gpt2", GPT2, 64),
}


@pytest.fixture
def no_logits_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = GPT2LMHeadModel.forward

    def plain(
        self: Any, input_ids: Any = None, cache: Any = None, position_ids: Any = None, use_cache: Any = None
    ) -> Any:
        return forward(self, input_ids=input_ids, cache=cache, position_ids=position_ids, use_cache=use_cache)

    monkeypatch.setattr(GPT2LMHeadModel, "forward", plain)


def expected_features(checkpoint: Path, tokens: list[int]) -> np.ndarray:
    """`[T, F]`: the input of the output embedding, and the output of the input embedding."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint)
    seen: list[torch.Tensor] = []
    model.get_input_embeddings().register_forward_hook(lambda module, arguments, output: seen.append(output))
    model.get_output_embeddings().register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    embedded, hidden = seen
    return torch.cat([hidden, embedded], -1)[0].numpy()


def feed_in_parts(
    decoder: OrtDecoder, tokens: list[int], widths: tuple[int, ...]
) -> list[tuple[slice, np.ndarray, float]]:
    """After each pass: the rows that it gave, their features and the last one's confidence."""
    assert decoder.head is not None
    found, position = [], 0
    for width in widths:
        logits = decoder.step(tokens[position : position + width], position)
        position += width
        found.append(
            (slice(position - len(logits), position), decoder.head.features().copy(), decoder.head.confidence())
        )
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("no_logits_to_keep")
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.nightly] * name.startswith("gemma")) for name in FAMILIES]
)
def test_features_and_confidence(family: str, tmp_path: Path) -> None:
    model_type, config, size = FAMILIES[family]
    checkpoint = save_model(tmp_path / "checkpoint", model_type, config=config)
    exported = export_cached(checkpoint, tmp_path / "graphs", ("ort",), stem="no-logits-to-keep", role="draft")
    assert exported.spec.features == size
    assert exported.error("ort") <= LOGIT_TOLERANCE["fp32"] / 10
    decoder = exported.decoder("ort")
    assert decoder.head is not None
    weights = RNG.normal(size=size + 1).astype(np.float32)
    decoder.head.set_weights(weights)
    tokens = RNG.integers(0, 96, 41).tolist()
    expected = expected_features(checkpoint, tokens)
    # A chunk and one of odd width, which give a row each, and steps of every width.
    for rows, features, confidence in feed_in_parts(decoder, tokens, (16, 9, 1, 5, 2, 4, 3, 1)):
        np.testing.assert_allclose(features, expected[rows], atol=1e-4)
        assert confidence == pytest.approx(float(features[-1] @ weights[:-1] + weights[-1]), abs=1e-4)
    assert np.abs(expected[:, : size // 2]).mean() > 0.01
    assert np.abs(expected[:, size // 2 :]).mean() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.nightly)])
def test_half_precision_shows_features_in_fp32(precision: Precision, tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path / "checkpoint")
    contract = replace(CONTRACT, precision=precision)
    exported = export_cached(checkpoint, tmp_path / "graphs", ("ort",), contract, role="draft")
    assert exported.error("ort") <= LOGIT_TOLERANCE["widened" if precision == "bf16" else precision]
    graph = load(exported, "ort").graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    assert {types[name] for name in ("head", "features", "confidence")} == {onnx.TensorProto.FLOAT}
    if precision == "bf16":
        return
    tokens = RNG.integers(0, VOCAB, 9).tolist()
    decoder, expected = exported.decoder("ort"), expected_features(checkpoint, tokens)
    weights = RNG.normal(size=65).astype(np.float32)
    assert decoder.head is not None
    decoder.head.set_weights(weights)
    for rows, features, confidence in feed_in_parts(decoder, tokens, (4, 5)):
        assert 0 < np.abs(features - expected[rows]).max() < 0.05 * np.abs(expected).max()
        assert confidence == pytest.approx(float(features[-1] @ weights[:-1] + weights[-1]), abs=1e-4)


def load(exported: Exported, dialect: Dialect) -> onnx.ModelProto:
    return onnx.load(exported.folder / exported.spec.graphs[dialect], load_external_data=False)


@pytest.fixture(scope="module")
def tied(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The tied model of `exported` as a draft."""
    return export_cached(Path(exported.spec.source), tmp_path_factory.mktemp("draft"), role="draft")


def test_a_head_adds_an_input_and_two_outputs(tied: Exported) -> None:
    graph = load(tied, "ort").graph
    past, present = (
        [f"{side}.{i}.{half}" for i in range(2) for half in ("key", "value")] for side in ("past", "present")
    )
    assert [value.name for value in graph.input] == ["tokens", "position", "head", *past]
    assert [value.name for value in graph.output] == ["logits", "features", "confidence", *present]
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes["head"] == [193]
    assert shapes["features"] == [1, "at_most_5_rows", 192]
    assert shapes["confidence"] == [1, "at_most_5_rows"]


def raises(model: LlamaForCausalLM) -> None:
    def refuse() -> None:
        raise NotImplementedError

    model.get_input_embeddings = refuse  # type: ignore[method-assign, assignment]


WITHOUT: dict[str, Callable[[LlamaForCausalLM], Any]] = {
    "no input embedding": lambda model: setattr(model, "get_input_embeddings", lambda: None),
    "an error where the input embedding should be": raises,
    "an output embedding that is not called": lambda model: setattr(
        model, "get_output_embeddings", lambda: torch.nn.Linear(2, 2)
    ),
    "an output embedding that is called twice": lambda model: model.model.norm.register_forward_hook(
        lambda module, arguments, output: model.lm_head(output)[:0].sum() + output
    ),
    "an input embedding that gives two tensors": lambda model: setattr(
        model, "get_input_embeddings", lambda: model.model.rotary_emb
    ),
    "an input embedding of more than a row a token": lambda model: model.model.embed_tokens.register_forward_hook(
        lambda module, arguments, output: output.repeat(1, 2, 1)
    ),
}


@pytest.mark.parametrize("reason", WITHOUT)
def test_a_model_that_does_not_show_its_embeddings_has_no_head(reason: str, tmp_path: Path) -> None:
    model = find_checkpoint(str(save_model(tmp_path))).load("fp32")
    assert probe_features(model) == 64
    WITHOUT[reason](model)
    assert probe_features(model) == 0
