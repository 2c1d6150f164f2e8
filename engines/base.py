"""What an engine gives: two decoders, each a model with a static cache that never moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle

Logits = NDArray[np.float32]


class Decoder(Protocol):
    vocab_size: int

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        """Write `tokens` into cache rows `position...` and return their logits `[rows, vocab] float32`.

        rows is `len(tokens)` up to the contract's widest step, else 1 (the last token's). The array is a fixed
        buffer: the next step of the same width overwrites it. Rolling back needs no call: pass a smaller
        position next time. `position + len(tokens)` must not exceed the capacity.
        """
        ...

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill every cache row from `start` on, for proofs that rows beyond the position are never read."""
        ...


Arrays = Mapping[str, NDArray[np.generic]]
# A graph without a cache: arrays by name in, arrays by name out.
RunGraph = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Engine:
    name: str
    dialect: str  # of the graphs it runs
    target: Decoder
    draft: Decoder | None = None
    open_graph: Callable[[Path], RunGraph] | None = None  # for the proof of compiled rules


@dataclass(frozen=True)
class Availability:
    """Whether this host can run an engine: `detail` is what was found, `remedy` what to do when it cannot."""

    usable: bool
    detail: str
    remedy: str = ""


class EngineModule(Protocol):
    def load(self, bundle: Bundle, threads: int) -> Engine: ...

    def availability(self) -> Availability: ...
