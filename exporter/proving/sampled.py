"""Some rows of what a product of a graph read and gave, as the proof's passes go by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass
class Sampled:
    """inputs: each [R, K]. outputs: each [R, N]. experts: each [R], the one that a row goes to, of stacks only."""

    inputs: list[Float32] = field(default_factory=list)
    outputs: list[Float32] = field(default_factory=list)
    experts: list[NDArray[np.int64]] = field(default_factory=list)

    def keep(
        self,
        inputs: Float32,
        outputs: Float32,
        count: int,
        picking: np.random.Generator,
        experts: NDArray[np.int64] | None = None,
    ) -> None:
        """So many rows of a pass, or all there are."""
        rows = picking.permutation(inputs.size // inputs.shape[-1])[:count]
        self.inputs.append(inputs.reshape(-1, inputs.shape[-1])[rows])
        self.outputs.append(outputs.reshape(-1, outputs.shape[-1])[rows])
        if experts is not None:
            self.experts.append(experts.reshape(-1)[rows])
