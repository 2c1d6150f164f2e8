"""DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147): all tokens of a block in one pass, over masks.

    c_i = hidden_norm(fc(taps of row i, side by side))      context, of which each layer keeps keys and values
    x = E[anchor, MASK, MASK, ...]                          B rows, at the positions from the anchor's on
    x = x + attention(queries of x, keys and values of c and x); x = x + mlp(...)         each sees the whole block
    logits of slot s = lm_head(norm(x_s))

Slot s predicts the s-th token after the anchor; in DSpark, where slot 0 predicts too, the one after that. DSpark then
adds w2 w1[token before] to the logits of each slot in turn, and says how likely the token is to be accepted,
sigmoid(proj[norm(x_s); w1[token before]]). Rows of a block are never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as attention_with_sinks
from transformers.models.qwen3.modeling_qwen3 import (
    ALL_ATTENTION_FUNCTIONS,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from .base import HiddenDraft, HiddenDraftOutput, set_biases

KeyValue = tuple[Tensor, Tensor]
# (layer, query `[1, H, Q, D]`, key and value of the block `[1, H_kv, Q, D]`) -> `[1, Q, H, D]`
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# What the confidence head reads: the slot's hidden states, alone or with the token before it.
Confidence = Literal["hidden", "markov"]


@dataclass(frozen=True)
class BlockForm:
    """What distinguishes one of them from another besides its layers.

    taps, target_width, draft_vocab, biased: as of `Eagle3Form`. block_size: B. windows: by layer how many rows before
    the anchor it sees, 0 for all. causal: by layer whether it sees no later slots of the block. from_anchor: whether
    slot 0 predicts. cap: of the logits, as the target caps its own. sinks: whether a logit of each head takes a share
    of its attention (NVIDIA's). markov_rank: 0 for none. gated: whether the slot's hidden states weigh w1.
    """

    taps: tuple[int, ...]
    target_width: int
    draft_vocab: int
    block_size: int
    mask_token: int
    windows: tuple[int, ...]
    causal: tuple[bool, ...]
    from_anchor: bool = False
    cap: float | None = None
    sinks: bool = False
    markov_rank: int = 0
    gated: bool = False
    confidence: Confidence | None = None
    biased: frozenset[str] = frozenset()

    @property
    def slots(self) -> int:
        """How many tokens a block drafts."""
        return self.block_size - (not self.from_anchor)


class BlockLayer(nn.Module):
    """context: the same weights again, for rows of the context, which `fake_quantized` leaves as they are."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.context = nn.ModuleDict()
        for name in ("k_proj", "v_proj"):
            own = getattr(self.self_attn, name)
            self.context[name] = nn.Linear(own.in_features, own.out_features, own.bias is not None)

    def keys_and_values(self, context: Tensor, angles: KeyValue) -> KeyValue:
        """Of rows of the context `[1, T, H]`: `[1, H_kv, T, D]` each."""
        key = self.self_attn.k_norm(self._heads(self.context["k_proj"](context))).transpose(1, 2)
        return apply_rotary_pos_emb(key, key, *angles)[1], self._heads(self.context["v_proj"](context)).transpose(1, 2)

    def forward(self, rows: Tensor, angles: KeyValue, index: int, attend: Attend) -> Tensor:
        own, normed = self.self_attn, self.input_layernorm(rows)
        query = own.q_norm(self._heads(own.q_proj(normed))).transpose(1, 2)
        key = own.k_norm(self._heads(own.k_proj(normed))).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *angles)
        seen = attend(index, query, key, self._heads(own.v_proj(normed)).transpose(1, 2))
        rows = rows + own.o_proj(seen.reshape(*rows.shape[:2], -1))
        output: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return output

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], -1, self.self_attn.head_dim)


class MarkovHead(nn.Module):
    """What the token before adds to the logits of a slot, of low rank."""

    def __init__(self, vocab_size: int, width: int, form: BlockForm) -> None:
        super().__init__()
        rank = form.markov_rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, form.draft_vocab, bias=False)
        self.gate_proj = nn.Linear(width + rank, rank) if form.gated else None

    def forward(self, before: Tensor, states: Tensor) -> Tensor:
        """before: `w1` of the token before, `[..., r]`; states: of the slot, `[..., H]`."""
        if self.gate_proj is not None:
            before = torch.sigmoid(self.gate_proj(torch.cat([states, before], -1))) * before
        added: Tensor = self.markov_w2(before)
        return added


class ConfidenceHead(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class BlockDraft(HiddenDraft):
    """Its weights have the names of `speculators`' checkpoints."""

    def __init__(self, config: PreTrainedConfig, form: BlockForm) -> None:
        """config: of its layers, a Qwen3's; `vocab_size` is the target's."""
        super().__init__(config)
        self.form, self.taps, self.tap_width = form, form.taps, form.target_width
        self.windows = form.windows
        self.kind = "dspark" if form.markov_rank or form.confidence else "dflash"
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.fc = nn.Linear(len(form.taps) * form.target_width, width, "fc" in form.biased)
        self.hidden_norm = Qwen3RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(self._layer(index) for index in range(config.num_hidden_layers))
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.norm = Qwen3RMSNorm(width, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(width, form.draft_vocab, bias=False)
        rank = form.markov_rank
        self.markov_head = MarkovHead(config.vocab_size, width, form) if rank else None
        self.confidence_head = (
            ConfidenceHead(width + rank * (form.confidence == "markov")) if form.confidence is not None else None
        )
        apart = ("fc.", "hidden_norm.", "markov_head.", "confidence_head.")
        self.fusing = tuple(
            name for name, _ in self.named_parameters() if name.startswith(apart) or ".context." in name
        )

    def _layer(self, index: int) -> BlockLayer:
        layer: Any = Qwen3DecoderLayer(self.config, index)
        set_biases(layer.self_attn, self.form.biased)
        if self.form.sinks:
            layer.self_attn.sinks = nn.Parameter(torch.empty(self.config.num_attention_heads))
        return BlockLayer(layer)

    def fuse(self, hidden: Tensor) -> Tensor:
        fused: Tensor = self.hidden_norm(self.fc(hidden))
        return fused

    def angles(self, rows: Tensor, positions: Tensor) -> KeyValue:
        """rows: of the dtype that is wanted. positions `[T] int64`."""
        angles: KeyValue = self.rotary_emb(rows, positions[None])
        return angles

    def context(self, fused: Tensor, start: Tensor) -> list[KeyValue]:
        """Of each layer, of rows `[1, T, H]` at the positions from `start [1] int64` on."""
        angles = self.angles(fused, start + torch.arange(fused.shape[1]))
        layers: Any = self.layers
        return [layer.keys_and_values(fused, angles) for layer in layers]

    def block(self, anchors: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Logits `[N, slots, m]` and states `[N, slots, H]`. anchors `[N]`, positions of the rows `[N * B]`: int64."""
        size = self.form.block_size
        masks = torch.full((len(anchors), size - 1), self.form.mask_token)
        rows = self.embed_tokens(torch.cat([anchors[:, None], masks], 1).reshape(1, -1))
        angles = self.angles(rows, positions)
        for index, layer in enumerate(self.layers):
            rows = layer(rows, angles, index, attend)
        states = self.norm(rows).view(len(anchors), size, -1)[:, size - self.form.slots :]
        logits, cap = self.lm_head(states), self.form.cap
        return logits if cap is None else cap * torch.tanh(logits / cap), states

    def chain(self, before: Tensor, states: Tensor, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and confidence `[...]` of a slot, a logit, whose token follows `before [...] int64`.

        states `[..., H]`, logits `[..., m]`: as of `block`. No confidence without a head for it.
        """
        read = states
        if self.markov_head is not None:
            embedded = self.markov_head.markov_w1(before)
            logits = logits + self.markov_head(embedded, states)
            read = torch.cat([states, embedded], -1) if self.form.confidence == "markov" else states
        return logits, None if self.confidence_head is None else self.confidence_head.proj(read)[..., 0]

    def forward(self, input_ids: Tensor, hidden: Tensor | None = None, *_: Any, **__: Any) -> HiddenDraftOutput:
        """Blocks one after the other, each as long as its slots: logits `[1, T, m]` of the slots, each after the true
        token before it. input_ids `[1, T]`: the tokens after the rows of `hidden`. hidden: as of `HiddenDraft`.
        """
        if len(input_ids) > 1:
            assert hidden is None
            every = [self(one[None]) for one in input_ids]
            return HiddenDraftOutput(
                torch.cat([one.logits for one in every]), torch.cat([one.feedback for one in every])
            )
        fused = self.fuse(self.read_target(input_ids)) if hidden is None else hidden
        length, slots = input_ids.shape[1], self.form.slots
        places = torch.arange(0, length, slots)
        logits, states = self.blocks(fused.to(self.dtype), input_ids[0, places], places + 1)
        before = (places[:, None] + torch.arange(slots)).clamp(max=length - 1)
        chained, _confidence = self.chain(input_ids[0, before], states, logits)
        return HiddenDraftOutput(chained.flatten(0, 1)[None, :length], states)

    def blocks(self, fused: Tensor, anchors: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """As `block`, without a cache: block n sees the first `ends[n]` rows of `fused [1, T, H]`, and itself."""
        past = self.context(fused, torch.zeros(1, dtype=torch.int64))
        size, rows = self.form.block_size, torch.arange(fused.shape[1])
        mine = torch.arange(len(anchors)).repeat_interleave(size)
        slot = torch.arange(size).repeat(len(anchors))
        ends = ends.repeat_interleave(size)

        def attend(index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            window, own = self.form.windows[index], mine[:, None] == mine
            seen = rows < ends[:, None]
            if window:
                seen = seen & (rows >= ends[:, None] - window)
            if self.form.causal[index]:
                own = own & (slot <= slot[:, None])
            mask = torch.zeros(1, 1, len(mine), len(rows) + len(mine), dtype=query.dtype)
            mask.masked_fill_(~torch.cat([seen, own], 1), torch.finfo(query.dtype).min)
            key, value = (torch.cat(pair, 2) for pair in zip(past[index], (key, value), strict=True))
            module: Any = self.layers[index].self_attn
            interface = attention_with_sinks
            if not self.form.sinks:
                named = self.config._attn_implementation
                interface = ALL_ATTENTION_FUNCTIONS.get_interface(named, eager_attention_forward)
            output: Tensor = interface(module, query, key, value, mask, dropout=0.0, scaling=module.scaling)[0]
            return output

        return self.block(anchors, ends + slot, attend)
