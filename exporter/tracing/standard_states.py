"""Convolutions and recurrences in standard operators, without loops: the dialect `onnx`.

TensorRT has no operator for either, and a round that runs as one CUDA graph has no loops. So all rows of a pass, open
ones and new ones, are computed at once, in the chunked form of linear attention (Gated DeltaNet, arXiv 2412.06464;
Mamba-2, arXiv 2405.21060): what a row reads of the rows before it is a product of matrices, and the delta rule, by
which each row's value depends on those before it, is a triangular system. Which rows count comes as data: every shape
depends on the width of the pass alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UnsupportedModelError
from .recurrences import OpenStates, Recurrence

NEVER = -1e9  # exp of it is 0
LARGEST, NAN = torch.finfo(torch.float32).max, math.nan


@dataclass(frozen=True)
class Order:
    """How the rows of a recurrence lie, the same in all layers: the open ones and the T new ones, n together.

    counts `[n] bool`: which were not rejected. taken `[n] bool`: which become certain. causal `[n, n] bool`: row j is
    not after row i. halves: of blocks of 2, 4, ... rows on the diagonal, what lies below and left of their middle.
    """

    counts: Tensor
    taken: Tensor
    causal: Tensor
    halves: tuple[Tensor, ...]

    @classmethod
    def of(cls, states: OpenStates, count: int) -> Order:
        index, most = torch.arange(count), states.window + states.widest
        counts = (index < states.pending) | (index >= states.window)
        rank = torch.where(index < states.window, index, index - states.window + states.pending)
        causal = index[:, None] >= index[None]
        halves, size = [], 1
        while size < most:
            half, block = (torch.tensor([place // part for place in range(most)])[:count] for part in (size, 2 * size))
            halves.append((block[:, None] == block[None]) & (half[:, None] > half[None]))
            size *= 2
        return cls(counts, counts & (rank < states.certain), causal, tuple(halves))


def convolve(
    states: OpenStates, past: Tensor, new: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """past `[1, ahead + window, channels]`, new `[1, T, channels]` -> `[1, T, channels]`, and what past becomes.

    weight `[channels, ahead + 1]`. activation: silu or none.
    """
    ahead, channels = weight.shape[-1] - 1, weight.shape[0]
    joined = torch.cat([past, new], 1)
    before = joined.index_select(1, states.pending + torch.arange(ahead))
    seen = torch.cat([before, new], 1).transpose(1, 2)
    output = functional.conv1d(seen, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)
    kept = states.certain + torch.arange(past.shape[1])
    return functional.silu(output) if activation else output, _picked(joined, kept, states, ahead)


def advance(
    states: OpenStates, past: dict[str, Tensor], new: Tensor, recurrence: Recurrence
) -> tuple[Tensor, Tensor, Tensor]:
    """new: `[1, T, all parts]`. Outputs `[1, T, heads * value_dim]` of these rows; what rows and state become.

    Raises `UnsupportedModelError` for decays by row of the state: between two rows there would be a number for each.
    """
    if recurrence.parts[3].shape[-1] != recurrence.heads:
        raise UnsupportedModelError(
            "a layer lets each row of its state decay by itself, which graphs for TensorRT have no form of; "
            "build it with --engine onnxruntime alone"
        )
    window, before = states.window, past["state"][0]
    joined = torch.cat([past["rows"], new], 1)
    if states.order is None:
        states.order = Order.of(states, joined.shape[1])
    order = states.order
    # Rows that were rejected leave the state as it is: no decay, nothing to add. They may hold anything.
    counted = torch.where(order.counts[:, None], joined[0], 0.0)
    numbers, silent, lost = _spoilt(counted, recurrence, order)
    query, key, value, decay, *beta = _by_head(torch.where(numbers, counted, 0.0), recurrence)
    # How far a row fades on the way to another is a sum of its own: the difference of two long ones has fewer digits.
    steps = torch.where(order.causal & ~order.causal.transpose(0, 1), decay[:, :, None], 0.0)  # [heads, n, n]
    fades = torch.exp(torch.where(order.causal, torch.cumsum(steps, 1), NEVER))
    reached = torch.exp(torch.cumsum(decay, 1))[..., None]
    if beta:
        ahead = beta[0][..., None] * fades * (key @ key.transpose(1, 2))
        value = _solved(ahead, beta[0][..., None] * (value - reached * (key @ before)), order)
    query = query[:, window:]
    seen = (fades[:, window:] * (query @ key.transpose(1, 2))) @ value + reached[:, window:] * (query @ before)
    output = recurrence.scale * seen.transpose(0, 1).reshape(1, new.shape[1], -1)
    left = torch.where(order.taken[:, None], steps, 0.0).sum(1)  # of each row, after all that are taken
    kept = torch.exp(torch.where(order.taken, left, NEVER))[..., None]
    faded = torch.exp(torch.where(order.taken, decay, 0.0).sum(1))[:, None, None]
    state = faded * before + (kept * key).transpose(1, 2) @ value
    rows = _picked(joined, states.certain + torch.arange(window), states, 0)
    return torch.where(silent[window:, None], NAN, output), rows, torch.where(lost, NAN, state)[None]


def _spoilt(counted: Tensor, recurrence: Recurrence, order: Order) -> tuple[Tensor, Tensor, Tensor]:
    """What rows that are no numbers, as where fp16 overflows, do to others: what they do one row at a time.

    counted `[n, all parts]`: zeros in rows that do not count. Returns `[n, all parts] bool`: the numbers; `[n] bool`:
    rows whose output is none, which are those with a query that is none, and all after a row whose other parts are;
    `[1] bool`: whether the state is none. Rows before such a one meet it with weight 0, so it must be masked.
    """
    widths = [part.shape[-1] for part in recurrence.parts]
    # A decay of -inf is a number here: it leaves nothing of the state.
    least = torch.cat(
        [torch.full((width,), -math.inf if place == 3 else -LARGEST) for place, width in enumerate(widths)]
    )
    numbers = (counted >= least) & (counted <= LARGEST)
    wrong = torch.where(numbers, 0.0, 1.0)
    queries, kept = wrong[:, : widths[0]].sum(1), wrong[:, widths[0] :].sum(1)
    silent = order.causal.to(kept.dtype) @ kept + queries > 0
    return numbers, silent, torch.where(order.taken, kept, 0.0).sum(0, keepdim=True) > 0


def _by_head(rows: Tensor, recurrence: Recurrence) -> list[Tensor]:
    """`[n, all parts]` to query, key `[heads, n, key_dim]`, value `[heads, n, value_dim]`, decay, beta `[heads, n]`."""
    query, key, value, *rest = torch.split(rows, [part.shape[-1] for part in recurrence.parts], -1)
    shared = recurrence.heads // recurrence.key_heads

    def heads(part: Tensor, count: int) -> Tensor:
        return part.reshape(part.shape[0], count, -1).transpose(0, 1)

    query, key = (
        heads(part, recurrence.key_heads)[:, None]
        .expand(-1, shared, -1, -1)
        .reshape(recurrence.heads, rows.shape[0], -1)
        for part in (query, key)
    )
    return [query, key, heads(value, recurrence.heads), *(part.transpose(0, 1) for part in rest)]


def _picked(joined: Tensor, ranks: Tensor, states: OpenStates, ahead: int) -> Tensor:
    """Rows of what a pass has joined, by their rank among those that count.

    joined: `[1, ahead + window + T, width]`, of which the first ahead + pending count, and the last T. Beyond the last
    there is the last again, which nothing will count.
    """
    places = torch.where(ranks < states.pending + ahead, ranks, ranks - states.pending + states.window)
    return joined.index_select(1, torch.clamp(places, max=joined.shape[1] - 1))


def _solved(ahead: Tensor, right: Tensor, order: Order) -> Tensor:
    """u of (1 + ahead) u = right; of ahead `[heads, n, n]` only what lies below the diagonal is looked at.

    The inverse of blocks on the diagonal makes that of blocks twice as wide:
    [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]. Powers of `ahead`, which would take as many products, grow
    like binomials where keys repeat.
    """
    first, *rest = (torch.where(half, ahead, 0.0) for half in order.halves)
    inverse = (order.causal & order.causal.transpose(0, 1)).to(ahead.dtype) - first
    for below in rest:
        inverse = inverse - inverse @ (below @ inverse)
    return inverse @ right
