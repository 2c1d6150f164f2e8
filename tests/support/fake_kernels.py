"""What the kernels of `engines/` compute, in numpy: run in their place where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from support import cuda_on_host

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


def pick_row(
    memory: Any, grid: Dim, block: Dim, target: int, source: int, row: int, places: int, count: int, columns: int
) -> None:
    """As `place_rows`."""
    assert grid[0] * block[0] >= count, "numbers are left out"
    chosen = memory.view(places, 4 * count).view(np.uint32)
    start = source + 4 * columns * int(memory.view(row, 8).view(np.int64)[0])
    numbers = memory.view(start, 4 * columns).view(np.float32)
    there = chosen < columns
    picked = np.full(count, -np.inf, np.float32)
    picked[there] = numbers[chosen[there]]
    memory.view(target, 4 * count).view(np.float32)[:] = picked


KERNELS = {"pick_row": pick_row, "place_rows": place_rows} | {
    name: cuda_on_host.kernel(name) for name in cuda_on_host.NAMES
}
