"""Sinks, latent attention, rotary embeddings in complex numbers, layers that read the rows of others: every dialect
against the Hugging Face model, TensorRT-RTX's builder, and pairs of them through a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specexport import load
from specexport.engines.tensorrt.api import library
from specexport.engines.tensorrt.compile import CompileJob, CompileOptions, compile_graph, model_profiles
from specexport.engines.tensorrt.network_checks import check_model
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.exporter.tracing.static_cache import StaticCache
from specexport.runtime.proofs.parity import LOGIT_TOLERANCE
from support.tiny import CONTRACT, DIALECTS, LLAMA, Exported, export_cached, make_tokenizer, save_model

pytestmark = pytest.mark.slow

TOL = LOGIT_TOLERANCE["fp32"]
KINDS = ["sliding_attention", "full_attention"]
LATENT = LLAMA | dict(num_key_value_heads=4, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=4)
LATENT |= dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, n_group=1)
LATENT |= dict(topk_group=1, first_k_dense_replace=1)
# As in E2B and E4B: the last two layers read the rows of the last ones of their kind before them.
SHARED = LLAMA | dict(num_hidden_layers=5, layer_types=[KINDS[0], *KINDS, *KINDS], num_kv_shared_layers=2)
SHARED |= dict(head_dim=8, global_head_dim=16, sliding_window=8, num_key_value_heads=1, use_double_wide_mlp=True)
SHARED |= dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=LLAMA["vocab_size"])
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "sinks": (
        "gpt_oss",
        LLAMA | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=8, layer_types=KINDS),
    ),
    "latent, complex": ("deepseek_v2", LATENT | dict(q_lora_rank=None)),
    "softcap": ("gemma2", LLAMA | dict(head_dim=8, attn_logit_softcapping=2.0)),
    "shared rows": ("gemma4_text", SHARED),
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def checkpoint(family: str) -> Path:
        if family not in made:
            model_type, config = FAMILIES[family]
            made[family] = save_model(tmp_path_factory.mktemp(model_type), model_type, config=config)
            make_tokenizer().save_pretrained(made[family])
        return made[family]

    return checkpoint


Checkpoints = Callable[[str], Path]


@pytest.mark.parametrize("family", ["sinks", "latent, complex", "shared rows"])
def test_every_dialect_gives_the_logits_of_hugging_face(family: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    exported = export_cached(checkpoints(family), tmp_path / "graphs")
    assert {dialect: exported.error(dialect) <= TOL / 10 for dialect in DIALECTS} == dict.fromkeys(DIALECTS, True)


def test_other_values_beside_the_same_keys_are_refused() -> None:
    """As of layers that attend twice, with two halves of their values (diffllama)."""
    cache = StaticCache(torch.zeros(1, dtype=torch.int64), {0: (torch.zeros(1), torch.zeros(1))})
    key, value = cache.update(torch.ones(1), torch.ones(1), 0)
    cache.written = dict(cache.past)
    module = torch.nn.Module()
    assert cache.layer_of(module, key, value) == (0, True)
    assert cache.layer_of(module, key, value.clone()) == (0, False)


def test_a_pair_of_both_kinds_through_a_session(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Sinks in the target, latent attention in the draft: speculative output is the target's own."""
    _through_a_session("sinks", "latent, complex", checkpoints, tmp_path)


def test_a_pair_that_shares_rows_through_a_session(checkpoints: Checkpoints, tmp_path: Path) -> None:
    _through_a_session("shared rows", "shared rows", checkpoints, tmp_path)


def _through_a_session(target: str, draft: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    options = BuildOptions(max_seq_len=64, max_draft_tokens=3, engines=("onnxruntime",), precision="fp32")
    build(str(checkpoints(target)), str(checkpoints(draft)), tmp_path / "bundle", options)
    with load(tmp_path / "bundle") as session:
        for seed in range(4):
            prompt = np.random.default_rng(seed).integers(2, LLAMA["vocab_size"], 5 + 3 * seed).tolist()
            wanted: dict[str, Any] = dict(max_new_tokens=24, stop_token_ids=())
            plain = session.generate(prompt, speculate=False, **wanted)
            speculative = session.generate(prompt, num_draft_tokens=3, drafter="model", **wanted)
            assert speculative.tokens == plain.tokens
            assert speculative.statistics.drafted > speculative.statistics.accepted * (target != draft)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)  # each kind of attention and rotation once
def test_tensorrt_rtx_builds_them(family: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    contract = replace(CONTRACT, precision="fp16")
    exported: Exported = export_cached(checkpoints(family), tmp_path / "graphs", ("onnx",), contract)
    lib = library("tensorrt_rtx")
    check = partial(check_model, trt=trt, spec=exported.spec, contract=contract, dialect="onnx")
    job = CompileJob(exported.folder / exported.spec.graphs["onnx"], model_profiles(contract, "target"), check)
    compile_graph(lib, job, tmp_path / "model.plan", CompileOptions(), lambda step: None)
    assert (tmp_path / "model.plan").stat().st_size > 0
