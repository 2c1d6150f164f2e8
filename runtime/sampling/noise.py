"""The noise of a request: uniforms from its seed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .distribution import Probabilities
from .parameters import SEEDS


class Noise(Protocol):
    """Like `numpy.random.Generator`."""

    def random(self, size: int) -> Probabilities:
        """Uniforms in [0, 1), `[size]`."""
        ...


def noise_streams(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """Independent streams of uniforms, for drafting and for acceptance."""
    if seed is not None and seed < 0:
        seed %= SEEDS
    draft_seed, target_seed = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(draft_seed), np.random.default_rng(target_seed)
