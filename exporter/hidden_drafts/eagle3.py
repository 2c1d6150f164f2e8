"""EAGLE-3 and 3.1 (arXiv 2503.01840): one layer, seldom more, over the target's hidden states at a few layers.

    g = fc(taps side by side)     with `norm_before_fc` of their norm, with `fc_norm` of the norm of each
    u = hidden_norm(g)
    s = g + attention([input_layernorm(E[x]); u])       with `norm_before_residual` u + ...
    y = s + mlp(post_attention_layernorm(s))
    logits = lm_head(norm(y))

A drafted row reads y of the row before for g, in EAGLE-3.1 norm(y). The layers, norms and rotary embeddings are those
of transformers' Llama and Qwen3. Row i has position i; libraries that count from i + 1 give the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from .base import CACHE, HiddenDraft, set_biases
from .fit import Feedback

PARTS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaDecoderLayer, LlamaRotaryEmbedding),
    "qwen3": (Qwen3DecoderLayer, Qwen3RotaryEmbedding),
}


@dataclass(frozen=True)
class Eagle3Form:
    """What distinguishes one head from another besides its layers.

    taps: as of `HiddenDraft`. target_width: of each. draft_vocab: m, the rows of its output embedding. joining: how
    many layers, from the first, read the embedding beside the hidden states. theta: of the rotary embeddings, None as
    the config has it. biased: which of its linear layers have a bias, by the ends of their names. windows: by layer how
    many rows a row sees, itself among them, 0 for all; none where all see all.
    """

    taps: tuple[int, ...]
    target_width: int
    draft_vocab: int
    feedback: Feedback = "pre"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    joining: int = 1
    theta: float | None = None
    biased: frozenset[str] = frozenset()
    windows: tuple[int, ...] = ()


def turned(config: PreTrainedConfig, form: Eagle3Form) -> PreTrainedConfig:
    """The config with the rotary embeddings of `form`."""
    if form.theta is not None:
        config = copy.deepcopy(config)
        config.rope_parameters = {**config.rope_parameters, "rope_theta": form.theta}
    return config


class JoiningLayer(nn.Module):
    """A decoder layer whose attention reads the embedding beside the hidden states, 2H numbers a row."""

    def __init__(self, layer: Any, config: PreTrainedConfig, form: Eagle3Form) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, old.out_features, old.bias is not None)
            setattr(self.self_attn, name, wide)
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm_before_residual = form.norm_before_residual

    def forward(self, embedded: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        normed = self.hidden_norm(hidden)
        joined = torch.cat([self.input_layernorm(embedded), normed], -1)
        summed = (normed if self.norm_before_residual else hidden) + self.self_attn(joined, **attention)[0]
        output: Tensor = summed + self.mlp(self.post_attention_layernorm(summed))
        return output


class Eagle3Draft(HiddenDraft):
    """Its weights have the names of `speculators`' checkpoints."""

    kind = "eagle3"

    def __init__(self, config: PreTrainedConfig, form: Eagle3Form) -> None:
        """config: of its layers, a Llama's or Qwen3's; `vocab_size` is the target's."""
        super().__init__(config)
        self.form, self.taps, self.tap_width = form, form.taps, form.target_width
        width, fused = config.hidden_size, len(form.taps) * form.target_width
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.input_norm = self._norm(fused) if form.norm_before_fc else None
        self.fc_norm = nn.ModuleList(self._norm(form.target_width) for _ in form.taps) if form.fc_norm else None
        self.fc = nn.Linear(fused, width, "fc" in form.biased)
        self.windows = form.windows or (0,) * config.num_hidden_layers
        self.layers = nn.ModuleList(self._layer(index) for index in range(config.num_hidden_layers))
        self.read_as(form)
        self.norm = self._norm(width)
        self.lm_head = nn.Linear(width, form.draft_vocab, bias=False)
        self.fusing = tuple(name for name, _ in self.named_parameters() if name.startswith(("fc", "input_norm")))

    def read_as(self, form: Eagle3Form) -> None:
        self.form, self.rotary_emb = form, PARTS[self.config.model_type][1](turned(self.config, form))

    def _norm(self, width: int) -> nn.Module:
        norm: nn.Module = LlamaRMSNorm(width, eps=self.config.rms_norm_eps)
        return norm

    def _layer(self, index: int) -> Any:
        layer: Any = PARTS[self.config.model_type][0](self.config, index)
        set_biases(layer.self_attn, self.form.biased)
        if hasattr(layer.self_attn, "sliding_window"):  # Qwen3's; Llama's passes on what `run` gives it
            layer.self_attn.sliding_window = self.windows[index] or None
        return JoiningLayer(layer, self.config, self.form) if index < self.form.joining else layer

    def fuse(self, hidden: Tensor) -> Tensor:
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.chunk(len(self.fc_norm), -1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        fused: Tensor = self.fc(hidden)
        return fused

    def run(self, embedded: Tensor, hidden: Tensor, **attention: Any) -> tuple[Tensor, Tensor]:
        attention[CACHE] = attention.pop("past_key_values")
        attention["position_embeddings"] = self.rotary_emb(embedded, attention["position_ids"])
        mask = attention.pop("mask")
        masks = {window: mask(window) for window in {*self.windows}}
        for index, (layer, window) in enumerate(zip(self.layers, self.windows, strict=True)):
            joined = (embedded,) if index < self.form.joining else ()
            own = {} if hasattr(layer.self_attn, "sliding_window") else {"sliding_window": window or None}
            hidden = layer(*joined, hidden, attention_mask=masks[window], **own, **attention)
        normed = self.norm(hidden)
        return normed, normed if self.form.feedback == "post" else hidden

    def drafted(self, tokens: Tensor, hidden: Tensor, steps: int) -> Iterator[Tensor]:
        """Of each step what the output embedding reads, `[B, T, H]`, drafted from every row at once.

        Step j of row i reads token i + j of `tokens [B, T + steps - 1]` and what its step j - 1 gave back, at first
        `hidden [B, T, H]`, as `fuse` gives it. It sees the true rows up to i, and what row i has drafted.
        """
        rows, cache = torch.arange(hidden.shape[1], device=tokens.device), DynamicCache()
        age = (rows[:, None] - rows).int()  # [T, T], of a true row to one after it
        true, itself = age >= 0, age == 0
        for step in range(steps):
            seen = torch.cat([true, *[itself] * step], 1)
            ages = torch.cat([age + step - column for column in range(step + 1)], 1)
            read, hidden = self.run(
                self.embed_tokens(tokens[:, step : step + len(rows)]),
                hidden,
                mask=partial(_within, seen, ages),
                position_ids=(rows + step)[None],
                past_key_values=cache,
            )
            yield read


def _within(seen: Tensor, ages: Tensor, window: int) -> Tensor:
    return (seen & (ages < window) if window else seen)[None, None]
