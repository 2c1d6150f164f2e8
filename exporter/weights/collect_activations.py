"""Statistics and samples of the inputs of a model's linear layers, from one pass over calibration tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .layers import LinearLayer, linear_layers, stopped_at_head

# Bounds on the number of input rows kept per group, which aims at a million elements.
SAMPLED_ROWS = (128, 512)
SAMPLED_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False)
class InputGroup:
    """Linear layers that read the same tensor (q, k and v; gate and up), and statistics of that tensor, in fp32.

    largest, mean_magnitude, mean_square: [K], by input channel. rows: [R, K], sampled evenly from the tokens of every
    second batch. elsewhere: [K], the largest magnitudes of the other batches, so that what is fitted to one half can be
    judged on the other. calls: calls of the layers per pass; more than one means that several places share weights.
    """

    layers: tuple[LinearLayer, ...]
    largest: Tensor
    mean_magnitude: Tensor
    mean_square: Tensor
    rows: Tensor
    elsewhere: Tensor
    calls: int

    @property
    def inputs(self) -> int:
        return int(self.largest.shape[0])

    @property
    def tensor_largest(self) -> float:
        """max|x| of the whole tensor."""
        return float(self.largest.max())


@dataclass(frozen=True, eq=False)
class Observations:
    """groups: in the order in which the model calls them. tokens: number of tokens read."""

    groups: tuple[InputGroup, ...]
    tokens: int


@dataclass(eq=False)
class _Sums:
    layers: list[LinearLayer]
    largest: Tensor
    magnitudes: Tensor
    squares: Tensor
    elsewhere: Tensor
    rows: list[Tensor] = field(default_factory=list)
    seen: int = 0
    held_back: int = 0
    calls: int = 0


def observe(model: nn.Module, token_batches: Sequence[Tensor]) -> Observations:
    """Run `model` over token_batches, each [1, T] int64, and collect the inputs of its linear layers.

    Layers that no batch reaches (an expert, an image tower) are in no group. A model in half precision computes in half
    precision unless the caller wraps this in an fp32 context.
    """
    held_back = [len(token_batches) == 1 or index % 2 == 1 for index in range(len(token_batches))]
    watcher = _Watcher(sum(int(batch.shape[-1]) for batch, held in zip(token_batches, held_back, strict=True) if held))
    hooks = [layer.module.register_forward_pre_hook(watcher.hook(layer)) for layer in linear_layers(model)]
    try:
        with stopped_at_head(model) as run:
            for batch, watcher.sampling in zip(token_batches, held_back, strict=True):
                watcher.last.clear()
                run(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return Observations(
        tuple(_group(sums, len(token_batches)) for sums in watcher.sums), sum(batch.numel() for batch in token_batches)
    )


class _Watcher:
    def __init__(self, held_back: int) -> None:
        self.held_back = held_back  # number of tokens that rows are sampled from
        self.sampling = True
        self.sums: list[_Sums] = []
        self.of: dict[str, _Sums] = {}
        # Weak references, since the id of a freed input may be reused.
        self.last: dict[int, tuple[weakref.ref[Tensor], _Sums]] = {}

    def hook(self, layer: LinearLayer) -> Any:
        def watch(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.read(layer, args[0])

        return watch

    def read(self, layer: LinearLayer, tensor: Tensor) -> None:
        known = self.last.get(id(tensor))
        shared = known[1] if known is not None and known[0]() is tensor else None
        sums = self.of.get(layer.path)
        if sums is None:
            if shared is None:
                zeros = torch.zeros(tensor.shape[-1])
                shared = _Sums([], zeros, zeros.clone(), zeros.clone(), zeros.clone())
                self.sums.append(shared)
            self.of[layer.path] = sums = shared
            sums.layers.append(layer)
        if layer is sums.layers[0]:
            self.last[id(tensor)] = (weakref.ref(tensor), sums)
            self.add(sums, tensor.detach().reshape(-1, tensor.shape[-1]).float())

    def add(self, sums: _Sums, rows: Tensor) -> None:
        magnitudes = rows.abs()
        sums.largest = torch.maximum(sums.largest, magnitudes.amax(0))
        sums.magnitudes += magnitudes.sum(0)
        sums.squares += rows.square().sum(0)
        sums.seen += rows.shape[0]
        sums.calls += 1
        if not self.sampling:
            sums.elsewhere = torch.maximum(sums.elsewhere, magnitudes.amax(0))
            return
        fewest, most = SAMPLED_ROWS
        wanted = min(max(SAMPLED_ELEMENTS // rows.shape[1], fewest), most)
        step = max(1, -(-self.held_back // wanted))
        sums.rows.append(rows[-sums.held_back % step :: step].clone())
        sums.held_back += rows.shape[0]


def _group(sums: _Sums, passes: int) -> InputGroup:
    return InputGroup(
        layers=tuple(sums.layers),
        largest=sums.largest,
        mean_magnitude=sums.magnitudes / sums.seen,
        mean_square=sums.squares / sums.seen,
        rows=torch.cat(sums.rows) if sums.rows else sums.largest[None],
        elsewhere=sums.elsewhere if bool(sums.elsewhere.any()) else sums.largest,
        calls=-(-sums.calls // passes),
    )
