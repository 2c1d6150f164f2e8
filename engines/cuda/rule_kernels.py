"""The verification rules (`engines/rules.py`) on the GPU: the kernels of rules.cu, launched in order.

A rule is 2 launches where the most likely token is meant, and 21 where one is drawn.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files

import numpy as np
from numpy.typing import DTypeLike

from ...errors import EngineError
from ..rules import RuleSpec
from .device import Address, CudaDevice, aligned
from .loaded_graph import Enqueue

# As in rules.cu: values of a thread, bits of a search's step, its cuts, bytes of its structs, and most rows.
EACH, BITS = 8, 4
CUTS, SEARCH_BYTES, ROW_BYTES, MOST_ROWS = 2**BITS - 1, 12, 16, 64
LAUNCHES = 32 // BITS


@cache
def ptx() -> str:
    """What scripts/compile_rules.py made of rules.cu."""
    return lzma.decompress(files(__package__).joinpath("rules.ptx.xz").read_bytes()).decode()


class RuleKernels:
    """The kernels of a rule over a vocabulary. scratch_bytes, `bind`: as of `LoadedGraph`."""

    def __init__(self, spec: RuleSpec, vocab_size: int, device: CudaDevice) -> None:
        self._rule, self._k, self._rows = spec.rule, spec.num_draft_tokens, spec.rows
        if self._rows > MOST_ROWS:
            raise EngineError(f"rounds of {self._k} draft tokens: a GPU takes at most {MOST_ROWS - 1}")
        self._vocab_size, self._device = vocab_size, device
        self._blocks = -(-vocab_size // (device.rule_threads * EACH))
        inputs, outputs = _arrays(spec, vocab_size)
        self.inputs, self.outputs, self._arrays = list(inputs), list(outputs), inputs | outputs
        # Scratch memory, by name: where it begins.
        self._places: dict[str, int] = {}
        self.scratch_bytes = 0
        of_blocks, of_rows = 4 * self._rows * self._blocks, self._rows
        sizes = dict.fromkeys(("peaks", "ids", "sums", "lost", "masses", "left"), of_blocks)
        sizes |= dict.fromkeys(("tried", "tried before"), CUTS * of_blocks)
        sizes |= dict.fromkeys(("search", "search before"), SEARCH_BYTES * of_rows)
        for name, size in {**sizes, "rows": ROW_BYTES * of_rows}.items():
            self._places[name] = self.scratch_bytes
            self.scratch_bytes += aligned(size)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name][1]

    def array(self, name: str) -> tuple[DTypeLike, int]:
        dtype, shape = self._arrays[name]
        return dtype, math.prod(shape)

    def bind(self, addresses: Mapping[str, Address], scratch: Address) -> Enqueue:
        at = {**{name: Address(scratch + place) for name, place in self._places.items()}, **addresses}
        launches: list[Callable[[], None]] = []

        def add(kernel: str, *arguments: str | int, rows: int = self._rows, blocks: int = self._blocks) -> None:
            values = tuple(at[name] if isinstance(name, str) else name for name in arguments)
            launch = self._device.kernel(ptx(), kernel)
            launches.append(partial(launch, (blocks, rows, 1), (self._device.rule_threads, 1, 1), values))

        vocab, k, blocks = self._vocab_size, self._k, self._blocks
        of_blocks = ("peaks", "ids", "sums", "lost")
        accepted = ("position", "num_accepted", "next_token", "next_position")
        add("extremes", "logits", vocab, *of_blocks)
        if self._rule == "select_greedy":
            add("select_best", blocks, *of_blocks, "token", "confidence", blocks=1)
        elif self._rule == "accept_greedy":
            add("accept_best", vocab, k, blocks, *of_blocks, "draft_tokens", *accepted, rows=1, blocks=1)
        else:
            self._truncate(add)
            if self._rule == "select":
                add("select_drawn", "logits", "noise", vocab, "rows", "masses", "token", "draft_probs")
                add("select_best", blocks, *of_blocks, 0, "confidence", blocks=1)
            else:
                by_block = int(self._rule == "accept_block")
                drafted = ("draft_tokens", "draft_probs", "left")
                add("leave", "logits", vocab, k, by_block, "rows", "masses", *drafted, rows=k)
                target = ("rows", "masses", "lost")
                shape = (vocab, k, blocks, by_block)
                add("accept_drawn", "logits", "noise", *shape, *target, *drafted, *accepted, rows=1, blocks=1)

        def enqueue() -> None:
            for launch in launches:
                launch()

        return enqueue

    def _truncate(self, add: Callable[..., None]) -> None:
        """Top-k, then top-p and min-p: which logits each row keeps, and their weights block by block."""
        row = ("logits", "sampling", self._vocab_size, "peaks")
        search, tried = ["search before", "search"], ["tried before", "tried"]
        for weighs in (0, 1):
            for step in range(LAUNCHES):
                add("search", *row, weighs, 32 - BITS * (step + 1), "masses", *search, *tried)
                search.reverse()
                tried.reverse()
            add("weigh", *row, weighs, *search, tried[0], "masses", "rows")
            search.reverse()


Arrays = dict[str, tuple[DTypeLike, tuple[int, ...]]]


def _arrays(spec: RuleSpec, vocab_size: int) -> tuple[Arrays, Arrays]:
    k, one, number = spec.num_draft_tokens, (np.int64, (1,)), (np.float32, (1,))
    inputs: Arrays = {"logits": (np.float32, (spec.rows, vocab_size))}
    if spec.draws:
        inputs |= {"noise": (np.float32, (spec.rows,)), "sampling": (np.float32, (4,))}
    if spec.rule in ("select", "select_greedy"):
        outputs: Arrays = {"token": one, "confidence": number}
        return inputs, outputs | ({"draft_probs": (np.float32, (1, vocab_size))} if spec.draws else {})
    inputs |= {"draft_tokens": (np.int64, (k,)), "position": one}
    if spec.draws:
        inputs["draft_probs"] = (np.float32, (k, vocab_size))
    return inputs, {"num_accepted": one, "next_token": one, "next_position": one}
