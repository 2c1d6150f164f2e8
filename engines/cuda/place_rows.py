"""The kernel that writes new rows into the KV caches, for TensorRT before 10.15, whose engines cannot do that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import EngineError
from .device import Address, CudaDevice

_WARP, _ROWS = 32, 8  # threads to a row, rows to a block

# One launch places the rows of all tensors. Entry i of the table, four u64, describes tensor i:
#   source address [heads, count, row], cache address [heads, capacity, row], heads, bytes of a row (a multiple of 4)
# and for each head h and each t < count with position + t < capacity
#   cache[h, position + t] = source[h, t].
# blockIdx.y is the tensor. threadIdx.y and blockIdx.x choose the row r = h * count + t, and the 32 threads of
# threadIdx.x copy it together, four bytes each. The position is read from memory: as an argument it would be fixed in
# the captured graph.
PTX = """
.version 6.0
.target sm_50
.address_size 64

.visible .entry place_rows(
    .param .u64 table,      // address of the entries
    .param .u64 position,   // address of one s64, not negative
    .param .u64 count,      // rows of each head in the source
    .param .u64 capacity    // rows of each head in the cache
)
{
    .reg .pred %p<3>;
    .reg .b32 %r<16>;
    .reg .b64 %d<17>;

    // The entry: d2 source, d3 cache, r1 heads, r2 bytes of a row.
    ld.param.u64 %d1, [table];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r0, %ctaid.y;
    mad.wide.u32 %d1, %r0, 32, %d1;
    ld.global.u64 %d2, [%d1];
    ld.global.u64 %d3, [%d1+8];
    ld.global.u32 %r1, [%d1+16];
    ld.global.u32 %r2, [%d1+24];
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;

    // r3 the row, r4 count; those beyond heads * count have nothing to do.
    mov.u32 %r5, %ctaid.x;
    mov.u32 %r6, %ntid.y;
    mov.u32 %r7, %tid.y;
    mad.lo.u32 %r3, %r5, %r6, %r7;
    ld.param.u64 %d4, [count];
    cvt.u32.u64 %r4, %d4;
    mul.lo.u32 %r8, %r1, %r4;
    setp.ge.u32 %p0, %r3, %r8;
    @%p0 bra done;

    // r9 = h, r10 = t.
    div.u32 %r9, %r3, %r4;
    rem.u32 %r10, %r3, %r4;

    // d7 = position + t, the row within the head's part of the cache; nothing is written beyond the capacity.
    ld.param.u64 %d5, [position];
    cvta.to.global.u64 %d5, %d5;
    ld.global.u64 %d6, [%d5];
    cvt.u64.u32 %d7, %r10;
    add.u64 %d7, %d6, %d7;
    ld.param.u64 %d8, [capacity];
    setp.ge.u64 %p1, %d7, %d8;
    @%p1 bra done;

    // d12 = source + r * bytes, d13 = cache + (h * capacity + position + t) * bytes.
    cvt.u64.u32 %d9, %r9;
    mad.lo.u64 %d10, %d9, %d8, %d7;
    cvt.u64.u32 %d11, %r2;
    mad.wide.u32 %d12, %r3, %r2, %d2;
    mad.lo.u64 %d13, %d10, %d11, %d3;

    // Bytes r11 = 4 * threadIdx.x, then every 4 * blockDim.x on.
    mov.u32 %r12, %tid.x;
    shl.b32 %r11, %r12, 2;
    mov.u32 %r13, %ntid.x;
    shl.b32 %r14, %r13, 2;
next:
    setp.ge.u32 %p2, %r11, %r2;
    @%p2 bra done;
    cvt.u64.u32 %d14, %r11;
    add.u64 %d15, %d12, %d14;
    add.u64 %d16, %d13, %d14;
    ld.global.u32 %r15, [%d15];
    st.global.u32 [%d16], %r15;
    add.u32 %r11, %r11, %r14;
    bra next;

done:
    ret;
}
"""


class RowPlacer:
    """Writes the new rows of all caches of a model with one launch."""

    def __init__(self, device: CudaDevice, entries: Sequence[tuple[Address, Address, int, int]], capacity: int) -> None:
        """entries: for each tensor the address of its new rows `[heads, count, row]`, the address of its cache
        `[heads, capacity, row]`, heads, and bytes per row, a multiple of 4. Raises `EngineError` for other row sizes.
        """
        if odd := [row_bytes for *_, row_bytes in entries if row_bytes % 4]:
            raise EngineError(f"a cache row of {odd[0]} bytes cannot be placed; it must be a multiple of 4")
        size = 32 * len(entries)
        self._table = device.allocate(size, "the table of new rows")
        mirror = device.pinned(size)
        mirror.view(np.uint64)[:] = np.array(entries, np.uint64).ravel()
        device.copy(self._table, mirror.ctypes.data, size)
        self._launch = device.kernel(PTX, "place_rows")
        self._tensors, self._capacity = len(entries), capacity
        self._heads = max(heads for _, _, heads, _ in entries)

    def enqueue(self, position: Address, count: int) -> None:
        """Enqueue the writing of `count` rows per head. position: address of the int64 that holds the first row's
        position. Rows beyond the capacity are dropped.
        """
        blocks = -(-self._heads * count // _ROWS)
        self._launch((blocks, self._tensors, 1), (_WARP, _ROWS, 1), (self._table, position, count, self._capacity))
