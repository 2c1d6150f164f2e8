"""Runs SmolLM2 in bf16 with many sequences at a time on one core, to write the answers that the draft learns from.

The bundle itself answers one request at a time, and a row of a product costs less if 48 rows share the weights. Each
sequence has a slot of the cache; when it has finished, the next one gets the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

# Tokens kept per row, which have nearly all of its mass; and tokens whose logits are computed in fp32, since logits in
# bf16 are only exact to an eighth.
TOP, EXACT = 64, 128
# A prompt of at most this many tokens (most are questions) goes to the bank of short prompts.
SHORT = 80


@dataclass
class Answering:
    """One request. temperature: 0 is greedy. tokens, ids, logprobs: the answer so far, as `exporter.tuning.Answer`."""

    key: str
    route: str
    prompt: list[int]
    temperature: float
    tokens: list[int] = field(default_factory=list)
    ids: list[Tensor] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)


class Batched:
    def __init__(self, folder: Path, slots: int, capacity: int) -> None:
        config = AutoConfig.from_pretrained(folder)
        self.stop, self.layers = config.eos_token_id, config.num_hidden_layers
        self.heads, self.groups, self.epsilon = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.rms_norm_eps,
        )
        self.size = config.hidden_size // self.heads
        weights = load_file(folder / "model.safetensors")
        self.table = weights["model.embed_tokens.weight"]
        self.head = self.table.bfloat16()
        self.gain = weights["model.norm.weight"]
        self.layer = []
        for number in range(self.layers):
            of = {
                name.split(f"layers.{number}.")[1]: value
                for name, value in weights.items()
                if f"layers.{number}." in name
            }
            first, second = of["input_layernorm.weight"], of["post_attention_layernorm.weight"]
            qkv = torch.cat([of[f"self_attn.{name}_proj.weight"] for name in "qkv"]).bfloat16()
            out = of["self_attn.o_proj.weight"].bfloat16()
            up = torch.cat([of[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]).bfloat16()
            self.layer.append((first, qkv, out, second, up, of["mlp.down_proj.weight"].bfloat16()))
        theta = config.rope_parameters["rope_theta"]
        angles = torch.arange(capacity)[:, None] * theta ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos(), angles.sin()
        shape = (self.layers, 2, slots, self.groups, capacity, self.size)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16)
        # Attention reads as far as the longest sequence of a bank, so short prompts have their own bank.
        self.slots, self.banks = slots, (slice(0, slots * 2 // 3), slice(slots * 2 // 3, slots))

    def _norm(self, hidden: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], gain, self.epsilon).bfloat16()

    def _turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Apply rotary embeddings. heads `[..., T, size]`, positions `[..., T]`."""
        one, two = heads.chunk(2, -1)
        return (heads * self.cos[positions] + torch.cat([-two, one], -1) * self.sin[positions]).bfloat16()

    def prefill(self, slot: int, prompt: list[int]) -> Tensor:
        """The hidden state of the last token, `[1, width]`."""
        tokens, places = torch.tensor(prompt), torch.arange(len(prompt))
        hidden = self.table[tokens]
        for number, (first, qkv, out, second, up, down) in enumerate(self.layer):
            parts = F.linear(self._norm(hidden, first), qkv).view(len(prompt), -1, self.size).transpose(0, 1)
            query, key, value = parts.split([self.heads, self.groups, self.groups])
            query, key = self._turn(query, places), self._turn(key, places)
            self.cache[number, 0, slot, :, : len(prompt)], self.cache[number, 1, slot, :, : len(prompt)] = key, value
            shares = self.heads // self.groups
            mixed = F.scaled_dot_product_attention(
                query[None],
                key.repeat_interleave(shares, 0)[None],
                value.repeat_interleave(shares, 0)[None],
                is_causal=True,
            )
            hidden = hidden + F.linear(mixed[0].transpose(0, 1).flatten(1), out)
            hidden = self._mlp(hidden, second, up, down)
        return hidden[-1:]

    def _mlp(self, hidden: Tensor, gain: Tensor, up: Tensor, down: Tensor) -> Tensor:
        gate, other = F.linear(self._norm(hidden, gain), up).chunk(2, -1)
        return hidden + F.linear(F.silu(gate) * other, down)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions `[slots]` -> hidden states `[slots, width]`."""
        rows, shares = torch.arange(self.slots), self.heads // self.groups
        banks = [(bank, int(positions[bank].max()) + 1) for bank in self.banks]
        masks = [self._mask(positions[bank], longest) for bank, longest in banks]
        hidden = self.table[tokens]
        for number, (first, qkv, out, second, up, down) in enumerate(self.layer):
            parts = F.linear(self._norm(hidden, first), qkv).view(self.slots, -1, self.size)
            query, key, value = parts.split([self.heads, self.groups, self.groups], 1)
            query, key = self._turn(query, positions[:, None]), self._turn(key, positions[:, None])
            self.cache[number, 0, rows, :, positions], self.cache[number, 1, rows, :, positions] = key, value
            grouped = query.view(self.slots, self.groups, shares, self.size)
            mixed = torch.cat(
                [
                    F.scaled_dot_product_attention(
                        grouped[bank], *self.cache[number, :, bank, :, :longest].unbind(0), attn_mask=mask
                    )
                    for (bank, longest), mask in zip(banks, masks, strict=True)
                ]
            )
            hidden = hidden + F.linear(mixed.reshape(self.slots, -1), out)
            hidden = self._mlp(hidden, second, up, down)
        return hidden

    def _mask(self, positions: Tensor, longest: int) -> Tensor:
        mask = torch.zeros(len(positions), 1, 1, longest, dtype=torch.bfloat16)
        mask.masked_fill_(torch.arange(longest) > positions[:, None, None, None], -torch.inf)
        return mask.expand(-1, self.groups, self.heads // self.groups, -1)

    def top(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(ids, log-probabilities) `[rows, EXACT]`, the most likely first."""
        last = F.rms_norm(hidden, hidden.shape[-1:], self.gain, self.epsilon)
        logits = F.linear(last.bfloat16(), self.head)
        ids = logits.topk(EXACT, -1).indices
        exact = torch.bmm(self.table[ids], last[:, :, None])[..., 0]
        total = torch.logsumexp(logits.float(), -1, keepdim=True)
        exact, order = (exact - total).sort(-1, descending=True)
        return ids.gather(-1, order), exact


class Queue:
    """Requests by bank: those with prompts of up to `short` tokens, and the others."""

    def __init__(self, requests: Iterator[Answering], short: int) -> None:
        self._requests, self._short = requests, short
        self._waiting: tuple[deque[Answering], ...] = (deque(), deque())

    def next(self, bank: int) -> Answering | None:
        while not self._waiting[bank]:
            one = next(self._requests, None)
            if one is None:  # at the end, every slot takes from either bank
                return self._waiting[1 - bank].popleft() if self._waiting[1 - bank] else None
            self._waiting[len(one.prompt) > self._short].append(one)
        return self._waiting[bank].popleft()


@torch.no_grad()
def answers(model: Batched, requests: Iterator[Answering], most: int, seed: int) -> Iterator[Answering]:
    """Yield each request when its answer has ended, with the stop token or after `most` tokens."""
    rng, queue = torch.Generator().manual_seed(seed), Queue(requests, SHORT)
    open_: list[Answering | None] = [None] * model.slots
    tokens, positions = torch.zeros(model.slots, dtype=torch.int64), torch.zeros(model.slots, dtype=torch.int64)

    def emit(slot: int, ids: Tensor, logprobs: Tensor) -> bool:
        one = open_[slot]
        assert one is not None
        place = 0
        if one.temperature:
            place = int(torch.multinomial(torch.softmax(logprobs / one.temperature, -1), 1, generator=rng))
        token = int(ids[place])
        one.tokens.append(token)
        one.ids.append(ids[:TOP].int())
        one.logprobs.append(logprobs[:TOP].half())
        tokens[slot] = token
        return token == model.stop or len(one.tokens) == most

    while True:
        for slot in range(model.slots):
            bank = int(slot >= model.banks[1].start)
            while open_[slot] is None and (one := queue.next(bank)) is not None:
                open_[slot] = one
                ids, logprobs = model.top(model.prefill(slot, one.prompt))
                positions[slot] = len(one.prompt)
                if emit(slot, ids[0], logprobs[0]):
                    yield one
                    open_[slot] = None
        if not any(open_):
            return
        ids, logprobs = model.top(model.step(tokens, positions))
        positions += 1
        for slot, one in enumerate(open_):
            if one is None:
                positions[slot] = 0
            elif emit(slot, ids[slot], logprobs[slot]):
                yield one
                open_[slot], positions[slot] = None, 0
