"""What the kernels of `engines/` compute, in numpy: run in their place where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

Dim = tuple[int, int, int]


def place_rows(memory: Any, grid: Dim, block: Dim, table: int, position: int, count: int, capacity: int) -> None:
    """memory: gives the bytes at an address, by `view(address, size)`.

    Grid and block must reach every row of every tensor.
    """
    entries = memory.view(table, 32 * grid[1]).view(np.uint64).reshape(-1, 4).tolist()
    start = int(memory.view(position, 8).view(np.int64)[0])
    for source, cache, heads, row_bytes in entries:
        assert grid[0] * block[1] >= heads * count, "rows are left out"
        new = memory.view(source, heads * count * row_bytes).reshape(heads, count, row_bytes)
        rows = memory.view(cache, heads * capacity * row_bytes).reshape(heads, capacity, row_bytes)
        kept = max(0, min(count, capacity - start))
        rows[:, start : start + kept] = new[:, :kept]


KERNELS = {"place_rows": place_rows}
