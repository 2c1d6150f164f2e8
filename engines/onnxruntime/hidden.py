"""Hidden states on ONNX Runtime: an output of the target's graph, an input of the graphs of a draft that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle import FEEDBACK, FUSED, HIDDEN, Contract, Reads
from ..base import RunGraph

Floats = NDArray[np.float32]
# Outputs of the graphs of a draft of blocks, and inputs of its chain.
STATES, CHAINED = "states", "chained"


class OrtTaps:
    """The hidden states of the target's last pass. count: its rows; the decoder sets it."""

    def __init__(self, width: int, contract: Contract) -> None:
        self.count = 0
        self._rows = np.zeros((max(contract.widths), width), np.float32)

    def bind(self, io: Any, value: Any, width: int) -> None:
        """value: makes an OrtValue that aliases an array."""
        io.bind_ortvalue_output(HIDDEN, value(self._rows[None, :width]))

    def __call__(self) -> Floats:
        return self._rows[: self.count]


class OrtReader:
    """What a draft's next pass reads, and what its last one gave back. Implements `Reader`.

    fuse: runs its graph that fuses, None where the target's hidden states are read as they are. rows: how many rows of
    logits the last pass gave; the decoder sets it.
    """

    def __init__(self, reads: Reads, contract: Contract, fuse: RunGraph | None) -> None:
        self.rows = 0
        self._hidden = np.zeros((max(contract.widths), reads.width), np.float32)
        self._feedback = np.zeros((contract.widest_step, reads.width), np.float32)
        self._fuse = fuse

    def bind(self, io: Any, value: Any, width: int, rows: int) -> None:
        io.bind_ortvalue_input(HIDDEN, value(self._hidden[None, :width]))
        io.bind_ortvalue_output(FEEDBACK, value(self._feedback[None, :rows]))

    def read(self, hidden: Floats) -> None:
        fused = hidden if self._fuse is None else self._fuse({HIDDEN: hidden[None]})[FUSED][0]
        self._hidden[: len(hidden)] = fused

    def read_back(self) -> None:
        self._hidden[0] = self._feedback[self.rows - 1]
