"""Convolutions and recurrences by ONNX Runtime's operators: the dialect `ort`.

Each recurrence is two calls of one operator, of rows that become certain and of those after them, so that sums come in
the order of the rows however these are cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out

from ..dialects import OPSETS
from .recurrences import OpenStates, Recurrence

VERSION = OPSETS["ort"]
END = torch.iinfo(torch.int64).max


def convolve(
    states: OpenStates, past: Tensor, new: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """past `[1, ahead + window, channels]`, new `[1, T, channels]` -> `[1, T, channels]`, and what past becomes.

    weight `[channels, ahead + 1]`. activation: silu or none.
    """
    ahead, length, channels = weight.shape[-1] - 1, new.shape[1], new.shape[2]
    counted = states.pending + ahead
    # The only one to read the past, so that the present, which lies in the same memory, is written after it.
    joined = _concat(_rows(past, 0, counted, past.shape[1]), new)
    before = _rows(joined, states.pending, counted, ahead)
    output, _ = symbolic_multi_out(
        "com.microsoft::CausalConvWithState",
        (new, weight.unsqueeze(1), bias, before),
        dict(activation=activation or "none", channels_last=1),
        dtypes=(past.dtype, past.dtype),
        shapes=((1, length, channels), (1, ahead, channels)),
        version=1,
    )
    return output, _padded(states, _rows(joined, states.certain, END, length), past, length)


def advance(
    states: OpenStates, past: dict[str, Tensor], new: Tensor, recurrence: Recurrence
) -> tuple[Tensor, Tensor, Tensor]:
    """new: `[1, T, all parts]`. Outputs `[1, T, heads * value_dim]` of these rows; what rows and state become."""
    length, most = new.shape[1], states.window
    # The CUDA kernel refuses a call without rows. Where none becomes certain, one of zeros leaves the state as it is.
    blank = torch.where(states.certain > 0, 0, 1)
    certain, pending = states.certain + blank, states.pending + blank
    joined = _concat(_zeros(blank, new), _rows(past["rows"], 0, states.pending, most), new)
    taken, left = _rows(joined, 0, certain, most), _rows(joined, certain, END, length)
    first, state = _recur(recurrence, taken, past["state"])
    second, _ = _recur(recurrence, left, state)
    output = _rows(_concat(first, second), pending, END, length)
    return output, _padded(states, left, past["rows"], length), state


def _recur(recurrence: Recurrence, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `[1, n, heads * value_dim]` of `rows [1, n, all parts]`, and the state after them."""
    sizes = [part.shape[-1] for part in recurrence.parts]
    query, key, value, decay, *beta = symbolic_multi_out(
        "Split",
        (rows, torch.tensor(sizes)),
        dict(axis=2),
        dtypes=[rows.dtype] * len(sizes),
        shapes=[(*rows.shape[:2], size) for size in sizes],
        version=VERSION,
    )
    output, after = symbolic_multi_out(
        "com.microsoft::LinearAttention",
        (query, key, value, state, decay, *beta),
        dict(
            q_num_heads=recurrence.key_heads,
            kv_num_heads=recurrence.heads,
            update_rule=recurrence.update_rule,
            scale=recurrence.scale,
        ),
        dtypes=(rows.dtype, state.dtype),
        shapes=((*rows.shape[:2], value.shape[-1]), state.shape),
        version=1,
    )
    return output, after


def _rows(values: Tensor, start: Tensor | int, end: Tensor | int, length: Any) -> Tensor:
    """Rows `start` to `end` of `values [1, n, width]`. length: how many that is, as far as tracing knows."""
    bounds = [torch.tensor([bound]) if isinstance(bound, int) else bound for bound in (start, end)]
    return symbolic(
        "Slice",
        (values, *bounds, torch.tensor([1])),
        dtype=values.dtype,
        shape=(1, length, values.shape[2]),
        version=VERSION,
    )


def _zeros(count: Tensor, like: Tensor) -> Tensor:
    """`[1, count, width]`, with the width of `like`, in fp32."""
    shape = torch.cat([torch.tensor([1]), count, torch.tensor([like.shape[2]])])
    return symbolic("ConstantOfShape", (shape,), dtype=like.dtype, shape=(1, 1, like.shape[2]), version=VERSION)


def _concat(*parts: Tensor) -> Tensor:
    shape = (1, sum(part.shape[1] for part in parts), parts[0].shape[2])
    return symbolic("Concat", parts, dict(axis=1), dtype=parts[0].dtype, shape=shape, version=VERSION)


def _padded(states: OpenStates, rows: Tensor, past: Tensor, length: int) -> Tensor:
    """As many rows as `past` has: what is open, then zeros. length: new rows of the pass."""
    if states.order is None:  # the same in all layers
        none = torch.zeros(4, dtype=torch.int64)
        states.order = torch.cat([none, states.window + states.certain - states.pending - length, none[:1]])
    return symbolic("Pad", (rows, states.order), dtype=rows.dtype, shape=past.shape, version=VERSION)
