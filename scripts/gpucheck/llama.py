"""Sizes of models of Llama's shape, and of a hybrid."""

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


@dataclass(frozen=True)
class Hybrid(Llama):
    """All layers but the last keep the states of a gated delta rule and a convolution, as Qwen3.5's do.

    num_parameters is about right: their weights are taken to be as many as those of attention. state_dim: rows and
    columns of each head's state.
    """

    state_dim: int = 64
