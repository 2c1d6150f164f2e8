"""Which passes are CUDA graphs, each under a number of its own (`gpu_graph_id`).

A graph holds the shapes that it was captured with. Those of a pass follow from its width, and where layers keep states
also from how many open rows count and how many become certain: a graph for each of the three together. Passes of no
kind that rounds have, such as the end of a prompt, run uncaptured.

ONNX Runtime captures in the first run under a number, of each thread, and runs the pass several times for it. Cache
rows are only rewritten, but states would take the same rows in again: they are put back before the run that counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...bundle import Contract
from .states import OrtStates

UNCAPTURED = -1  # the number of runs that ONNX Runtime neither captures nor replays


class Kind(NamedTuple):
    """width: tokens of a pass. pending, certain: its counts, 0 where no layer keeps states."""

    width: int
    pending: int = 0
    certain: int = 0


class Captures:
    """ort: the module onnxruntime. states: of the model, if it has some."""

    def __init__(self, ort: Any, contract: Contract, states: OrtStates | None) -> None:
        self._states = states
        if states is None:
            numbers = {Kind(width): width for width in contract.widths}
        else:
            numbers = {kind: number for number, kind in enumerate(_kinds(contract, states), 1)}
        self._options = {kind: _options(ort, number) for kind, number in numbers.items()}
        self._uncaptured = _options(ort, UNCAPTURED)
        self._by_thread = threading.local()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(self._options)

    def capture(self, session: Any, io: Any, kind: Kind) -> None:
        """Leaves states that are those of no rows."""
        if self._states is not None:
            self._states.counts = (kind.pending, kind.certain)
        session.run_with_iobinding(io, self._options[kind])
        self._here.add(kind)

    def run(self, session: Any, io: Any, width: int) -> None:
        """A pass of `width` tokens, with the counts that its states are at."""
        kind = Kind(width, *(self._states.counts if self._states is not None else ()))
        if self._states is not None and kind in self._options and kind not in self._here:
            before = self._states.contents()
            self.capture(session, io, kind)
            self._states.restore(before)
        session.run_with_iobinding(io, self._options.get(kind, self._uncaptured))  # returns when the GPU is done

    @property
    def _here(self) -> set[Kind]:
        """What this thread has captured."""
        if not hasattr(self._by_thread, "kinds"):
            self._by_thread.kinds = set()
        kinds: set[Kind] = self._by_thread.kinds
        return kinds


def _kinds(contract: Contract, states: OrtStates) -> Iterator[Kind]:
    """The passes of rounds, and whole chunks of a prompt: its first, and those after it."""
    window, chunk = contract.widest_step, contract.prompt_chunk
    for width in range(1, window + 1):
        for pending in range(1, window + 1):
            yield Kind(width, pending, states.certain(pending, width))
    if chunk > window:
        for pending in (0, window):
            yield Kind(chunk, pending, states.certain(pending, chunk))


def _options(ort: Any, number: int) -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options
