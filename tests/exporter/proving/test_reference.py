"""The proof's reference: what a model without a cache answers, with shared passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from specexport.bundle import Contract, Precision
from specexport.errors import UnsupportedModelError
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.checkpoints.half_precision import TORCH_DTYPES
from specexport.exporter.proving.prove import continued_logits, record_reference
from specexport.runtime.proofs.parity import contexts, schedule
from support.messages import Refused
from support.tiny import LLAMA, save_model

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


def test_a_model_that_cannot_be_evaluated_is_one_line(
    refused: Refused, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint.load("bf16")

    def forward(*args: object, **options: object) -> None:
        raise RuntimeError("expected scalar type Float\nbut found BFloat16")

    monkeypatch.setattr(type(model), "forward", forward)
    with refused(UnsupportedModelError):
        record_reference(model, CONTRACT, LLAMA["vocab_size"])


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("mistral", dict(sliding_window=8)),
        ("gemma2", dict(sliding_window=8, head_dim=16)),
        ("mixtral", {}),
    ],
)
def test_going_on_over_the_librarys_cache_gives_the_same(
    model_type: str, changes: dict[str, int], tmp_path: Path
) -> None:
    """Also behind rows that were rolled back, and beyond a window."""
    model = find_checkpoint(str(save_model(tmp_path, model_type, config=LLAMA | changes))).load("fp32")
    recorded = record_reference(model, CONTRACT, LLAMA["vocab_size"])
    found = continued_logits(model, [entry.step for entry in recorded])
    for entry, logits in zip(recorded, found, strict=True):
        np.testing.assert_allclose(logits, entry.logits, atol=1e-4)
