"""Sampling parameters, and the distribution that they make of a row of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from operator import index

import numpy as np
from numpy.typing import NDArray

from ..errors import ParameterError

Probabilities = NDArray[np.float64]


def whole_number(name: str, value: object) -> int:
    """`value` as an int, numpy's included. Raises `ParameterError` naming it for anything else."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ParameterError(f"{name} is {value!r}; it must be a whole number") from None


@dataclass(frozen=True)
class SamplingParameters:
    """temperature 0 is greedy; top_k 0 and top_p 1 are off; without a seed every request draws afresh.

    Raises `ParameterError` naming the parameter, what was given and what is allowed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            if not isinstance(getattr(self, name), Real):
                raise ParameterError(f"{name} is {getattr(self, name)!r}; it must be a number")
        for name in ("top_k", "seed"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise ParameterError(f"temperature is {self.temperature}; it must be from 0 (greedy) to 100")
        if self.top_k < 0:
            raise ParameterError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ParameterError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")
        if self.seed is not None and self.seed < 0:
            raise ParameterError(f"seed is {self.seed}; it must be 0 or more")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def processed_probabilities(logits: NDArray[np.float32], parameters: SamplingParameters) -> Probabilities:
    """Temperature, then top-k, then top-p, as transformers orders them. `[rows, vocab] -> [rows, vocab] float64`.

    Ties at the k-th largest logit are all kept. top-p keeps the smallest set of most probable tokens whose
    mass reaches top_p, and always the most probable one.
    """
    scaled = logits.astype(np.float64)
    scaled -= scaled.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # a temperature next to 0 leaves the largest logits only
        scaled /= parameters.temperature
    vocab = scaled.shape[-1]
    if 0 < parameters.top_k < vocab:
        kth = np.partition(scaled, vocab - parameters.top_k, axis=-1)[:, vocab - parameters.top_k, None]
        scaled[scaled < kth] = -np.inf
    probabilities: Probabilities = np.exp(scaled)
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    if parameters.top_p < 1.0:
        order = np.argsort(-probabilities, axis=-1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=-1)
        before = np.cumsum(ranked, axis=-1) - ranked
        ranked[before >= parameters.top_p] = 0.0
        np.put_along_axis(probabilities, order, ranked, axis=-1)
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return probabilities


def draw(probabilities: Probabilities, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the cumulative distribution `[vocab]`, which need not sum to one."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    # Rounding can push the product onto the total: the last token with mass is meant.
    return token if token < len(cumulative) else int(np.flatnonzero(probabilities)[-1])
