"""The kernel that copies a row that the device chose, thread by thread, against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specexport.engines.cuda.pick_row import PTX
from support.fake_kernels import pick_row
from support.host_memory import HostMemory
from support.ptx import Kernel

BLOCK = (4, 1, 1)
COLUMNS, ROWS = 6, 3
PLACES = {
    "as it is": list(range(COLUMNS)),
    "elsewhere": [5, 0, 9, 3, COLUMNS, 1, 2, COLUMNS, 4],  # 9 and COLUMNS are none
    "fewer": [2, 1],
}


class Case:
    def __init__(self, row: int, places: list[int]) -> None:
        self.memory, self.places = HostMemory(), places
        sizes = 4 * len(places) + 8, 4 * COLUMNS * ROWS, 8, 4 * len(places)
        self.target, self.source, self.row, self.index = (self.memory.allocate(size) for size in sizes)
        rng = np.random.default_rng(row)
        self.numbers = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
        self.memory.view(self.source, self.numbers.nbytes)[:] = self.numbers.view(np.uint8).ravel()
        self.memory.view(self.row, 8).view(np.int64)[0] = row
        self.memory.view(self.index, 4 * len(places)).view(np.uint32)[:] = places
        self.memory.view(self.target, sizes[0]).view(np.float32)[:] = 7.0
        self.expected = [self.numbers[row, place] if place < COLUMNS else -np.inf for place in places]

    def run(self, kernel: Any) -> bool:
        """Whether the row is where it belongs, and nothing else was written."""
        grid, count = (-(-len(self.places) // BLOCK[0]), 1, 1), len(self.places)
        try:
            kernel(self.memory, grid, BLOCK, self.target, self.source, self.row, self.index, count, COLUMNS)
        except (AssertionError, KeyError):  # out of bounds, a register that was never written, no end
            return False
        written = self.memory.view(self.target, 4 * count + 8).view(np.float32)
        return written.tolist() == [*map(float, self.expected), 7.0, 7.0]


@pytest.mark.parametrize("row", range(ROWS))
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_the_kernel_and_its_double_copy_the_row_as_defined(row: int, places: list[int]) -> None:
    for kernel in (Kernel(PTX, "pick_row").run, pick_row):
        assert Case(row, places).run(kernel)
