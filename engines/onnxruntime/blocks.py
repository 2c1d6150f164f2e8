"""A draft of whole blocks on the CPU: a graph that writes its caches, one of a block, and one of its chain.

`exporter/tracing/blocks.py` has their inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...bundle import CONFIDENCE, HIDDEN, Contract, ModelSpec
from ...errors import EngineError
from ..base import Logits, check_rows
from .graphs import OrtGraph, Signature, check_graph, open_session, still_open
from .hidden import CHAINED, STATES
from .host_memory import NUMPY_DTYPES, HostMemory
from .signatures import cache_signatures

if TYPE_CHECKING:
    import onnxruntime as ort

Floats = NDArray[np.float32]


class OrtBlockDecoder(HostMemory):
    """Implements `Decoder`, and `Reader` of its own passes.

    A step after `read` writes those rows and runs a block whose anchor is the last of its tokens; it gives the logits
    of the first slot, `[1, m]`. A step after `read_back` gives those of the next slot, after its token.
    """

    has_states = False

    def __init__(
        self,
        graphs: Mapping[str, Path],
        spec: ModelSpec,
        contract: Contract,
        chain: OrtGraph | None,
        threads: int = 0,
    ) -> None:
        """Raises `EngineError` for a graph that cannot be loaded, `BundleError` for one that does not fit."""
        import onnxruntime as ort

        assert spec.reads is not None
        self.vocab_size, self.spec, self.reader, self._chain = spec.vocab_size, spec, self, chain
        self._contract, self._paths = contract, graphs
        self._confidence = 0.0
        self.confidence = (lambda: self._confidence) if chain is not None and CONFIDENCE in chain.names else None
        self.taps = None
        self._value = ort.OrtValue.ortvalue_from_numpy  # aliases the array
        dtype = NUMPY_DTYPES[contract.caches]
        self._caches = [
            np.zeros((1, layer.num_kv_heads, contract.capacity, layer.head_dim), dtype)
            for _, layer in spec.cache_names("past")
        ]
        self._position = np.zeros(1, np.int64)
        self._token = np.zeros(1, np.int64)
        self._columns = np.arange(contract.capacity)
        self._logits = np.zeros((1, spec.reads.slots, spec.vocab_size), np.float32)
        self._slot_states = np.zeros((1, spec.reads.slots, spec.reads.width), np.float32)
        self._hidden = np.zeros((0, 0), np.float32)
        self._slot, self._goes_on = 0, False
        self._sessions: dict[str, ort.InferenceSession | None] = {
            kind: open_session(path, threads) for kind, path in graphs.items()
        }
        self._check()
        if chain is not None:
            chain.check(self._chain_signatures(self.confidence is not None))
        block, context = self._bound("block"), self._bound("context")
        self._bind_outputs(block, context)
        self._block: ort.IOBinding | None = block
        self._context: ort.IOBinding | None = context

    def read(self, hidden: Floats) -> None:
        # Kept until the pass is over: what ONNX Runtime binds does not keep the array.
        self._hidden, self._goes_on = np.ascontiguousarray(hidden), False

    def read_back(self) -> None:
        self._goes_on = True

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        if self._goes_on:
            self._slot += 1
            assert self._slot < self._logits.shape[1], "the block has no more slots"
        else:
            self.feed(tokens, position)
            end = position + len(tokens)
            self._position[0], self._token[0], self._slot = end, tokens[-1], 0
            block = still_open(self._block, self._paths["block"])
            block.bind_ortvalue_input("columns", self._value(self._columns[:end]))
            self._run("block", block)
        logits: Logits = self._logits[0, self._slot : self._slot + 1]
        if self._chain is None:
            return logits
        states = self._slot_states[0, self._slot][None]
        given = self._chain({"tokens": np.array(tokens[-1:], np.int64), STATES: states, "logits": logits})
        if self.confidence is not None:
            self._confidence = float(given[CONFIDENCE][0])
        return given[CHAINED].astype(np.float32, copy=False)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        check_rows(position + len(tokens), self._contract)
        assert len(self._hidden) == len(tokens), "hidden states of other rows were read"
        self._position[0] = position
        context = still_open(self._context, self._paths["context"])
        context.bind_ortvalue_input(HIDDEN, self._value(self._hidden[None]))
        self._run("context", context)

    def close(self) -> None:
        """Release the model and its caches. Closing again does nothing."""
        self._sessions = dict.fromkeys(self._sessions)
        self._block = self._context = None
        self._caches.clear()

    def _run(self, kind: str, io: ort.IOBinding) -> None:
        session = still_open(self._sessions[kind], self._paths[kind])
        try:
            session.run_with_iobinding(io)
        except Exception as error:  # onnxruntime raises its own types straight from C++
            raise EngineError(
                f"{self._paths[kind]} failed at position {self._position[0]}: {str(error).splitlines()[0]}"
            ) from None

    def _bound(self, kind: str) -> ort.IOBinding:
        io = still_open(self._sessions[kind], self._paths[kind]).io_binding()
        io.bind_ortvalue_input("position", self._value(self._position))
        for (name, _), array in zip(self.spec.cache_names("past"), self._caches, strict=True):
            io.bind_ortvalue_input(name, self._value(array))
        return io

    def _bind_outputs(self, block: ort.IOBinding, context: ort.IOBinding) -> None:
        for (name, _), array in zip(self.spec.cache_names("present"), self._caches, strict=True):
            context.bind_ortvalue_output(name, self._value(array))
        block.bind_ortvalue_input("tokens", self._value(self._token))
        block.bind_ortvalue_output("logits", self._value(self._logits))
        if self._chain is not None:
            block.bind_ortvalue_output(STATES, self._value(self._slot_states))

    def _chain_signatures(self, confident: bool) -> dict[str, Signature | None]:
        logits: Signature = ("tensor(float)", [1, self.vocab_size])
        states: Signature = ("tensor(float)", [1, self._slot_states.shape[2]])
        confidence: dict[str, Signature | None] = {CONFIDENCE: None} if confident else {}
        return {"tokens": None, STATES: states, "logits": logits, CHAINED: logits, **confidence}

    def _check(self) -> None:
        """Raises `BundleError`."""
        past = cache_signatures(self.spec, self._contract, "past")
        present = cache_signatures(self.spec, self._contract, "present")
        context: dict[str, Signature | None] = {HIDDEN: None}
        block: dict[str, Signature | None] = {"tokens": None, "columns": None}
        block["logits"] = ("tensor(float)", self._logits.shape)
        if self._chain is not None:
            block[STATES] = ("tensor(float)", self._slot_states.shape)
        for kind, expected in (("block", block), ("context", context | present)):
            session = still_open(self._sessions[kind], self._paths[kind])
            check_graph(self._paths[kind], session, {"position": None} | past | expected)
