"""ONNX Runtime on the CPU: one shared thread pool, caches bound in place, one binding a width made once.

The pool is the process's: once a bundle is loaded, every other ONNX Runtime session of the process must set
`SessionOptions.use_per_session_threads = False` too.

A step writes its tokens into a bound array, runs, and returns the bound logits: nothing is allocated or bound
again. Caches are numpy arrays bound as both `past` and `present`; see docs/architecture.md for the measurements.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle, Contract, ModelSpec
from ..errors import BundleError, EngineError, ParameterError
from .base import Availability, Engine, Logits, RunGraph

if TYPE_CHECKING:
    import onnxruntime as ort

NAME = "onnxruntime"
DIALECT = "ort"


def availability() -> Availability:
    if importlib.util.find_spec("onnxruntime") is None:
        return Availability(False, "onnxruntime is not installed", "pip install 'specexport[onnxruntime]'")
    try:
        import onnxruntime as ort
    except ImportError as error:  # a shared library that is missing, or made for another system
        reason = str(error).partition("\n")[0]
        return Availability(False, f"onnxruntime is installed, but cannot be imported: {reason}", "install it again")
    return Availability(True, f"onnxruntime {ort.__version__}, CPU")


def load(bundle: Bundle, threads: int = 0) -> Engine:
    """Load both models; `threads` 0 leaves the number to ONNX Runtime (one a physical core)."""
    if not 0 <= threads <= 1024:
        raise ParameterError(f"threads is {threads}; it must be 0 (the engine's choice) or from 1 to 1024")
    manifest = bundle.manifest

    def decoder(spec: ModelSpec) -> OrtDecoder:
        if DIALECT not in spec.graphs:
            raise BundleError(f"{bundle.root} has no {DIALECT} graph of {spec.source}; build the bundle again")
        return OrtDecoder(bundle.path(spec.graphs[DIALECT]), spec, manifest.contract, threads)

    draft = decoder(manifest.draft) if manifest.draft else None
    return Engine(NAME, DIALECT, decoder(manifest.target), draft, partial(open_graph, threads=threads))


def open_graph(path: Path, threads: int = 0) -> RunGraph:
    """A graph of verification rules, for proofs: the CPU's own loop uses their numpy twins."""
    session = _session(path, threads)
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(names, dict(arrays)), strict=True))


@cache
def _shared_pool(threads: int) -> None:
    """One pool for every session of the process: two that spin against each other double the verify time."""
    import onnxruntime as ort

    if _shared_pool.cache_info().currsize:
        raise EngineError("ONNX Runtime's thread pool is already made with another number of threads; use one number a process")
    ort.set_global_thread_pool_sizes(threads, 1)


def _session(path: Path, threads: int) -> ort.InferenceSession:
    import onnxruntime as ort

    _shared_pool(threads)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own types straight from C++
        raise EngineError(f"ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class _Width:
    """Everything bound for one number of tokens."""

    binding: ort.IOBinding
    tokens: NDArray[np.int64]  # [T]
    logits: Logits  # [rows, vocab]


class OrtDecoder:
    """A model graph of either dialect with its cache in numpy arrays. Implements `Decoder`."""

    def __init__(self, path: Path, spec: ModelSpec, contract: Contract, threads: int = 0) -> None:
        self.vocab_size = spec.vocab_size
        self._path = path
        self._contract = contract
        self._session = _session(path, threads)
        self._check(path, spec)
        import onnxruntime as ort

        self._value = ort.OrtValue.ortvalue_from_numpy  # aliases the array, no copy
        self._position = np.zeros(1, np.int64)
        self._tokens = np.zeros(contract.capacity, np.int64)
        self._logits = np.zeros((contract.widest_step, spec.vocab_size), np.float32)
        self._caches = [
            np.zeros((1, layer.num_kv_heads, contract.capacity, layer.head_dim), np.float32) for _, layer in spec.cache_names("past")
        ]
        self._position_value = self._value(self._position)
        self._cache_values = [
            (past, present, self._value(array))
            for (past, _), (present, _), array in zip(spec.cache_names("past"), spec.cache_names("present"), self._caches, strict=True)
        ]
        self._widths = {width: self._bind(width) for width in contract.widths}

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        count = len(tokens)
        assert position + count <= self._contract.capacity, "a write beyond the capacity would be lost in silence"
        width = self._widths.get(count)
        if width is None:
            width = self._widths[count] = self._bind(count)
        width.tokens[:] = tokens
        self._position[0] = position
        try:
            self._session.run_with_iobinding(width.binding)
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise EngineError(f"{self._path} failed on {count} tokens at position {position}: {str(error).splitlines()[0]}") from None
        return width.logits

    def overwrite_rows(self, start: int, value: float) -> None:
        for array in self._caches:
            array[:, :, start:] = value

    def _bind(self, width: int) -> _Width:
        rows = width if width <= self._contract.widest_step else 1
        tokens, logits = self._tokens[:width], self._logits[:rows]
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("tokens", self._value(tokens[None]))
        binding.bind_ortvalue_input("position", self._position_value)
        binding.bind_ortvalue_output("logits", self._value(logits[None]))
        for past, present, value in self._cache_values:
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        return _Width(binding, tokens, logits)

    def _check(self, path: Path, spec: ModelSpec) -> None:
        """The graph's inputs and outputs against the contract. Raises `BundleError`."""
        found = {value.name: value.shape for value in (*self._session.get_inputs(), *self._session.get_outputs())}
        caches = {name: layer for side in ("past", "present") for name, layer in spec.cache_names(side)}
        expected = {"tokens", "position", "logits", *caches}
        if set(found) != expected:
            raise BundleError(
                f"{path} has the inputs and outputs {', '.join(sorted(set(found) ^ expected))} too many or too few; build the bundle again"
            )
        for name, layer in caches.items():
            shape = [1, layer.num_kv_heads, self._contract.capacity, layer.head_dim]
            if list(found[name]) != shape:
                raise BundleError(f"{path}: {name} has the shape {found[name]}, the manifest says {shape}; build the bundle again")
        logits = [1, self._contract.rows_name, spec.vocab_size]
        if list(found["logits"]) != logits:
            raise BundleError(f"{path}: logits have the shape {found['logits']}, the manifest says {logits}; build the bundle again")
