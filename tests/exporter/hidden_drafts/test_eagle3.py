"""The module of EAGLE-3: against what speculators computes, over caches, and through transformers' attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle3_steps import drafted
from safetensors.torch import save_file
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.hidden_drafts.base import HiddenDraftOutput
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.tracing.probe import seen_by_attention
from specexport.exporter.tracing.trace import probe_cache
from support.hidden_drafts import save_speculators, save_target, tables, tensors
from support.tiny import VOCAB
from torch import Tensor
from transformers import DynamicCache

RECORDED = np.load(Path(__file__).parent / "speculators.npz")
FORMS = {form["name"]: (place, form) for place, form in enumerate(json.loads(RECORDED["forms"].tobytes()))}
AUX, IDS = torch.from_numpy(RECORDED["aux"]), torch.from_numpy(RECORDED["ids"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = dict(hidden_size=16, num_attention_heads=4, head_dim=8)
    return save_target(tmp_path_factory.mktemp("target"), **sizes)


def written(name: str, folder: Path) -> Path:
    """As speculators saved it."""
    form = FORMS[name][1]
    stored = {key: RECORDED[f"weight {key}"] for key in form["tensors"]}
    save_file({key: torch.from_numpy(value) for key, value in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(form["config"]))
    return folder


@pytest.mark.parametrize("name", FORMS)
def test_three_steps_are_those_of_speculators(name: str, target: Path, tmp_path: Path) -> None:
    model = find_draft(str(written(name, tmp_path)), find_checkpoint(str(target))).load("fp32")

    def forward(tokens: Tensor, rows: int, feedback: Tensor | None, cache: DynamicCache) -> HiddenDraftOutput:
        hidden = model.fuse(AUX[:, :rows]) if feedback is None else feedback
        output: HiddenDraftOutput = model(tokens, hidden, past_key_values=cache)
        return output

    for step, (ours, theirs) in enumerate(zip(drafted(forward, IDS), RECORDED["logits"][FORMS[name][0]], strict=True)):
        expected = torch.from_numpy(theirs)[: len(ours)]
        assert float(expected.std()) > 0.5
        torch.testing.assert_close(
            ours, expected, atol=1e-5, rtol=1e-5, msg=lambda text, j=step: f"step {j + 1}: {text}"
        )


def test_every_combination_of_flags_was_recorded() -> None:
    assert len(FORMS) == 14
    assert len({json.dumps(form["config"]) for _, form in FORMS.values()}) == 14


@pytest.mark.filterwarnings("ignore")  # of an older transformers' names
def test_speculators_itself() -> None:
    pytest.importorskip("speculators", reason="it pins an older transformers: scripts/eagle3_reference.py")
    from eagle3_reference import run

    assert run() < 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("draft")
    reads = find_checkpoint(str(save_target(folder / "target")))
    weights = tables() | tensors(layers=2)
    return find_draft(str(save_speculators(folder, weights, layer=dict(num_hidden_layers=2))), reads).load("fp32")


@pytest.mark.parametrize("parts", [(11,), (5, 6), (1, 1, 9), (10, 1)], ids=str)
def test_chunks_of_any_size_give_the_same_rows(parts: tuple[int, ...], model: Any) -> None:
    ids = torch.randint(0, VOCAB, (1, 11), generator=torch.Generator().manual_seed(3))
    fused, whole, cache = model.fuse(model.read_target(ids)), model(ids), DynamicCache()
    outputs = [
        model(tokens, hidden, past_key_values=cache)
        for tokens, hidden in zip(ids.split(parts, 1), fused.split(parts, 1), strict=True)
    ]
    for name in ("logits", "feedback"):
        rows = torch.cat([getattr(output, name) for output in outputs], 1)
        torch.testing.assert_close(rows, getattr(whole, name), atol=1e-5, rtol=1e-5)


def test_the_token_of_a_row_is_the_one_after_its_hidden_states(model: Any) -> None:
    ids = torch.randint(0, VOCAB, (1, 11), generator=torch.Generator().manual_seed(3))
    fused = model.fuse(model.read_target(ids))
    right, shifted = model(ids, fused).logits[:, 1:-1], model(ids[:, :-1], fused[:, 1:]).logits[:, 1:]
    assert float((right - shifted).std()) > 0.1


def test_all_layers_attend_through_the_interface(model: Any) -> None:
    layers, whole = seen_by_attention(model, torch.zeros(1, 2, dtype=torch.int64))
    assert whole
    assert [*layers] == [0, 1]
    assert [layer.num_kv_heads for layer in probe_cache(model)] == [2, 2]


def test_only_some_rows_have_logits(model: Any) -> None:
    ids = torch.arange(8)[None]
    whole = model(ids)
    for kept, rows in (
        (1, slice(7, 8)),
        (3, slice(5, 8)),
        (torch.tensor([2, 4]), torch.tensor([2, 4])),
        (lambda every: every[:, 3:], slice(3, 8)),
    ):
        output = model(ids, logits_to_keep=kept)
        torch.testing.assert_close(output.logits, whole.logits[:, rows])
        assert torch.equal(output.feedback, whole.feedback[:, rows])
