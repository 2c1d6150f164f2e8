"""The proof's reference: what a model without a cache answers, with shared passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from specexport.bundle import Contract
from specexport.exporter.checkpoint import Checkpoint
from specexport.exporter.reference import record_reference
from specexport.runtime.parity import contexts, schedule
from tiny import LLAMA, save_model

CONTRACT = Contract(capacity=128, max_draft_tokens=4, prompt_chunk=16, precision="fp32")


@pytest.mark.parametrize("keeps_some", [True, False])
def test_shared_passes_give_what_a_pass_a_step_gives(keeps_some: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Checkpoint.find(str(save_model(tmp_path / "checkpoint"))).load()
    if not keeps_some:
        forward = type(model).forward
        monkeypatch.setattr(type(model), "forward", lambda self, input_ids, use_cache: forward(self, input_ids, use_cache=use_cache))
    recorded = record_reference(model, CONTRACT, LLAMA["vocab_size"])
    steps = schedule(CONTRACT, LLAMA["vocab_size"])
    assert [entry.step.position for entry in recorded] == [step.position for step in steps]
    for entry, context in zip(recorded, contexts(steps), strict=True):
        with torch.no_grad():
            whole = model(input_ids=torch.from_numpy(context)[None], use_cache=False).logits[0].numpy()
        np.testing.assert_allclose(entry.logits, whole[len(context) - entry.step.rows :], atol=1e-4)
