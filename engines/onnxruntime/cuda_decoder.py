"""A model on ONNX Runtime with its buffers on a GPU: bound once per width, written in place, replayed as a CUDA graph.

ONNX Runtime captures a graph when it first runs a binding under a `gpu_graph_id`, and replays it from then on: only the
contents of buffers may change between passes. It keeps separate graphs for each thread, so in a thread other than the
one that loaded the model, the first pass of each kind is slow. See docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...bundle import Contract, ModelSpec, Precision
from ...errors import EngineError
from ..base import Logits, Rows, RunGraph, SavedStates, check_rows, feed_passes
from ..cuda.driver import size_text
from .captures import Captures
from .confidence_head import OrtCudaHead, head_shapes
from .graphs import Signature, check_graph, still_open
from .hidden import hidden_shapes
from .hidden_cuda import OrtCudaReader, OrtCudaTaps
from .states import DeviceState, OrtStates, state_signatures

# By precision: numpy's type of a cache element (its bits, if numpy lacks the type), the type as `bind_input` takes it,
# and ONNX Runtime's name.
ELEMENTS: dict[Precision, tuple[type[np.generic], Any, str]] = {
    "fp32": (np.float32, np.float32, "tensor(float)"),
    "fp16": (np.float16, np.float16, "tensor(float16)"),
    "bf16": (np.uint16, 16, "tensor(bfloat16)"),
}
SIDES: tuple[Literal["past", "present"], ...] = ("past", "present")


class OrtDevice(NamedTuple):
    """Where buffers are, in ONNX Runtime's terms: `cuda` or `cpu`, and the number of the device."""

    kind: str
    number: int


@dataclass(frozen=True)
class _Bound:
    """Everything that is bound for one width."""

    io: Any  # IOBinding
    tokens: NDArray[np.int64]  # [1, T], on the host
    tokens_value: Any
    logits: Logits  # [1, rows, vocab], on the host
    logits_value: Any
    device_logits: Any


class OrtCudaDecoder:
    """A graph of the `ort` dialect. Implements `Decoder`.

    Passes have the contract's widths. Where layers keep states, the last chunk of a prompt is as wide as what is left:
    with other counts it would be no captured pass, padded or not.

    head: the graph's confidence head, if it has one.

    ort: the module onnxruntime. session: the graph at `path`, loaded. place: a GPU, or the CPU for tests without one.
    keeps_open: whether states can be rolled back over several passes, as a draft's must (`OpenRows`). fuse: as of
    `OrtCudaReader`. taps, reader: of a target whose hidden states are read, and of a draft that reads them. Raises
    `BundleError` for a graph that does not match the manifest, `EngineError` if the GPU lacks the memory.
    """

    def __init__(
        self,
        ort: Any,
        session: Any,
        place: OrtDevice,
        path: Path,
        spec: ModelSpec,
        contract: Contract,
        keeps_open: bool = False,
        fuse: RunGraph | None = None,
    ) -> None:
        self.vocab_size, self.has_states = spec.vocab_size, spec.has_states
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
            self._states = self._make_states(keeps_open) if spec.has_states else None
            self.head = OrtCudaHead(spec.features, ort, self._place) if spec.features else None
            width, reads = len(spec.taps) * spec.tap_width, spec.reads
            self.taps = OrtCudaTaps(width, contract, ort, self._place) if width else None
            self.reader = OrtCudaReader(reads, contract, ort, self._place, fuse) if reads is not None else None
            self._bound: dict[int, _Bound] = {}
            for width in contract.widths:
                self._bound[width] = self._bind(width)
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise explain(error, f"buffers of {path} (caches of {size_text(spec.cache_bytes(contract))})") from None
        self._captures = Captures(ort, contract, self._states)

    def warm_up(self) -> None:
        """Capture the passes of rounds, for the calling thread alone. All rows are lost."""
        session = still_open(self._session, self._path)
        self._position[0] = 0  # the widest pass must fit
        self._position_value.update_inplace(self._position)
        for kind in self._captures.kinds:
            try:
                self._captures.capture(session, self._bound[kind.width].io, kind)
            except Exception as error:  # onnxruntime raises its own types straight from C++
                raise explain(error, f"{self._path} failed on {kind.width} tokens at position 0") from None

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if self.taps is not None:
            self.taps.count = 0
        return self._step(tokens, position)

    def _step(self, tokens: Sequence[int], position: int) -> Logits:
        count = len(tokens)
        still_open(self._session, self._path)
        if count not in self._bound and not (self.has_states and count < self._contract.prompt_chunk):
            # A padded chunk would return the logits of its padding, which comes last.
            self._feed(tokens[:-1], position)
            return self._step(tokens[-1:], position + count - 1)
        logits: Logits = self._run(count, tokens, position, read=True).logits[0]
        return logits

    def feed(self, tokens: Sequence[int], position: int) -> None:
        if self.taps is not None:
            self.taps.count = 0
        self._feed(tokens, position)

    def _feed(self, tokens: Sequence[int], position: int) -> None:
        for width, part, start in self._passes(tokens, position):
            self._run(width, part, start, prompt=True)

    def resumable(self, rows: int) -> int:
        return rows if self._states is None else self._states.resumable(rows)

    def overwrite_rows(self, start: int, value: float) -> None:
        # numpy has no bf16, so the element is given by its bits: the upper half of a float's.
        element = np.float32(value).view(np.uint32) >> 16 if self._contract.precision == "bf16" else value
        for cache in self._caches:
            rows = cache.numpy()
            rows[:, :, start:] = element
            cache.update_inplace(rows)
        if self._states is not None:
            self._states.overwrite_rows(start, value)

    def read_rows(self, end: int) -> list[Rows]:
        return [cache.numpy()[0, :, :end].copy() for cache in self._caches]

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        for cache, part in zip(self._caches, saved, strict=True):  # ONNX Runtime's API copies only whole arrays
            rows = cache.numpy()
            rows[0, :, start:end] = part[:, start:end]
            cache.update_inplace(rows)

    def read_recurrent_states(self, end: int) -> SavedStates:
        assert self._states is not None
        return self._states.read(end)

    def write_recurrent_states(self, saved: SavedStates) -> None:
        assert self._states is not None
        self._states.write(saved)

    def close(self) -> None:
        """Release model, captured graphs and buffers. Closing again does nothing."""
        self._bound.clear()  # bindings before what they bind
        if self.head is not None:
            self.head.close()
        self._caches.clear()
        self._session = self._position_value = self._states = self.taps = self.reader = None

    def _passes(self, tokens: Sequence[int], position: int) -> Iterator[tuple[int, Sequence[int], int]]:
        if not self.has_states:
            yield from feed_passes(tokens, position, self._contract, self._contract.widest_step + 1)
            return
        widest = self._contract.widths[-1]
        for start in range(0, len(tokens), widest):
            part = tokens[start : start + widest]
            yield len(part), part, position + start

    def _run(
        self, width: int, tokens: Sequence[int], position: int, read: bool = False, prompt: bool = False
    ) -> _Bound:
        count = len(tokens)
        check_rows(position + width, self._contract)
        session = still_open(self._session, self._path)
        if width not in self._bound:
            self._bound[width] = self._bind(width)
        bound = self._bound[width]
        certain = self._states.begin(position, count, prompt) if self._states is not None else 0
        bound.tokens[0, :count] = tokens
        bound.tokens[0, count:] = 0
        self._position[0] = position
        try:
            bound.tokens_value.update_inplace(bound.tokens)
            self._position_value.update_inplace(self._position)
            if self.reader is not None:
                self.reader.begin(width, count)
            self._captures.run(session, bound.io, width)
            if read:
                bound.logits_value.update_inplace(bound.device_logits)
                if self.head is not None:
                    self.head.width = width
                if self.reader is not None:
                    self.reader.rows = width
            if self.taps is not None:
                self.taps.take(width, count)
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise explain(error, f"{self._path} failed on {width} tokens at position {position}") from None
        if self._states is not None:
            self._states.finish(certain, position + count)
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
        if self.taps is not None:
            self.taps.bind(io, width)
        if self.reader is not None:
            self.reader.bind(io, width, rows)
        element = ELEMENTS[self._contract.precision][1]
        for side, bind in zip(SIDES, (io.bind_input, io.bind_output), strict=True):
            for (name, _), shape, value in zip(
                self._spec.cache_names(side), self._cache_shapes(), self._caches, strict=True
            ):
                bind(name, *self._where, element, shape, value.data_ptr())
        if self._states is not None:
            self._states.bind(io)
        return _Bound(io, tokens, tokens_value, logits, self._ort.OrtValue.ortvalue_from_numpy(logits), device_logits)

    def _make_states(self, keeps_open: bool) -> OrtStates:
        dtypes = {precision: element for precision, (element, _, _) in ELEMENTS.items()}
        memory = partial(DeviceState, place=self._place)
        on_host = self._ort.OrtValue.ortvalue_from_numpy
        return OrtStates(self._spec, self._contract, keeps_open, dtypes, memory, on_host)

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
        expected |= state_signatures(self._spec, self._contract)
        head = head_shapes(self._spec.features, rows_name)
        hidden = hidden_shapes(len(self._spec.taps) * self._spec.tap_width, self._spec.reads, rows_name)
        logits: dict[str, list[int | str]] = {"logits": [1, rows_name, self.vocab_size]}
        floats: dict[str, Sequence[int | str | None]] = {**logits, **head, **hidden}
        expected |= {name: ("tensor(float)", shape) for name, shape in floats.items()}
        check_graph(self._path, self._session, expected)


OUT_OF_MEMORY = re.compile("Failed to allocate memory|out of memory|ALLOC_FAILED|Available memory of", re.IGNORECASE)
REQUESTED = re.compile(r"requested (?:buffer of size|bytes of) (\d+)")
# The reason in e.g. `... CUDA failure 100: no CUDA-capable device is detected ; GPU=0 ; hostname=... ; file=...`.
FAILURE = re.compile(r"(?:CUDA|CUBLAS|CUDNN) failure \d+: ([^;\n]*)")
# What precedes the reason: a status, or the place and the condition of a failed check.
PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |^.* was false\. ")
NOT_ALL_ON_CUDA = "cannot use the graph capture feature"


def explain(error: Exception, what: str) -> EngineError:
    """The error to raise for an exception of ONNX Runtime. what: what failed, the start of the message."""
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        requested = REQUESTED.search(text)
        size = f", {size_text(int(requested[1]))} more requested" if requested else ""
        return EngineError(
            f"{what}: out of device memory{size}; lower --max-seq-len or --prompt-chunk, or close other programs "
            "that use the "
            "GPU (see nvidia-smi)",
            code="out_of_device_memory",
        )
    if NOT_ALL_ON_CUDA in text:
        return EngineError(
            f"{what}: ONNX Runtime would run parts of it on the CPU, so it cannot be one CUDA graph; "
            "build the bundle again with this version, or use --engine onnxruntime"
        )
    return EngineError(f"{what}: {reason(error)}")


def reason(error: Exception) -> str:
    """CUDA's own message if there is one, else the first line of the exception."""
    text = str(error).strip()
    failure = FAILURE.search(text)
    return failure[1].strip() if failure else PREFIX.sub("", PREFIX.sub("", text.partition("\n")[0]))
