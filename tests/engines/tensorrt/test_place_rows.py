from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.cuda.protocol import Address
from specexport.engines.tensorrt.place_rows import PTX, RowPlacer
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.fake_kernels import KERNELS, place_rows
from support.host_memory import HostMemory
from support.ptx import Kernel
from support.refusals import refused

SHAPES = [(2, 8), (3, 20), (1, 4)]  # heads, bytes of a row, for each tensor
BLOCK = (2, 3, 1)  # small, so that every loop and every guard is reached


@dataclass(frozen=True)
class Case:
    """position + count over the capacity is what the guard is for."""

    count: int
    position: int
    capacity: int


CASES = [Case(1, 0, 3), Case(3, 1, 6), Case(3, 4, 5), Case(2, 5, 5), Case(2, 7, 5), Case(4, 0, 4)]


class Tensors:
    """Sources and caches of random bytes, and the table that tells of them."""

    def __init__(self, case: Case) -> None:
        self.memory, self.case = HostMemory(), case
        random = np.random.default_rng(0)
        entries = []
        for heads, row_bytes in SHAPES:
            sizes = heads * case.count * row_bytes, heads * case.capacity * row_bytes
            addresses = [self.memory.allocate(size) for size in sizes]
            for address, size in zip(addresses, sizes, strict=True):
                self.memory.view(address, size)[:] = random.integers(0, 256, size, np.uint8)
            entries.append((*addresses, heads, row_bytes))
        self.entries = entries
        self.table, self.position = self.memory.allocate(32 * len(entries)), self.memory.allocate(8)
        self.memory.view(self.table, 32 * len(entries)).view(np.uint64)[:] = np.array(entries, np.uint64).ravel()
        self.memory.view(self.position, 8).view(np.int64)[:] = case.position

    def contents(self) -> bytes:
        """Sources and caches: what must not change is compared too."""
        parts = []
        for source, cache, heads, row_bytes in self.entries:
            parts.append(self.memory.view(source, heads * self.case.count * row_bytes))
            parts.append(self.memory.view(cache, heads * self.case.capacity * row_bytes))
        return np.concatenate(parts).tobytes()

    def place_by_the_definition(self) -> None:
        count, position, capacity = self.case.count, self.case.position, self.case.capacity
        for source, cache, heads, row_bytes in self.entries:
            for head in range(heads):
                for row in range(min(count, capacity - position)):
                    to = cache + (head * capacity + position + row) * row_bytes
                    self.memory.view(to, row_bytes)[:] = self.memory.view(
                        source + (head * count + row) * row_bytes, row_bytes
                    )

    def run(self, kernel: Any) -> None:
        blocks = -(-max(heads for heads, _ in SHAPES) * self.case.count // BLOCK[1])
        kernel(
            self.memory, (blocks, len(SHAPES), 1), BLOCK, self.table, self.position, self.case.count, self.case.capacity
        )


def is_right(kernel: Any, case: Case) -> bool:
    expected, tensors = Tensors(case), Tensors(case)
    before = tensors.contents()
    expected.place_by_the_definition()
    try:
        tensors.run(kernel)
    except (AssertionError, KeyError, ZeroDivisionError):  # out of bounds, a register that was never written, no end
        return False
    assert (expected.contents() != before) == (case.position < case.capacity)
    return tensors.contents() == expected.contents()


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_places_rows_as_defined(case: Case) -> None:
    assert is_right(Kernel(PTX, "place_rows").run, case)


@pytest.mark.parametrize("case", CASES)
def test_its_twin_in_numpy_does_the_same(case: Case) -> None:
    assert is_right(place_rows, case)


def test_the_twin_sees_a_launch_that_is_too_small() -> None:
    tensors = Tensors(CASES[0])
    with pytest.raises(AssertionError, match="rows are left out"):
        place_rows(tensors.memory, (1, len(SHAPES), 1), (32, 2, 1), tensors.table, tensors.position, 1, 3)


INSTRUCTIONS = [
    line for line in re.findall(r"^    (?!\.)([^/\n]+;)", PTX, re.MULTILINE) if "cvta" not in line and "ret" not in line
]
MUTANTS = {
    **{f"without {number}: {line}": (line, "") for number, line in enumerate(INSTRUCTIONS)},
    "no row is the first beyond": ("setp.ge.u32 %p0", "setp.gt.u32 %p0"),
    "one row beyond the capacity": ("setp.ge.u64 %p1", "setp.gt.u64 %p1"),
    "one word too many": ("setp.ge.u32 %p2", "setp.gt.u32 %p2"),
    "one row too few": ("setp.ge.u64 %p1, %d7", "setp.ge.u64 %p1, %d8"),
    "head and row exchanged": ("div.u32 %r9", "rem.u32 %r9"),
    "row and head exchanged": ("rem.u32 %r10", "div.u32 %r10"),
    "rows by the heads": ("div.u32 %r9, %r3, %r4", "div.u32 %r9, %r3, %r1"),
    "the cache as long as the source": ("mad.lo.u64 %d10, %d9, %d8", "mad.lo.u64 %d10, %d9, %d4"),
    "to the source": ("mad.lo.u64 %d13, %d10, %d11, %d3", "mad.lo.u64 %d13, %d10, %d11, %d2"),
    "from the cache": ("mad.wide.u32 %d12, %r3, %r2, %d2", "mad.wide.u32 %d12, %r3, %r2, %d3"),
    "from the row of the cache": ("mad.wide.u32 %d12, %r3", "mad.wide.u32 %d12, %r10"),
    "the first tensor only": ("%ctaid.y", "%ctaid.z"),
    "entries too short": ("mad.wide.u32 %d1, %r0, 32", "mad.wide.u32 %d1, %r0, 16"),
    "heads for bytes": ("[%d1+24]", "[%d1+16]"),
    "cache for source": ("%d3, [%d1+8]", "%d3, [%d1]"),
    "threads of a row for rows": ("%r6, %ntid.y", "%r6, %ntid.x"),
    "threads and rows exchanged": ("%r7, %tid.y", "%r7, %tid.x"),
    "rows and threads exchanged": ("%r12, %tid.x", "%r12, %tid.y"),
    "steps of the rows": ("%r13, %ntid.x", "%r13, %ntid.y"),
    "words of two bytes": ("shl.b32 %r11, %r12, 2", "shl.b32 %r11, %r12, 1"),
    "every other word": ("shl.b32 %r14, %r13, 2", "shl.b32 %r14, %r13, 3"),
    "position left out": ("add.u64 %d7, %d6, %d7", "mov.u64 %d7, %d7"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_kernel_with_a_mistake_is_found(mutant: str) -> None:
    """Each instruction is needed, and the cases above tell the difference."""
    old, new = MUTANTS[mutant]
    assert old in PTX
    text = PTX.replace(old, new, 1)
    assert not all(is_right(Kernel(text, "place_rows").run, case) for case in CASES)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_110", "sm_120"])
def test_the_assembler_takes_the_kernel(tmp_path: Path, architecture: str) -> None:
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not installed")
    known = subprocess.run(["ptxas", "--help"], capture_output=True, text=True, check=True).stdout
    if f"'{architecture}'" not in known:
        pytest.skip(f"this ptxas does not know {architecture}")
    (tmp_path / "kernel.ptx").write_text(PTX)
    command = [
        "ptxas",
        f"-arch={architecture}",
        "-warn-spills",
        str(tmp_path / "kernel.ptx"),
        "-o",
        str(tmp_path / "kernel.cubin"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("kernel", [place_rows, Kernel(PTX, "place_rows").run])
@pytest.mark.parametrize("count", [1, 5, 9])
def test_one_launch_places_the_rows_of_every_cache(monkeypatch: pytest.MonkeyPatch, kernel: Any, count: int) -> None:
    """With the grid and the block of the real launch, at a position that changes between replays of one graph."""
    monkeypatch.setitem(KERNELS, "place_rows", kernel)
    device, capacity = FakeDevice(), 12
    shapes = [(2, 8), (3, 136)]  # the second one is more than a warp copies at once
    entries = []
    for heads, row_bytes in shapes:
        addresses = (
            device.allocate(heads * 9 * row_bytes, "new rows"),
            device.allocate(heads * capacity * row_bytes, "a cache"),
        )
        entries.append((*addresses, heads, row_bytes))
    position, host = device.allocate(8, "the position"), device.pinned(8)
    placer = RowPlacer(device, entries, capacity)
    device.synchronize()
    expected = [np.zeros((heads, capacity, row_bytes), np.uint8) for heads, row_bytes in shapes]
    for source, _, heads, row_bytes in entries:
        device.view(source, heads * 9 * row_bytes)[:] = np.random.default_rng(0).integers(
            1, 256, heads * 9 * row_bytes, np.uint8
        )

    def work() -> None:
        device.copy(position, host.ctypes.data, 8)
        placer.enqueue(position, count)

    device.log.clear()
    graph = device.capture(work)
    assert [line for line in device.log if "kernel" in line] == [
        f"captured kernel place_rows ({-(-3 * count // 8)}, 2, 1)"
    ]
    for start in (0, 2, 10):
        host.view(np.int64)[0] = start
        device.launch(graph)
        device.synchronize()
        for cache, (source, _, heads, row_bytes) in zip(expected, entries, strict=True):
            new = device.view(source, heads * count * row_bytes).reshape(heads, count, row_bytes)
            kept = min(count, capacity - start)
            cache[:, start : start + kept] = new[:, :kept]
    for cache, (_, address, heads, row_bytes) in zip(expected, entries, strict=True):
        assert np.array_equal(device.view(address, heads * capacity * row_bytes).reshape(cache.shape), cache)


def test_a_row_that_is_no_whole_number_of_words() -> None:
    with refused(EngineError, "bytes"):
        RowPlacer(FakeDevice(), [(Address(256), Address(512), 1, 6)], 4)
