"""One exporter for all architectures: every dialect against the Hugging Face model, and faults that must not pass.

Here a few kinds of attention and positions; `scripts/model_families.py` tries every family of transformers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from specexport.bundle import Contract
from specexport.exporter.dialects import Dialect
from specexport.exporter.tracing import attention
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.tiny import CONTRACT, DIALECTS, LLAMA, export, export_cached, save_model

pytestmark = pytest.mark.slow

TOL = LOGIT_TOLERANCE["fp32"]
# Every window is shorter than the proof's schedule.
SLIDING = LLAMA | dict(sliding_window=8)
GEMMA = SLIDING | dict(head_dim=16, query_pre_attn_scalar=7)
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

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "gemma2, softcap": ("gemma2", GEMMA | dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gpt2, learned positions": ("gpt2", GPT2),
    "mistral, sliding window": ("mistral", SLIDING),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_dialect_gives_the_logits_of_hugging_face(family: str, tmp_path: Path) -> None:
    model_type, config = FAMILIES[family]
    exported = export_cached(save_model(tmp_path / "checkpoint", model_type, config=config), tmp_path / "graphs")
    assert {dialect: exported.error(dialect) <= TOL / 10 for dialect in DIALECTS} == dict.fromkeys(DIALECTS, True)
    for graph in exported.spec.graphs.values():
        onnx.checker.check_model(exported.folder / graph)


def test_every_dialect_in_half_precision(tmp_path: Path) -> None:
    checkpoint = save_model(tmp_path / "checkpoint", "gpt2", config=GPT2)
    dialects: tuple[Dialect, ...] = ("onnx", "ort", "rows")  # the kernels compute in fp32
    exported = export_cached(checkpoint, tmp_path / "graphs", dialects, replace(CONTRACT, precision="bf16"))
    allowed = LOGIT_TOLERANCE["widened"] / 4
    assert {dialect: exported.error(dialect) <= allowed for dialect in dialects} == dict.fromkeys(dialects, True)


def test_a_window_of_one_row_more_fails_the_proof_in_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = attention.EMITTERS["onnx"]
    monkeypatch.setitem(
        attention.EMITTERS, "onnx", lambda q, k, v, layer: emit(q, k, v, replace(layer, window=layer.window + 1))
    )
    checkpoint = save_model(tmp_path / "checkpoint", "mistral", config=SLIDING)
    exported = export(checkpoint, tmp_path / "graphs", ("onnx",), replace(CONTRACT, precision="bf16"))
    assert exported.error("onnx") > 3 * LOGIT_TOLERANCE["bf16"]


LADDER = Contract(capacity=96, max_draft_tokens=2, prompt_chunk=16, precision="fp32")


@pytest.fixture
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of 32, 64, 96 instead of one that starts at 512."""
    monkeypatch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 32)


@pytest.mark.usefixtures("short_spans")
def test_the_ladder_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = export_cached(save_model(tmp_path / "checkpoint"), tmp_path / "graphs", ("onnx", "rows"), LADDER)
    ends = [entry.step.end for entry in exported.reference]
    assert {LADDER.span(end) for end in ends} == set(LADDER.spans) == {32, 64, 96}
    assert any(LADDER.span(one) > LADDER.span(other) for one, other in pairwise(ends))  # and back
    assert all(exported.error(dialect) <= TOL / 10 for dialect in ("onnx", "rows"))
    span = Contract.span
    monkeypatch.setattr(Contract, "span", lambda contract, end: contract.spans[0])  # forgets to climb
    assert all(exported.error(dialect) > 10 * TOL for dialect in ("onnx", "rows"))
    # climbs one row too late
    monkeypatch.setattr(Contract, "span", lambda contract, end: span(contract, max(1, end - 1)))
    assert exported.error("onnx") > 10 * TOL


@pytest.mark.parametrize("ignored", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_window_wider_than_the_first_steps_is_proved_too(
    ignored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = attention.EMITTERS["ort"]
    if ignored:
        monkeypatch.setitem(attention.EMITTERS, "ort", lambda q, k, v, layer: emit(q, k, v, replace(layer, window=0)))
    config = LLAMA | dict(sliding_window=600, max_position_embeddings=1024)
    contract = Contract(capacity=1024, max_draft_tokens=2, prompt_chunk=64, precision="fp32")
    exported = export(
        save_model(tmp_path / "checkpoint", "mistral", config=config), tmp_path / "graphs", ("ort",), contract
    )
    assert (exported.error("ort") > 10 * TOL) is ignored


def test_a_wrong_position_id_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2LMHeadModel

    forward = GPT2LMHeadModel.forward

    def shifted(self: GPT2LMHeadModel, position_ids: Any = None, **options: Any) -> Any:
        # In the graph alone: before it is traced, a model that numbers its positions otherwise is refused.
        return forward(
            self, position_ids=position_ids + 1 if torch.compiler.is_exporting() else position_ids, **options
        )

    monkeypatch.setattr(GPT2LMHeadModel, "forward", shifted)
    exported = export(save_model(tmp_path / "checkpoint", "gpt2", config=GPT2), tmp_path / "graphs", ("ort",))
    assert exported.error("ort") > 10 * TOL
