"""The proof's reference: what a model without a cache answers, with shared passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from specexport.bundle import Contract, Precision
from specexport.exporter.build import build
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.half_precision import TORCH_DTYPES
from specexport.exporter.options import BuildOptions
from specexport.exporter.proving.prove import continued_logits, record_reference
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE, contexts, largest_error, schedule, spread
from support.hybrids import KINDS, save_hybrid
from support.tiny import LLAMA, VOCAB, export_cached, make_tokenizer, save_model

CONTRACT = Contract(capacity=128, max_draft_tokens=4, prompt_chunk=16, precision="fp32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return find_checkpoint(str(save_model(tmp_path_factory.mktemp("reference"))))


@pytest.mark.parametrize("keeps_some", [True, False])
def test_shared_passes_give_what_a_pass_a_step_gives(
    keeps_some: bool, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint.load("fp32")
    if not keeps_some:
        forward = type(model).forward
        monkeypatch.setattr(
            type(model), "forward", lambda self, input_ids, use_cache: forward(self, input_ids, use_cache=use_cache)
        )
    recorded = record_reference(model, CONTRACT, LLAMA["vocab_size"])
    steps = schedule(CONTRACT, LLAMA["vocab_size"])
    assert [entry.step.position for entry in recorded] == [step.position for step in steps]
    for entry, context in zip(recorded, contexts(steps), strict=True):
        with torch.no_grad():
            whole = model(input_ids=torch.from_numpy(context)[None], use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(entry.logits, whole[len(context) - entry.step.rows :], atol=1e-4)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_in_half_precision_means_its_own_weights_in_fp32(precision: Precision, checkpoint: Checkpoint) -> None:
    narrow, wide = checkpoint.load(precision), checkpoint.load(precision).float()
    recorded = record_reference(narrow, replace(CONTRACT, precision=precision), LLAMA["vocab_size"])
    expected = record_reference(wide, CONTRACT, LLAMA["vocab_size"])
    for one, other in zip(recorded, expected, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
    assert {parameter.dtype for parameter in narrow.parameters()} == {TORCH_DTYPES[precision]}


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_of_a_hybrid_in_half_precision_round_nothing(kind: str, tmp_path: Path) -> None:
    """They did once: correct graphs of a delta rule in fp16 were 0.05 standard deviations off such a reference."""
    found = find_checkpoint(str(save_hybrid(tmp_path, kind)))
    half = replace(CONTRACT, precision="fp16")
    recorded, expected = (
        record_reference(model, half, VOCAB, has_states=True)
        for model in (found.load("fp16"), found.load("fp16").float())
    )
    assert largest_error(expected, [entry.logits for entry in recorded]) < LOGIT_TOLERANCE["fp32"] / 10


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_caches_in_fp16_round_in_the_reference_too(attention: str, tmp_path: Path) -> None:
    """So what they may cost needs no tolerance of its own, and keys that are rounded otherwise are seen."""
    pytest.importorskip("specexport_kernels")
    half = replace(CONTRACT, cache_precision="fp16")
    checkpoint = save_model(tmp_path / "checkpoint")
    exported = export_cached(checkpoint, tmp_path / "graphs", ("kernels",), half)
    model = find_checkpoint(str(checkpoint)).load("fp32")
    model.set_attn_implementation(attention)
    coarse, exact = (record_reference(model, contract, LLAMA["vocab_size"]) for contract in (half, CONTRACT))
    error = replace(exported, reference=coarse).error("kernels")
    moved = largest_error(exact, [entry.logits for entry in coarse])
    assert error < LOGIT_TOLERANCE["fp32"] / 5
    assert moved > 3 * error
    steps = [entry.step for entry in coarse]
    for entry, logits in zip(coarse, continued_logits(model, steps, contract=half), strict=True):
        np.testing.assert_allclose(entry.logits, logits, atol=LOGIT_TOLERANCE["fp32"] * spread(coarse) / 5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_build_over_caches_in_fp16_is_judged_by_what_they_round(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("specexport_kernels")
    checkpoint = save_model(tmp_path / "checkpoint", config=LLAMA | dict(max_position_embeddings=512))
    make_tokenizer().save_pretrained(checkpoint)
    options = BuildOptions(max_seq_len=128, precision=precision, cache_precision="fp16")
    target = build(str(checkpoint), None, tmp_path / "bundle", options).bundle.manifest.target
    assert target.rounding is not None
    assert 0 < target.rounding < 0.1
    (proof,) = target.proofs
    assert proof.tolerance is None
    assert proof.passed
    assert any("fp16 move it" in note for note in target.notes) == (precision == "fp32")
    for layers in target.layer_proofs:
        assert layers.exact_error < layers.exact_tolerance
        assert LOGIT_TOLERANCE["fp32"] < layers.exact_tolerance < LOGIT_TOLERANCE["fp16"]
