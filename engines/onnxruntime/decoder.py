"""A model graph on ONNX Runtime's CPU provider: caches and each of the contract's widths are bound once.

A step writes its tokens into a bound array, runs, and returns the bound logits: nothing is allocated or bound
again. Caches are numpy arrays bound as both `past` and `present`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ...bundle import CacheLayer, Contract, ModelSpec
from ...errors import EngineError
from ..base import Logits, RunGraph, check_rows
from .graphs import DIALECTS, check_graph, open_session, still_open
from .hidden import OrtReader, OrtTaps
from .host_memory import NUMPY_DTYPES, CacheRows, HostMemory
from .signatures import model_signatures
from .states import OrtStates
from .trees import ANCESTOR, DEPTH, OrtTrees

if TYPE_CHECKING:
    import onnxruntime as ort


@dataclass(frozen=True)
class _Binding:
    """Everything that is bound for one number of tokens and one number of columns."""

    io: ort.IOBinding
    tokens: NDArray[np.int64]  # [T]
    logits: Logits  # [rows, vocab]
    new: list[CacheRows]  # in the dialect `rows`, by cache: [1, num_kv_heads, T, head_dim]


@dataclass(frozen=True)
class DecoderOptions:
    """threads: 0 for one per core within the CPU limit. keeps_open: whether states can be rolled back over several
    passes, as a draft's must be (`OpenRows`). fuse: runs the graph that fuses the hidden states that the model reads,
    where it has one. caches: another decoder's, that the graph reads.
    """

    threads: int = 0
    keeps_open: bool = False
    fuse: RunGraph | None = None
    caches: Sequence[CacheRows] = ()


class OrtDecoder(HostMemory):
    """A model graph of any dialect, with its KV cache in numpy arrays. Implements `Decoder`.

    Raises `EngineError` for bf16 or a graph that cannot be loaded, and `BundleError` for a graph that does not match
    the manifest.
    """

    confidence: Callable[[], float] | None = None  # see `OpenedDraft`
    writes = True  # whether the graph gives its caches back

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        contract: Contract,
        dialect: str = "ort",
        options: DecoderOptions | None = None,
    ) -> None:
        options = options or DecoderOptions()
        if contract.precision not in NUMPY_DTYPES:
            raise EngineError(
                f"{path} is in {contract.precision}, for which ONNX Runtime has few CPU kernels; "
                "run it with --engine tensorrt, tensorrt-rtx or onnxruntime-cuda, or build it with --precision fp16 "
                "or fp32"
            )
        self.vocab_size, self.has_states = spec.vocab_size, spec.has_states
        self.spec, self._path, self._contract = spec, path, contract
        self._dtype = NUMPY_DTYPES[contract.caches]
        self._places_rows = dialect == "rows"
        self.taps = OrtTaps(len(spec.taps) * spec.tap_width, contract) if spec.taps else None
        self.reader = self._open_reader(options.fuse)
        # How many cache rows a pass may read; the operators of ONNX Runtime's dialects need no such input.
        self._spans = () if dialect in DIALECTS else contract.spans
        self._session: ort.InferenceSession | None = open_session(path, options.threads)
        self._check(self._session)
        import onnxruntime as ort

        self._value = ort.OrtValue.ortvalue_from_numpy  # aliases the array, no copy
        self._position = np.zeros(1, np.int64)
        self._position_value = self._value(self._position)
        self._tokens = np.zeros(contract.capacity, np.int64)
        self._columns = np.arange(contract.capacity)
        self._logits = np.zeros((contract.widest_step, spec.vocab_size), np.float32)
        own = [self._rows(layer, contract.capacity) for _, layer in spec.cache_names("past") if not options.caches]
        self._caches = [*options.caches, *own]
        self._cache_values = [self._value(array) for array in self._caches]
        self._trees = OrtTrees() if contract.tree_rows else None
        if spec.has_states:
            in_place = dialect in DIALECTS
            self._states = OrtStates(spec, contract, options.keeps_open, NUMPY_DTYPES, self._value, in_place)
        self._bindings = {
            (width, span): self._bind(width, span) for width in contract.widths for span in self._spans or (0,)
        }
        self._other = (0, 0)  # width and span of the binding that is not the contract's

    def _open_reader(self, fuse: RunGraph | None) -> OrtReader | None:
        return OrtReader(self.spec.reads, self._contract, fuse) if self.spec.reads is not None else None

    def caches_of(self, layers: Sequence[int]) -> list[CacheRows]:
        """Keys and values of these layers, as `DecoderOptions.caches` takes them."""
        by_name = {name: rows for (name, _), rows in zip(self.spec.cache_names("past"), self._caches, strict=True)}
        return [by_name[f"past.{layer}.{half}"] for layer in layers for half in ("key", "value")]

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        return self._run(tokens, position, False)

    def step_tree(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> Logits:
        assert self._trees is not None, "the bundle was built without trees"
        self._bound(len(tokens), position + len(tokens))
        with self._trees.as_tree(len(tokens), parents):
            return self._run(tokens, position, False)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self._run(tokens, position, True)

    def _bound(self, count: int, end: int) -> _Binding:
        size = (count, self._contract.span(end) if self._spans else 0)
        binding = self._bindings.get(size)
        if binding is None:  # of a prompt's last chunk: only the last of these widths is kept, 30 us make another
            self._bindings.pop(self._other, None)
            if self._trees is not None:
                self._trees.forget(self._other[0])
            self._other, binding = size, self._bind(*size)
            self._bindings[size] = binding
        return binding

    def _run(self, tokens: Sequence[int], position: int, prompt: bool) -> Logits:
        count = len(tokens)
        end = position + count
        check_rows(end, self._contract)
        session = still_open(self._session, self._path)
        bound = self._bound(count, end)
        bound.tokens[:] = tokens
        self._position[0] = position
        start = self._states.begin(position, count, prompt) if self._states is not None else 0
        try:
            session.run_with_iobinding(bound.io)
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise EngineError(
                f"{self._path} failed on {count} tokens at position {position}: {str(error).splitlines()[0]}"
            ) from None
        if self._places_rows:
            for array, new in zip(self._caches, bound.new, strict=True):
                array[:, :, position:end] = new
        if self._states is not None:
            self._states.finish(start, end)
        if self.taps is not None:
            self.taps.count = count
        if self.reader is not None:
            self.reader.rows = len(bound.logits)
        return bound.logits

    def close(self) -> None:
        """Release model, caches and bindings. Closing again does nothing."""
        self._bindings.clear()
        self._cache_values.clear()
        self._caches.clear()
        self._states = None
        self._session = None

    def _rows(self, layer: CacheLayer, count: int) -> CacheRows:
        return np.zeros((1, layer.num_kv_heads, count, layer.head_dim), self._dtype)

    def _bind(self, width: int, span: int) -> _Binding:
        rows = width if width <= self._contract.widest_step else 1
        tokens, logits = self._tokens[:width], self._logits[:rows]
        io = still_open(self._session, self._path).io_binding()
        io.bind_ortvalue_input("tokens", self._value(tokens[None]))
        io.bind_ortvalue_input("position", self._position_value)
        if span:
            io.bind_ortvalue_input("columns", self._value(self._columns[:span]))
        io.bind_ortvalue_output("logits", self._value(logits[None]))
        if self.taps is not None:
            self.taps.bind(io, self._value, width)
        if self.reader is not None:
            self.reader.bind(io, self._value, width, rows)
        if self._trees is not None:
            self._trees.bind(io, self._value, width)
        new = [self._rows(layer, width) for _, layer in self.spec.cache_names("new")] if self._places_rows else []
        written = [self._value(array) for array in new] or self._cache_values
        for (past, _), value in zip(self.spec.cache_names("past"), self._cache_values, strict=True):
            io.bind_ortvalue_input(past, value)
        if self.writes:
            for (name, _), value in zip(self.spec.cache_names(self._side), written, strict=True):
                io.bind_ortvalue_output(name, value)
        if self._states is not None:
            self._states.bind(io)
        return _Binding(io, tokens, logits, new)

    @property
    def _side(self) -> Literal["new", "present"]:
        """Which outputs the graph has for the caches: only the new rows, or the whole caches."""
        return "new" if self._places_rows else "present"

    def _check(self, session: ort.InferenceSession) -> None:
        """Check the graph's inputs and outputs against the contract. Raises `BundleError`."""
        expected = model_signatures(self.spec, self._contract, "past", *((self._side,) if self.writes else ()))
        if self._spans:
            expected["columns"] = None
        if self._contract.tree_rows:
            expected |= dict.fromkeys((DEPTH, ANCESTOR))
        check_graph(self._path, session, expected)
