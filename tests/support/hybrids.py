"""Tiny random hybrids: models whose layers keep recurrent or convolution states, one layer of each type."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.bundle import Bundle
from specexport.engines.base import Engine, OpenedDraft
from specexport.engines.onnxruntime.decoder import DecoderOptions, OrtDecoder
from specexport.exporter.dialects import Dialect
from specexport.runtime.session import Session
from transformers import AutoModelForCausalLM

from support.doubles import with_models, write_bundle
from support.tiny import LLAMA, VOCAB, Exported, export_cached, make_tokenizer, save_checkpoint, save_model

HYBRID = LLAMA | dict(head_dim=8, layer_types=["linear_attention", "full_attention"])
DELTA = HYBRID | dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
SCAN = LLAMA | dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1)
# By the kind of state.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution": ("lfm2", LLAMA | dict(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)),
    "delta rule": ("qwen3_5_text", DELTA),
    "scan": ("bamba", SCAN | dict(attn_layer_indices=[1])),
}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "delta rule, keys for several heads": ("qwen3_next", DELTA | dict(num_experts=0, mlp_only_layers=[0, 1])),
    "decay by row of the state": (
        "kimi_linear",
        LLAMA
        | dict(layer_types=["linear_attention", "full_attention"], mlp_layer_types=["dense", "dense"])
        | dict(num_key_value_heads=4, linear_head_dim=16, linear_num_heads=2)
        | dict(kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8),
    ),
    "attention and scan in one layer": ("falcon_h1", SCAN | dict(mamba_d_ssm=64, head_dim=8)),
    "scan and experts": (
        "granitemoehybrid",
        SCAN
        | dict(layer_types=["mamba", "attention"], num_local_experts=4, num_experts_per_tok=2)
        | dict(shared_intermediate_size=16),
    ),
}
# By what a config may ask for beside the kind of state.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution with a bias": ("lfm2", KINDS["convolution"][1] | dict(conv_bias=True)),
    "multipliers": (
        "falcon_h1",
        MORE["attention and scan in one layer"][1]
        | dict(lm_head_multiplier=0.4, embedding_multiplier=2.5, mlp_multipliers=[0.7, 1.3], key_multiplier=0.6)
        | dict(attention_in_multiplier=1.2, attention_out_multiplier=0.8, ssm_in_multiplier=1.25)
        | dict(ssm_out_multiplier=0.7, ssm_multipliers=[0.35, 0.5, 1.4, 0.8, 1.6]),
    ),
    "a norm behind the scan, biases": (
        "falcon_h1",
        MORE["attention and scan in one layer"][1]
        | dict(mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True, projectors_bias=True),
    ),
    "scan without positions or experts": (
        "granitemoehybrid",
        SCAN
        | dict(layer_types=["mamba", "attention", "mamba"], num_hidden_layers=3, num_local_experts=0)
        | dict(position_embedding_type="nope", shared_intermediate_size=16, mamba_expand=2),
    ),
    "layers that are experts alone": (
        "nemotron_h",
        LLAMA
        | dict(layers_block_type=["mamba", "moe", "attention", "mlp"], num_hidden_layers=4, head_dim=8)
        | dict(mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=2, n_routed_experts=4)
        | dict(num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=16),
    ),
    "decay by row of the state, experts": (
        "kimi_linear",
        MORE["decay by row of the state"][1]
        | dict(mlp_layer_types=["dense", "sparse"], num_local_experts=4, num_experts_per_tok=2)
        | dict(moe_intermediate_size=16, n_shared_experts=1),
    ),
}
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "attention that layers share": (
        "zamba2",
        LLAMA
        | dict(num_hidden_layers=4, num_key_value_heads=4, n_mamba_heads=8, mamba_d_state=8)
        | dict.fromkeys(("layer_types", "layers_block_type"), ["linear_attention", "hybrid"] * 2),
    ),
}


def save_hybrid(folder: Path, kind: str, noise: float = 0.0) -> Path:
    """A checkpoint with a tokenizer. noise: so much of each weight's size is added to it, for a draft that is near."""
    model_type, config = (KINDS | MORE | OPTIONS | SHARED)[kind]
    save_model(folder, model_type, config=config)
    if noise:
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += noise * parameter.abs().mean() * torch.randn_like(parameter)
        model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


Exports = Callable[[str, float], Exported]


def make_exports(factory: pytest.TempPathFactory, dialects: tuple[Dialect, ...] = ("ort",)) -> Exports:
    """Of models by kind ("llama" too) and noise, each made once."""
    made: dict[tuple[str, float], Exported] = {}

    def exported(kind: str, noise: float) -> Exported:
        if (kind, noise) not in made:
            folder = factory.mktemp("model")
            place = folder / "checkpoint"
            checkpoint = save_checkpoint(place) if kind == "llama" else save_hybrid(place, kind, noise)
            made[kind, noise] = export_cached(checkpoint, folder / "graphs", dialects)
        return made[kind, noise]

    return exported


def decoder(exported: Exported, keeps_open: bool = False) -> OrtDecoder:
    path = exported.folder / exported.spec.graphs["ort"]
    return OrtDecoder(path, exported.spec, exported.contract, options=DecoderOptions(1, keeps_open=keeps_open))


def session_of(root: Path, target: Exported, draft: Exported | None, prompt_cache_bytes: int = 0) -> Session:
    """A session over graphs that were exported without a build."""
    files = write_bundle(root, target.contract, VOCAB, has_draft=draft is not None)
    manifest = replace(files.manifest, target=replace(files.manifest.target, layers=target.spec.layers))
    beside = None
    if draft is not None:
        manifest = with_models(manifest, {"draft": replace(manifest.drafts[0].model, layers=draft.spec.layers)})
        beside = decoder(draft, keeps_open=True)
    engine = Engine("onnxruntime", "ort", decoder(target), beside and OpenedDraft(beside))
    return Session(Bundle(files.root, manifest), engine, policy=False, prompt_cache_bytes=prompt_cache_bytes)


def bundle_for_tensorrt(root: Path, target: Exported, draft: Exported | None) -> Bundle:
    """Their graphs in `onnx`, without plans."""
    bundle = write_bundle(root, target.contract, VOCAB, has_draft=draft is not None)
    specs: dict[str, Any] = {}
    for role, exported in {"target": target, **({"draft": draft} if draft is not None else {})}.items():
        shutil.copytree(exported.folder, root / "graphs" / role)
        place = f"graphs/{role}/"
        graph = f"{place}{role}-onnx.onnx"  # plans are named like it
        (root / place / exported.spec.graphs["onnx"]).rename(root / graph)
        specs[role] = replace(exported.spec, graphs={"onnx": graph}, weights=place + exported.spec.weights)
    return replace(bundle, manifest=with_models(bundle.manifest, specs))
