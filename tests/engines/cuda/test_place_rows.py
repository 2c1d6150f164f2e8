from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.cuda import pick_row
from specexport.engines.cuda.place_rows import PTX
from support.host_memory import HostMemory
from support.ptx import Kernel

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


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_110", "sm_120"])
@pytest.mark.parametrize("kernel", [PTX, pick_row.PTX], ids=["place_rows", "pick_row"])
def test_the_assembler_takes_the_kernel(tmp_path: Path, architecture: str, kernel: str) -> None:
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not installed")
    known = subprocess.run(["ptxas", "--help"], capture_output=True, text=True, check=True).stdout
    if f"'{architecture}'" not in known:
        pytest.skip(f"this ptxas does not know {architecture}")
    (tmp_path / "kernel.ptx").write_text(kernel)
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
