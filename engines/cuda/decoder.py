"""A model on a device as a `Decoder`: static KV caches in its memory, one pass for every width and span."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, ELEMENT_BYTES, Contract, ModelSpec, Role
from ..base import Logits, Rows, SavedStates, check_rows, feed_passes
from .device import Address, CudaDevice
from .hidden import DeviceReader, DeviceTaps, hidden_bindings
from .loaded_graph import Enqueue, LoadedGraph
from .place_rows import RowPlacer
from .replay import Replay
from .staging import Page, Slot
from .states import DeviceStates, pattern


class DeviceDecoder:
    """Implements `Decoder`; `enqueue` is for rounds on the device. All buffers are made once.

    tokens, positions, counts: slots of `inputs` by width; counts are empty without states.
    logits: `[widest step, vocab] float32` on the device, the rows of the last pass.
    taps, reader: of a target whose hidden states are read, and of a draft that reads them.
    suspect: whether the last row of logits that was checked was not finite; cache rows may then not be finite either.
    Raises `EngineError` for too little memory.
    """

    def __init__(
        self,
        role: Role,
        graph: LoadedGraph,
        spec: ModelSpec,
        contract: Contract,
        device: CudaDevice,
        scratch: Address,
        reader: DeviceReader | None = None,
    ) -> None:
        self.vocab_size, self.has_states = spec.vocab_size, spec.has_states
        self._graph, self._contract, self._device, self._scratch = graph, contract, device, scratch
        element = ELEMENT_BYTES[contract.precision]
        # Zeros: a masked row has weight 0, and 0 * NaN would still be NaN.
        self._caches = {
            name: (
                device.allocate(
                    element * layer.num_kv_heads * layer.head_dim * contract.capacity, f"the {role}'s cache"
                ),
                layer,
            )
            for name, layer in spec.cache_names("past")
        }
        self._columns = _columns(device, contract.capacity) if "columns" in graph.inputs else None
        self.logits = device.allocate(4 * contract.widest_step * spec.vocab_size, f"the {role}'s logits")
        logits = device.pinned(4 * contract.widest_step * spec.vocab_size)
        self._host_logits: Logits = logits.view(np.float32).reshape(contract.widest_step, spec.vocab_size)
        self.taps = DeviceTaps(spec, contract, device) if spec.taps else None
        self.reader = reader
        self.states: DeviceStates | None = None
        if spec.has_states:
            self.states = DeviceStates(spec, contract, device, role == "draft", f"the {role}'s states")
        widths, more = contract.widths, len(COUNTS) if spec.has_states else 0
        sizes = [size for width in widths for size in (width, 1, *[1] * more)]
        self.inputs = Page(device, f"the {role}'s inputs", [(np.int64, size) for size in sizes])
        by_kind = [self.inputs.slots[kind :: 2 + more] for kind in range(2 + more)]
        self.tokens: dict[int, Slot] = dict(zip(widths, by_kind[0], strict=True))
        self.positions: dict[int, Slot] = dict(zip(widths, by_kind[1], strict=True))
        self.counts: dict[int, tuple[Slot, ...]] = {
            width: tuple(slots[place] for slots in by_kind[2:]) for place, width in enumerate(widths)
        }
        self._new = {
            name: device.allocate(element * layer.num_kv_heads * layer.head_dim * max(widths), f"the {role}'s new rows")
            for name, layer in spec.cache_names("new")
            if name in graph.outputs
        }
        entries = [
            (self._new[new], self._caches[past][0], layer.num_kv_heads, layer.head_dim * element)
            for (new, layer), (past, _) in zip(spec.cache_names("new"), spec.cache_names("past"), strict=True)
            if new in self._new
        ]
        self._placer = RowPlacer(device, entries, contract.capacity) if entries else None
        self._passes: dict[tuple[int, int], Enqueue] = {}
        self._replay = Replay(device)
        self._staging: NDArray[np.uint8] | None = None
        self.suspect = False

    def enqueue(self, width: int, span: int) -> None:
        """Enqueue a pass over `tokens[width]` at `positions[width]`, which reads the first `span` cache rows, or more
        where the plan has it so.
        """
        span = max(span, self._graph.least("columns", self._contract.widths.index(width)))
        run = self._passes.get((width, span))
        if run is None:
            run = self._passes[width, span] = self._bind(width, span)
        run()
        if self._placer is not None:
            self._placer.enqueue(self.positions[width].address, width)
        if self.states is not None:
            self.states.enqueue()

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        count, widest = len(tokens), self._contract.widest_step
        if count > widest:  # a prompt chunk, of which only the last token's logits are returned
            self.feed(tokens[:-1], position)
            before = self.taps().copy() if self.taps is not None else None
            logits = self.step(tokens[-1:], position + count - 1)
            if self.taps is not None and before is not None:
                self.taps.put_before(before)
            return logits
        with self._device.entered():
            span = self._set(count, tokens, position)
            self._begin(count, position, count, prompt=False)
            fuses = self.reader is not None and self.reader.begin(count, count)
            on_host = [int(slot.host[0]) for slot in self.counts[count]] if self._graph.on_host else []
            self._replay.run(("step", count, span, fuses, *on_host), lambda: self._step(count, span, fuses))
            self._finish()
        if self.reader is not None:
            self.reader.rows = count
        if self.taps is not None:
            self.taps.count = count
        self.suspect = not math.isfinite(self._host_logits[count - 1, 0])
        return self._host_logits[:count]

    def feed(self, tokens: Sequence[int], position: int) -> None:
        done = 0
        for width, part, start in feed_passes(tokens, position, self._contract, pad_from=1):
            with self._device.entered():
                span = self._set(width, part, start)
                self._begin(width, start, len(part), prompt=True)
                fuses = self.reader is not None and self.reader.begin(width, len(part))
                pass_ = partial(self._feed, width, span, fuses)
                if self._graph.on_host:  # a prompt has so many counts that few passes come again
                    pass_()
                    self._device.synchronize()
                else:
                    self._replay.run(("feed", width, span, fuses), pass_)
                if self.taps is not None:
                    self.taps.receive(len(part), done)
                    self._device.synchronize()
                self._finish()
            done += len(part)
        if self.taps is not None:
            self.taps.count = done

    def resumable(self, rows: int) -> int:
        return rows if self.states is None else self.states.resumable(rows)

    def read_recurrent_states(self, end: int) -> SavedStates:
        assert self.states is not None
        with self._device.entered():
            return self.states.read(end)

    def write_recurrent_states(self, saved: SavedStates) -> None:
        assert self.states is not None
        with self._device.entered():
            self.states.write(saved)

    def overwrite_rows(self, start: int, value: float) -> None:
        element, capacity = ELEMENT_BYTES[self._contract.precision], self._contract.capacity
        bits = pattern(value, self._contract.precision)
        with self._device.entered():
            for address, layer in self._caches.values():
                for head in range(layer.num_kv_heads):
                    first = address + (head * capacity + start) * layer.head_dim * element
                    self._device.fill(first, bits, (capacity - start) * layer.head_dim, element)
            if self.states is not None:
                self.states.overwrite_rows(start, value)
            self._device.synchronize()

    def read_rows(self, end: int) -> list[Rows]:
        element = ELEMENT_BYTES[self._contract.precision]
        saved: list[Rows] = []
        with self._device.entered():
            for address, layer in self._caches.values():
                rows = self._staged(layer.num_kv_heads, end, layer.head_dim * element)
                self._copy_rows(rows, address, 0, to_device=False)
                self._device.synchronize()
                saved.append(rows.copy())
        return saved

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        with self._device.entered():
            for (address, _), rows in zip(self._caches.values(), saved, strict=True):
                staged = self._staged(len(rows), end - start, rows.shape[2])
                staged[:] = rows[:, start:end]
                self._copy_rows(staged, address, start, to_device=True)
                self._device.synchronize()  # before the next cache's rows are staged

    def _staged(self, heads: int, count: int, row_bytes: int) -> NDArray[np.uint8]:
        """Page-locked memory for `count` rows of a cache, `[heads, count, bytes]`, shared by all caches."""
        if self._staging is None:
            element = ELEMENT_BYTES[self._contract.precision]
            widest = max(layer.num_kv_heads * layer.head_dim for _, layer in self._caches.values())
            self._staging = self._device.pinned(element * widest * self._contract.capacity)
        return self._staging[: heads * count * row_bytes].reshape(heads, count, row_bytes)

    def _copy_rows(self, staged: NDArray[np.uint8], cache: Address, start: int, to_device: bool) -> None:
        """Enqueue copies between a cache, from row `start` on, and page-locked memory `[heads, rows, bytes]`, one per
        head.
        """
        heads, count, row_bytes = staged.shape
        for head in range(heads):
            here = staged.ctypes.data + head * count * row_bytes
            there = cache + (head * self._contract.capacity + start) * row_bytes
            to, source = (there, here) if to_device else (here, there)
            self._device.copy(to, source, count * row_bytes)

    def prepare(self, position: int) -> None:
        """Before a pass that writes from row `position` on: clear the rows that a suspect pass may have left from there
        on.

        A masked row has weight 0, and 0 * NaN would still be NaN: a rejected draft token whose values overflow fp16
        must not end a request that plain decoding would have continued.
        """
        if self.suspect:
            self.overwrite_rows(position, 0.0)
            self.suspect = False

    def _set(self, width: int, tokens: Sequence[int], position: int) -> int:
        """Put a pass's inputs into their mirrors; returns its span."""
        check_rows(position + width, self._contract)
        self.prepare(position)
        slot = self.tokens[width].host
        slot[: len(tokens)] = tokens
        slot[len(tokens) :] = 0
        self.positions[width].host[0] = position
        return self._contract.span(position + width)

    def _begin(self, width: int, position: int, count: int, prompt: bool) -> None:
        """Set the counts of a pass of `count` tokens, if there are states."""
        if self.states is not None:
            (counts,) = self.states.begin(position, [count], prompt)
            self.set_counts(width, counts)

    def set_counts(self, width: int, counts: Sequence[int]) -> None:
        """Set `pending` and `certain` of the pass of `width` tokens."""
        for slot, count in zip(self.counts[width], counts, strict=True):
            slot.host[0] = count

    def _finish(self) -> None:
        if self.states is not None:
            self.states.finish()

    def _feed(self, width: int, span: int, fuses: bool) -> None:
        self.inputs.send()
        if self.reader is not None and fuses:
            self.reader.fuse(width)
        self.enqueue(width, span)

    def _step(self, width: int, span: int, fuses: bool) -> None:
        self._feed(width, span, fuses)
        if self.taps is not None:
            self.taps.receive(width)
        self._device.copy(self._host_logits.ctypes.data, self.logits, 4 * width * self.vocab_size)

    def _bind(self, width: int, span: int) -> Enqueue:
        addresses = {
            "tokens": self.tokens[width].address,
            "position": self.positions[width].address,
            "logits": self.logits,
        }
        if self._columns is not None:
            addresses["columns"] = self._columns
        for past, (address, _) in self._caches.items():
            addresses[past] = address
            if not self._new:
                addresses[past.replace("past", "present", 1)] = address
        if self.states is not None:
            addresses |= self.states.addresses(self.counts[width])
            on_host = zip(COUNTS, self.counts[width], strict=True)
            addresses |= {name: Address(slot.host.ctypes.data) for name, slot in on_host if name in self._graph.on_host}
        rows = width if width <= self._contract.widest_step else 1
        hidden, inputs, outputs = hidden_bindings(self.taps, self.reader, width, rows)
        shapes = {"tokens": (1, width), "columns": (span,), **inputs}
        given = {"logits": (1, rows, self.vocab_size), **outputs}
        profile = self._contract.widths.index(width)
        return self._graph.bind(profile, shapes, addresses | hidden | self._new, self._scratch, given)

    def warm_up(self) -> None:
        """Capture the passes of prompt chunks at every span, then clear the caches."""
        width = max(self._contract.widths)
        for span in self._contract.spans:
            if span >= width:
                if self.states is not None:
                    self.states.assume(span - width)
                if self.reader is not None:
                    self.reader.read(np.zeros((0, self.reader.given_width), np.float32))
                self.feed([0] * width, span - width)
        self.overwrite_rows(0, 0.0)


def _columns(device: CudaDevice, capacity: int) -> Address:
    address, mirror = device.allocate(8 * capacity, "the row numbers"), device.pinned(8 * capacity)
    mirror.view(np.int64)[:] = np.arange(capacity)
    device.copy(address, mirror.ctypes.data, 8 * capacity)
    device.synchronize()
    return address
