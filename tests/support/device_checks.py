"""What every `Device` must do, seen through its own methods alone: run on a real GPU, and on the fake one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from specexport.engines.cuda.device import ALIGNMENT, Address, CudaDevice
from specexport.engines.cuda.pick_row import RowPicker
from specexport.engines.cuda.place_rows import PTX, RowPlacer
from specexport.engines.cuda.replay import Replay
from specexport.engines.cuda.staging import Page
from specexport.errors import EngineError

Bytes = NDArray[np.uint8]
KIB = 1 << 10


def sent(device: CudaDevice, content: NDArray[Any]) -> Address:
    """Device memory that holds `content`."""
    host = device.pinned(content.nbytes)
    host[:] = np.ascontiguousarray(content).view(np.uint8).ravel()
    address = device.allocate(content.nbytes, "a check")
    device.copy(address, host.ctypes.data, content.nbytes)
    device.synchronize()
    return address


def received(device: CudaDevice, address: int, size: int) -> Bytes:
    host = device.pinned(size)
    device.copy(host.ctypes.data, address, size)
    device.synchronize()
    return host


def random_bytes(size: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


# Memory.


def memory_is_zeros_and_aligned(device: CudaDevice) -> None:
    for size in (1, 255, 257, 300 * KIB):
        address, host = device.allocate(size, "a check"), device.pinned(size)
        assert address % ALIGNMENT == host.ctypes.data % ALIGNMENT == 0
        assert not host.any()
        assert not received(device, address, size).any()


def memory_is_counted(device: CudaDevice) -> None:
    before, total = device.memory()
    device.allocate(64 * KIB * KIB, "a check")
    after, again = device.memory()
    assert 0 < after <= before - 64 * KIB * KIB
    assert total == again >= before


def too_much_memory_is_one_error(device: CudaDevice) -> None:
    _, total = device.memory()
    with pytest.raises(EngineError, match="out of device memory for the target's cache: "):
        device.allocate(2 * total, "the target's cache")
    assert received(device, sent(device, random_bytes(8)), 8).tolist() == random_bytes(8).tolist(), "it goes on"


def copies_go_in_every_direction_and_in_order(device: CudaDevice) -> None:
    content = random_bytes(100 * KIB)
    first = sent(device, content)
    second, back = device.allocate(content.size, "a check"), device.pinned(content.size)
    device.fill(second, 7, content.size, 1)
    device.copy(second, first + 256, content.size - 256)
    device.copy(back.ctypes.data, second, content.size)
    device.synchronize()
    assert np.array_equal(back[:-256], content[256:])
    assert set(back[-256:].tolist()) == {7}


def a_fill_writes_the_low_bits(device: CudaDevice) -> None:
    for width, dtype in ((1, np.uint8), (2, np.uint16), (4, np.uint32)):
        address = device.allocate(16, "a check")
        device.fill(address + width, 0x1122334455, 2, width)
        low = 0x1122334455 & ((1 << 8 * width) - 1)
        assert received(device, address, 16).view(dtype)[:4].tolist() == [0, low, low, 0]


def pages_are_sent_and_received(device: CudaDevice) -> None:
    arrays = [(np.int64, 3), (np.float32, 70), (np.uint8, 1)]
    source, target = (Page(device, "a check", arrays) for _ in range(2))
    for slot in source.slots:
        slot.host[:] = np.arange(slot.host.size) + 1
    source.send()
    for one, other in zip(source.slots, target.slots, strict=True):
        device.copy(other.at(1) if other.host.size > 1 else other.address, one.address, one.host.nbytes)
        device.synchronize()
    target.receive()
    device.synchronize()
    assert target.slots[0].host.tolist() == [0, 1, 2]
    assert target.slots[1].host.tolist() == [0, *range(1, 70)]
    assert target.slots[2].host.tolist() == [1]


# Graphs.


def a_graph_is_replayed_on_what_the_memory_then_holds(device: CudaDevice) -> None:
    address, source, back = device.allocate(KIB, "a check"), device.pinned(KIB), device.pinned(KIB)

    def work() -> None:
        device.copy(address, source.ctypes.data, KIB)
        device.fill(address, 9, 4, 1)
        device.copy(back.ctypes.data, address, KIB)

    source[:] = 1
    graph = device.capture(work)
    device.synchronize()
    assert not back.any(), "capturing runs nothing"
    for seed in range(5):
        source[:] = random_bytes(KIB, seed)
        device.launch(graph)
        device.synchronize()
        assert back.tolist() == [9] * 4 + source[4:].tolist()


def graphs_are_replayed_in_any_order(device: CudaDevice) -> None:
    address = device.allocate(4, "a check")
    graphs = [device.capture(lambda value=value: device.fill(address, value, 4, 1)) for value in (1, 2, 3)]
    for index in (2, 0, 1, 1, 0):
        device.launch(graphs[index])
        assert received(device, address, 4).tolist() == [index + 1] * 4


def many_launches_are_waited_for_once(device: CudaDevice) -> None:
    """Each replay moves the bytes on by one place: none may be lost, none may overtake."""
    size, times = 512, 300
    address, scratch = sent(device, random_bytes(size)), device.allocate(size, "a check")

    def work() -> None:
        device.copy(scratch, address + 1, size - 1)
        device.copy(scratch + size - 1, address, 1)
        device.copy(address, scratch, size)

    graph = device.capture(work)
    for _ in range(times):
        device.launch(graph)
    assert np.array_equal(received(device, address, size), np.roll(random_bytes(size), -times))


def work_is_replayed_from_its_second_time_on(device: CudaDevice) -> None:
    address, source, replay = device.allocate(4, "a check"), device.pinned(4), Replay(device)
    ran = 0

    def work() -> None:
        nonlocal ran
        ran += 1
        device.copy(address, source.ctypes.data, 4)

    for value in (5, 6, 7):
        source[:] = value
        replay.run("one", work)
        assert received(device, address, 4).tolist() == [value] * 4
    assert ran == 2, "once as it is, once captured"


class StopError(Exception):
    pass


def work_that_fails_ends_the_capture(device: CudaDevice) -> None:
    address = device.allocate(4, "a check")

    def work() -> None:
        device.fill(address, 1, 4, 1)
        raise StopError

    with pytest.raises(StopError):
        device.capture(work)
    assert received(device, address, 4).tolist() == [0] * 4
    device.launch(device.capture(lambda: device.fill(address, 2, 4, 1)))
    assert received(device, address, 4).tolist() == [2] * 4, "the next capture works"


def memory_cannot_be_had_during_a_capture(device: CudaDevice) -> None:
    calls: Iterable[Callable[[], object]] = (lambda: device.allocate(8, "a check"), device.synchronize)
    for call in calls:
        with pytest.raises(EngineError, match="CAPTURE"):  # of the stream, or of an event that it recorded
            device.capture(lambda call=call: call() and None)
        address = device.allocate(4, "a check")
        device.launch(device.capture(lambda address=address: device.fill(address, 2, 4, 1)))
        assert received(device, address, 4).tolist() == [2] * 4, "the next capture works"


# Threads and time.


def another_thread_may_call(device: CudaDevice) -> None:
    """As a server does, whose threads differ from the one that loaded."""
    address = sent(device, random_bytes(8))
    graph = device.capture(lambda: device.fill(address, 3, 4, 1))
    found: list[object] = []

    def work() -> None:
        try:
            device.launch(graph)
            found.append(received(device, address, 8).tolist())
        except EngineError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[3] * 4 + random_bytes(8)[4:].tolist()]


def time_is_that_of_the_work(device: CudaDevice) -> None:
    size = 32 * KIB * KIB
    address = device.allocate(size, "a check")

    def fills(times: int) -> None:
        for _ in range(times):
            device.fill(address, 1, size, 1)

    fills(1)
    device.synchronize()
    few, many = device.elapsed(lambda: fills(1)), device.elapsed(lambda: fills(50))
    assert 0 < few < many


# The kernel.


def rows_are_placed_as_in_numpy(device: CudaDevice) -> None:
    """At positions that change between the replays of one graph; the last ones run over the capacity."""
    for shapes, capacity, count in (
        ([(2, 8), (3, 136)], 12, 5),
        ([(1, 4)], 4, 1),
        ([(8, 256)] * 16, 512, 9),
        ([(2, 64), (32, 1024)], 70, 64),
    ):
        _place(device, shapes, capacity, count)


def _place(device: CudaDevice, shapes: list[tuple[int, int]], capacity: int, count: int) -> None:
    """shapes: heads and bytes of a row, of each tensor."""
    news = [random_bytes(heads * count * row, seed) for seed, (heads, row) in enumerate(shapes)]
    caches = [random_bytes(heads * capacity * row, 1000 + seed) for seed, (heads, row) in enumerate(shapes)]
    addresses = [(sent(device, new), sent(device, cache)) for new, cache in zip(news, caches, strict=True)]
    entries = [(*pair, *shape) for pair, shape in zip(addresses, shapes, strict=True)]
    placer, position = RowPlacer(device, entries, capacity), Page(device, "the position", [(np.int64, 1)])

    def work() -> None:
        position.send()
        placer.enqueue(position.slots[0].address, count)

    work()
    device.synchronize()
    graph = device.capture(work)
    for cache, new, (heads, row) in zip(caches, news, shapes, strict=True):
        _place_in_numpy(cache.reshape(heads, capacity, row), new.reshape(heads, count, row), 0)
    for start in (capacity // 3, capacity - count, capacity - 1, capacity):
        position.slots[0].host[:] = start
        device.launch(graph)
        device.synchronize()
        for cache, new, (heads, row), (_, address) in zip(caches, news, shapes, addresses, strict=True):
            _place_in_numpy(cache.reshape(heads, capacity, row), new.reshape(heads, count, row), start)
            assert np.array_equal(received(device, address, cache.size), cache), (shapes, capacity, count, start)


def _place_in_numpy(cache: Bytes, new: Bytes, start: int) -> None:
    kept = max(0, min(new.shape[1], cache.shape[1] - start))
    cache[:, start : start + kept] = new[:, :kept]


def a_row_is_picked_as_in_numpy(device: CudaDevice) -> None:
    """Rows that change between the replays of one graph; numbers stay, go elsewhere, or are left out."""
    for columns, places in ((5, None), (1000, None), (700, np.arange(1300) * 3 % 900 - 200)):
        rows = np.random.default_rng(columns).normal(size=(4, columns)).astype(np.float32)
        source, picker = sent(device, rows), RowPicker(device, columns, places)
        chosen = np.arange(columns) if places is None else places
        there = (chosen >= 0) & (chosen < columns)
        target, row = device.allocate(4 * len(chosen), "a check"), Page(device, "the row", [(np.int64, 1)])

        def work(
            picker: RowPicker = picker, target: Address = target, source: Address = source, row: Page = row
        ) -> None:
            row.send()
            picker.enqueue(target, source, row.slots[0].address)

        work()
        device.synchronize()
        graph = device.capture(work)
        for index in (0, 3, 1):
            row.slots[0].host[:] = index
            device.launch(graph)
            device.synchronize()
            expected = np.where(there, rows[index][np.where(there, chosen, 0)], -np.inf)
            assert np.array_equal(received(device, target, 4 * len(chosen)).view(np.float32), expected)


def a_kernel_that_is_not_there_is_one_error(device: CudaDevice) -> None:
    with pytest.raises(EngineError, match="refused cuModuleGetFunction: CUDA_ERROR_NOT_FOUND"):
        device.kernel(PTX, "place_columns")


CHECKS: dict[str, Callable[[CudaDevice], None]] = {
    name: found
    for name, found in list(vars().items())
    if getattr(found, "__annotations__", None) == {"device": "CudaDevice", "return": "None"}
}
