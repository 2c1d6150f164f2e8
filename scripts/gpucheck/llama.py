"""Sizes of models of Llama's shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Llama:
    """tied: the embedding is the output layer too. spread: standard deviation of the weights."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab_size: int
    tied: bool
    positions: int
    spread: float = 0.02

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        attention = 2 * self.hidden * (self.hidden + self.kv_heads * self.head_dim)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + (1 if self.tied else 2) * self.vocab_size * self.hidden
