"""Tiny random EAGLE-3 drafts on disk in the formats of their publishers, and what they compute in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from support.tiny import VOCAB, save_checkpoint

TARGET_LAYERS, WIDTH, HEADS, KV_HEADS, DIM, INNER, KEPT = 8, 32, 4, 2, 16, 48, 64
TAPS = (2, 4, 5)  # no library's defaults
FIRST, ATTENTION = "layers.0.", ("q_proj", "k_proj", "v_proj", "o_proj")
SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    num_hidden_layers=1,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=DIM,
    hidden_act="silu",
    rms_norm_eps=1e-5,
    max_position_embeddings=64,
    rope_theta=5000.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    use_cache=True,
)


def save_target(folder: Path, **changes: Any) -> Path:
    return save_checkpoint(folder, **dict(num_hidden_layers=TARGET_LAYERS) | changes)


def tensors(
    taps: int = 3,
    layers: int = 1,
    joining: int = 1,
    kept: int = KEPT,
    flags: tuple[str, ...] = (),
    bias: bool = False,
    norms_of_heads: bool = False,
    embedding: bool = False,
    target_width: int = WIDTH,
) -> dict[str, Tensor]:
    """By speculators' names. flags: of `Eagle3Form`, those that have weights."""
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (WIDTH, taps * target_width), "norm.weight": (WIDTH,)}
    shapes["lm_head.weight"] = (kept, WIDTH)
    for index in range(layers):
        place, reads = f"layers.{index}.", WIDTH * (2 if index < joining else 1)
        rows = (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, WIDTH)
        for name, count in zip(ATTENTION, rows, strict=True):
            columns = HEADS * DIM if name == "o_proj" else reads
            shapes[f"{place}self_attn.{name}.weight"] = (count, columns)
            if bias and name != "o_proj":
                shapes[f"{place}self_attn.{name}.bias"] = (count,)
        for name in ("q_norm", "k_norm") if norms_of_heads else ():
            shapes[f"{place}self_attn.{name}.weight"] = (DIM,)
        shapes |= {f"{place}mlp.{name}.weight": (INNER, WIDTH) for name in ("gate_proj", "up_proj")}
        shapes[f"{place}mlp.down_proj.weight"] = (WIDTH, INNER)
        norms = ("input_layernorm", "post_attention_layernorm", *(("hidden_norm",) if index < joining else ()))
        shapes |= {f"{place}{name}.weight": (WIDTH,) for name in norms}
    if "norm_before_fc" in flags:
        shapes["input_norm.weight"] = (taps * target_width,)
    if "fc_norm" in flags:
        shapes |= {f"fc_norm.{index}.weight": (target_width,) for index in range(taps)}
    if embedding:
        shapes["embed_tokens.weight"] = (VOCAB, WIDTH)
    generator = torch.Generator().manual_seed(1)
    return {
        name: ("norm" in name) * 1.0 + 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()
    }


def tables(kept: int = KEPT) -> dict[str, Tensor]:
    """d2t and t2d of every fourth token, from the second on."""
    ids = torch.arange(kept) * 4 + 1
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids - torch.arange(kept), "t2d": t2d}


def save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_original(folder: Path, weights: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """EAGLE's: says that it is a Llama."""
    weights = tables() | tensors() if weights is None else weights
    named = {name.replace(FIRST, "midlayer."): weight for name, weight in weights.items()}
    config = SIZES | dict(architectures=["LlamaForCausalLM"], model_type="llama", draft_vocab_size=KEPT, bias=False)
    config |= dict(eagle_aux_hidden_state_layer_ids=list(TAPS), pretraining_tp=1, bos_token_id=1, eos_token_id=2)
    return save(folder, config | changes, named)


def save_modelopt(folder: Path, weights: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    weights = {"d2t": tables()["d2t"]} | tensors() if weights is None else weights
    inner = dict(eagle_aux_hidden_state_layer_ids=[tap - 1 for tap in TAPS], use_aux_hidden_state=True)
    inner |= dict(use_input_layernorm_in_first_layer=True, use_last_layernorm=True, use_mtp_layernorm=False)
    inner |= dict(next_layer_regular=True, parallel_draft_step=1, parallel_draft_heads_num_layers=1)
    config = SIZES | dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=KEPT)
    return save(folder, config | dict(eagle_config=inner) | changes, weights)


def save_deepspec(folder: Path, weights: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """DeepSpec's, of five taps, with norms of queries and keys and the whole vocabulary."""
    weights = tensors(5, kept=VOCAB, norms_of_heads=True, embedding=True) if weights is None else weights
    config = SIZES | dict(architectures=["Qwen3Eagle3Model"], model_type="qwen3", layer_types=["full_attention"])
    config |= dict(target_layer_ids=[0, 1, 3, 4, 6], num_target_layers=TARGET_LAYERS, ttt_length=7, step_loss_decay=0.8)
    config |= dict(target_model_name_or_path="tiny/target", draft_num_hidden_layers=1, use_sliding_window=False)
    return save(folder, config | changes, weights)


def save_speculators(
    folder: Path, weights: dict[str, Tensor] | None = None, layer: dict[str, Any] | None = None, **changes: Any
) -> Path:
    weights = tables() | tensors() if weights is None else weights
    config: dict[str, Any] = dict(architectures=["Eagle3DraftModel"], speculators_model_type="eagle3")
    config |= dict(draft_vocab_size=KEPT, eagle_aux_hidden_state_layer_ids=list(TAPS), target_hidden_size=None)
    config |= dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), False)
    config |= dict(transformer_layer_config=SIZES | dict(model_type="llama") | (layer or {}), dtype="float32")
    config |= dict(speculators_version="0.9.0", embed_requires_grad=False, tie_word_embeddings=False)
    verifier = dict(name_or_path="tiny/target", architectures=["LlamaForCausalLM"])
    config["speculators_config"] = dict(algorithm="eagle3", verifier=verifier, proposal_methods=[])
    return save(folder, config | changes, weights)


FORMATS = dict(original=save_original, modelopt=save_modelopt, deepspec=save_deepspec, speculators=save_speculators)


def computed(
    weights: dict[str, Tensor],
    embedding: Tensor,
    ids: Tensor,
    fused: Tensor,
    residual: bool = False,
    joining: int = 1,
    windows: tuple[int, ...] = (0, 0, 0),
) -> tuple[Tensor, Tensor]:
    """Logits `[T, m]` and what the last layer gives `[T, H]`, of ids `[T]` and what `fuse` gives `[T, H]`.

    windows: by layer how many rows a row sees, 0 for all before it.
    """
    embedded, hidden = embedding[ids], fused
    for index in range(sum(name.endswith("mlp.up_proj.weight") for name in weights)):
        layer = {name.removeprefix(f"layers.{index}."): weight for name, weight in weights.items()}
        if index < joining:
            normed = _norm(hidden, layer["hidden_norm.weight"])
            reads = torch.cat([_norm(embedded, layer["input_layernorm.weight"]), normed], -1)
            hidden = (normed if residual else hidden) + _attention(reads, layer, windows[index])
        else:
            hidden = hidden + _attention(_norm(hidden, layer["input_layernorm.weight"]), layer, windows[index])
        normed = _norm(hidden, layer["post_attention_layernorm.weight"])
        gated = functional.silu(normed @ layer["mlp.gate_proj.weight"].T) * (normed @ layer["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ layer["mlp.down_proj.weight"].T
    return _norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T, hidden


def fused_by(weights: dict[str, Tensor], taps: list[Tensor]) -> Tensor:
    """`[T, H]` of the target's hidden states, `[T, width]` each."""
    if "fc_norm.0.weight" in weights:
        taps = [_norm(tap, weights[f"fc_norm.{index}.weight"]) for index, tap in enumerate(taps)]
    joined = torch.cat(taps, -1)
    if "input_norm.weight" in weights:
        joined = _norm(joined, weights["input_norm.weight"])
    return joined @ weights["fc.weight"].T


def _norm(rows: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(rows, weight.shape, weight, SIZES["rms_norm_eps"])


def _attention(reads: Tensor, layer: dict[str, Tensor], window: int) -> Tensor:
    length = len(reads)
    query, key, value = (
        functional.linear(reads, layer[f"self_attn.{name}.weight"], layer.get(f"self_attn.{name}.bias"))
        .view(length, -1, DIM)
        .transpose(0, 1)
        for name in ATTENTION[:3]
    )
    if "self_attn.q_norm.weight" in layer:
        query, key = (
            _norm(half, layer[f"self_attn.{name}.weight"]) for half, name in ((query, "q_norm"), (key, "k_norm"))
        )
    angles = torch.arange(length)[:, None] * SIZES["rope_theta"] ** (-torch.arange(0, DIM, 2) / DIM)
    turn = torch.polar(torch.ones_like(angles), angles)
    query, key = (_turned(half, turn) for half in (query, key))
    shared = (part.repeat_interleave(HEADS // KV_HEADS, 0) for part in (key, value))
    key, value = shared
    scores = query @ key.transpose(1, 2) * DIM**-0.5
    for row in range(length):
        scores[:, row, row + 1 :] = -torch.inf
        scores[:, row, : max(row + 1 - window, 0) if window else 0] = -torch.inf
    output = scores.softmax(-1) @ value
    return output.transpose(0, 1).reshape(length, -1) @ layer["self_attn.o_proj.weight"].T


def _turned(rows: Tensor, turn: Tensor) -> Tensor:
    first, second = rows.chunk(2, -1)
    turned = torch.complex(first, second) * turn
    return torch.cat([turned.real, turned.imag], -1)
