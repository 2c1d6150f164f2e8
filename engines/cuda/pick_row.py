"""The kernel that copies one row of several, chosen on the device, whose columns may go to other places.

Of a draft that reads hidden states: its first pass of a round has as many rows as it may need, of which the last true
one counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .device import Address, CudaDevice

_THREADS = 256

# target[i] = source[row * columns + places[i]] for each i < count, -infinity where places[i] is `columns` or more. The
# row is read from memory: as an argument it would be fixed in the captured graph.
PTX = """
.version 6.0
.target sm_50
.address_size 64

.visible .entry pick_row(
    .param .u64 target,     // address of `count` numbers of 4 bytes
    .param .u64 source,     // address of rows of `columns` numbers
    .param .u64 row,        // address of one s64, not negative
    .param .u64 places,     // address of `count` u32
    .param .u64 count,
    .param .u64 columns
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %d<15>;

    // d1 = i; those beyond `count` have nothing to do.
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    cvt.u64.u32 %d1, %r3;
    ld.param.u64 %d2, [count];
    setp.ge.u64 %p0, %d1, %d2;
    @%p0 bra done;

    // d3 = places[i], r5 what is written.
    shl.b64 %d4, %d1, 2;
    ld.param.u64 %d5, [places];
    cvta.to.global.u64 %d5, %d5;
    add.u64 %d5, %d5, %d4;
    ld.global.u32 %r4, [%d5];
    cvt.u64.u32 %d3, %r4;
    mov.u32 %r5, 4286578688;
    ld.param.u64 %d6, [columns];
    setp.ge.u64 %p1, %d3, %d6;
    @%p1 bra write;

    ld.param.u64 %d7, [row];
    cvta.to.global.u64 %d7, %d7;
    ld.global.u64 %d8, [%d7];
    mad.lo.u64 %d9, %d8, %d6, %d3;
    shl.b64 %d10, %d9, 2;
    ld.param.u64 %d11, [source];
    cvta.to.global.u64 %d11, %d11;
    add.u64 %d12, %d11, %d10;
    ld.global.u32 %r5, [%d12];

write:
    ld.param.u64 %d13, [target];
    cvta.to.global.u64 %d13, %d13;
    add.u64 %d14, %d13, %d4;
    st.global.u32 [%d14], %r5;

done:
    ret;
}
"""


class RowPicker:
    """Copies a row `[columns] float32`, by default as it is."""

    def __init__(self, device: CudaDevice, columns: int, places: NDArray[np.int64] | None = None) -> None:
        """places `[count]`: for each number of the copy, the column that it comes from, negative for none."""
        chosen = np.arange(columns) if places is None else np.where(places < 0, columns, places)
        self._count, self._columns = len(chosen), columns
        self._places = device.allocate(4 * self._count, "the columns of a row")
        mirror = device.pinned(4 * self._count)
        mirror.view(np.uint32)[:] = chosen
        device.copy(self._places, mirror.ctypes.data, 4 * self._count)
        self._launch = device.kernel(PTX, "pick_row")

    def enqueue(self, to: Address, rows: Address, row: Address) -> None:
        """Enqueue the copy. row: the address of the int64 that says which of `rows`."""
        blocks = -(-self._count // _THREADS)
        arguments = (to, rows, row, self._places, self._count, self._columns)
        self._launch((blocks, 1, 1), (_THREADS, 1, 1), arguments)
