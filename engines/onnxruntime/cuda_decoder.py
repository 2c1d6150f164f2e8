"""A model on ONNX Runtime with its buffers on a GPU: bound once per width, written in place, replayed as a CUDA graph.

ONNX Runtime captures a graph when it first runs a binding under a `gpu_graph_id`, and replays it from then on: only the
contents of buffers may change between passes. It keeps separate graphs for each thread, so in a thread other than the
one that loaded the model, the first pass of each width is slow. See docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...bundle import Contract, ModelSpec, Precision
from ..base import Logits, RollsBack, Rows, check_rows
from ..chunks import feed_passes
from ..cuda.driver import size_text
from .confidence_head import OrtCudaHead, head_shapes
from .cuda_errors import explain
from .graph_check import Signature, check_graph, still_open

# By precision: numpy's type of a cache element (its bits, if numpy lacks the type), the type as `bind_input` takes it,
# and ONNX Runtime's name.
ELEMENTS: dict[Precision, tuple[type[np.generic], Any, str]] = {
    "fp32": (np.float32, np.float32, "tensor(float)"),
    "fp16": (np.float16, np.float16, "tensor(float16)"),
    "bf16": (np.uint16, 16, "tensor(bfloat16)"),
}
SIDES: tuple[Literal["past", "present"], ...] = ("past", "present")


class Place(NamedTuple):
    """Where buffers are, in ONNX Runtime's terms: `cuda` or `cpu`, and the number of the device."""

    kind: str
    number: int


@dataclass(frozen=True)
class _Bound:
    """Everything that is bound for one width."""

    io: Any  # IOBinding
    options: Any  # RunOptions, with the number of the width's CUDA graph
    tokens: NDArray[np.int64]  # [1, T], on the host
    tokens_value: Any
    logits: Logits  # [1, rows, vocab], on the host
    logits_value: Any
    device_logits: Any


class OrtCudaDecoder(RollsBack):
    """A graph of the `ort` dialect. Implements `Decoder`; every pass has one of the contract's widths.

    head: the graph's confidence head, if it has one.

    ort: the module onnxruntime. session: the graph at `path`, loaded. place: a GPU, or the CPU for tests without one.
    Raises `BundleError` for a graph that does not match the manifest, `EngineError` if the GPU lacks the memory.
    """

    def __init__(self, ort: Any, session: Any, place: Place, path: Path, spec: ModelSpec, contract: Contract) -> None:
        self.vocab_size = spec.vocab_size
        self._ort, self._session, self._where = ort, session, place
        self._path, self._spec, self._contract = path, spec, contract
        self._check()
        self._position = np.zeros(1, np.int64)
        try:
            self._position_value = self._place(np.zeros_like(self._position))
            # Zeros: a masked row has weight 0, and 0 * NaN would still be NaN.
            self._caches = [
                self._place(np.zeros(shape, ELEMENTS[contract.precision][0])) for shape in self._cache_shapes()
            ]
            self.head = OrtCudaHead(spec.features, ort, self._place) if spec.features else None
            self._bound = {width: self._bind(width) for width in contract.widths}
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise explain(error, f"buffers of {path} (caches of {size_text(spec.cache_bytes(contract))})") from None
        for width in self._bound:
            self._run(width, [0] * width, 0)  # captures the graph; the rows that it writes are overwritten later

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        count = len(tokens)
        still_open(self._session, self._path)
        if count not in self._bound:  # a padded chunk would return the logits of its padding, which comes last
            self.feed(tokens[:-1], position)
            return self.step(tokens[-1:], position + count - 1)
        logits: Logits = self._run(count, tokens, position, read=True).logits[0]
        return logits

    def feed(self, tokens: Sequence[int], position: int) -> None:
        for width, part, start in feed_passes(tokens, position, self._contract, self._contract.widest_step + 1):
            self._run(width, part, start)

    def overwrite_rows(self, start: int, value: float) -> None:
        # numpy has no bf16, so the element is given by its bits: the upper half of a float's.
        element = np.float32(value).view(np.uint32) >> 16 if self._contract.precision == "bf16" else value
        for cache in self._caches:
            rows = cache.numpy()
            rows[:, :, start:] = element
            cache.update_inplace(rows)

    def read_rows(self, end: int) -> list[Rows]:
        return [cache.numpy()[0, :, :end].copy() for cache in self._caches]

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        for cache, part in zip(self._caches, saved, strict=True):  # ONNX Runtime's API copies only whole arrays
            rows = cache.numpy()
            rows[0, :, start:end] = part[:, start:end]
            cache.update_inplace(rows)

    def close(self) -> None:
        """Release model, captured graphs and buffers. Closing again does nothing."""
        self._bound.clear()  # bindings before what they bind
        if self.head is not None:
            self.head.close()
        self._caches.clear()
        self._session = self._position_value = None

    def _run(self, width: int, tokens: Sequence[int], position: int, read: bool = False) -> _Bound:
        check_rows(position + width, self._contract)
        session = still_open(self._session, self._path)
        bound, count = self._bound[width], len(tokens)
        bound.tokens[0, :count] = tokens
        bound.tokens[0, count:] = 0
        self._position[0] = position
        try:
            bound.tokens_value.update_inplace(bound.tokens)
            self._position_value.update_inplace(self._position)
            session.run_with_iobinding(bound.io, bound.options)  # returns when the GPU is done
            if read:
                bound.logits_value.update_inplace(bound.device_logits)
                if self.head is not None:
                    self.head.width = width
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise explain(error, f"{self._path} failed on {width} tokens at position {position}") from None
        return bound

    def _bind(self, width: int) -> _Bound:
        rows = width if width <= self._contract.widest_step else 1
        tokens, logits = np.zeros((1, width), np.int64), np.zeros((1, rows, self.vocab_size), np.float32)
        tokens_value, device_logits = self._place(np.zeros_like(tokens)), self._place(np.zeros_like(logits))
        io = self._session.io_binding()
        io.bind_ortvalue_input("tokens", tokens_value)
        io.bind_ortvalue_input("position", self._position_value)
        io.bind_ortvalue_output("logits", device_logits)
        if self.head is not None:
            self.head.bind(io, width, rows)
        element = ELEMENTS[self._contract.precision][1]
        for side, bind in zip(SIDES, (io.bind_input, io.bind_output), strict=True):
            for (name, _), shape, value in zip(
                self._spec.cache_names(side), self._cache_shapes(), self._caches, strict=True
            ):
                bind(name, *self._where, element, shape, value.data_ptr())
        options = self._ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(width))
        return _Bound(
            io, options, tokens, tokens_value, logits, self._ort.OrtValue.ortvalue_from_numpy(logits), device_logits
        )

    def _place(self, array: NDArray[Any]) -> Any:
        """A copy of the array on the device, as an OrtValue."""
        return self._ort.OrtValue.ortvalue_from_numpy(array, *self._where)

    def _cache_shapes(self) -> list[list[int]]:
        layers = (layer for _, layer in self._spec.cache_names("past"))
        return [[1, layer.num_kv_heads, self._contract.capacity, layer.head_dim] for layer in layers]

    def _check(self) -> None:
        """Check the graph's inputs and outputs against the contract. Raises `BundleError`."""
        kind, rows_name = ELEMENTS[self._contract.precision][2], self._contract.rows_name
        expected: dict[str, Signature | None] = {"tokens": None, "position": None}
        for side in SIDES:
            for (name, _), shape in zip(self._spec.cache_names(side), self._cache_shapes(), strict=True):
                expected[name] = (kind, shape)
        head = head_shapes(self._spec.features, rows_name)
        by_row: dict[str, list[int | str]] = {"logits": [1, rows_name, self.vocab_size], **head}
        expected |= {name: ("tensor(float)", shape) for name, shape in by_row.items()}
        check_graph(self._path, self._session, expected)
