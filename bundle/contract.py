"""The contract: inputs, outputs and caches of every model graph of a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ..strict import OPTIONAL

Precision = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}

# The shortest part of the cache that attention reads, in engines whose attention costs time by how much it reads.
SHORTEST_SPAN = 512


@dataclass(frozen=True)
class Contract:
    """Inputs and outputs of every model graph of the bundle.

    inputs   `tokens [1, T] int64`, `position [1] int64`, `past.{i}.key/value [1, num_kv_heads, capacity, head_dim]` in
             the precision `caches`; in the dialects `onnx` and `rows` also `columns [C] int64`, 0 to C - 1: the cache
             rows that attention reads
    outputs  `logits [1, R, vocab] fp32` with R = T for T <= widest_step, and R = 1 (the last row) for wider passes;
             `present.{i}.key/value`, bound to the same memory as `past`; in the dialect `rows` instead
             `new.{i}.key/value [1, num_kv_heads, T, head_dim]`, which the caller writes into the cache at `position`

    The target's graphs may have the output `hidden [1, T, F] fp32`, hidden states of every row, of prompt chunks too
    (`ModelSpec.taps`). The graphs of a draft that reads them (`ModelSpec.reads`) take `hidden [1, T, H] fp32`, made of
    these by its graph `fuse`, or the row before's `feedback [1, R, H] fp32`, an output for the rows of the logits.
    Their `tokens` are those after the rows.

    A graph whose layers keep states (`CacheLayer.states`) also takes `pending [1] int64`, how many of the open rows
    count, and `certain [1] int64`, how many of these and of the T new ones it commits (see docs/architecture.md,
    "States"). Each state is `past.{i}.{name}` and `present.{i}.{name}`: copied there after the pass, or
    in the same memory.

    With tree rows, the target's graphs also take `depth [T] int64`, the distance of row i from `position` in the text,
    and `ancestor [T, T] bool`, whether row i sees row j, itself included. Row i is written to cache row position + i.
    A chain has the depths 0 to T - 1, and each of its rows sees all before it.

    capacity: rows of the cache, the longest sequence. max_draft_tokens: the largest k. prompt_chunk: tokens of the
    widest pass. tree_rows: how many rows a step may have in addition to those of its chain, 0 if no graph takes trees.
    cache_precision: of keys and values, where it is not `precision`.

    Raises `ValueError` for a number that is too small.
    """

    capacity: int
    max_draft_tokens: int
    prompt_chunk: int
    precision: Precision
    tree_rows: int = field(default=0, metadata=OPTIONAL)
    cache_precision: Precision | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it must be at least 1")
        if self.tree_rows < 0:
            raise ValueError(f"tree_rows is {self.tree_rows}; it must be 0 (chains only) or more")
        smallest = max(16, 4 * self.widest_step)  # the rows that the proof's schedule of passes needs
        if self.capacity < smallest:
            raise ValueError(
                f"a capacity of {self.capacity} is too small; "
                f"{self.max_draft_tokens} draft tokens{f' and {self.tree_rows} tree rows' * bool(self.tree_rows)} need "
                f"{smallest} or more"
            )
        if self.prompt_chunk < 1:
            raise ValueError(f"prompt_chunk is {self.prompt_chunk}; it must be at least 1")

    @property
    def caches(self) -> Precision:
        """The type of keys and values."""
        return self.cache_precision or self.precision

    @property
    def widest_step(self) -> int:
        """The most tokens for which a pass returns all logits: k + 1 and the tree rows; at least 2, for the first draft
        step.
        """
        return max(2, self.max_draft_tokens + 1 + self.tree_rows)

    def of(self, role: Literal["target", "draft"]) -> Contract:
        """The contract of that model's graphs: only the target's take trees."""
        return self if role == "target" else replace(self, tree_rows=0)

    @property
    def rows_name(self) -> str:
        """Name of the logits' row dimension, by which a graph states its widest step."""
        return f"at_most_{self.widest_step}_rows"

    @property
    def widths(self) -> tuple[int, ...]:
        """Token widths T that are bound at load; a prompt's last chunk may have any width below prompt_chunk."""
        return (*range(1, self.widest_step + 1), *([self.prompt_chunk] if self.prompt_chunk > self.widest_step else []))

    @property
    def spans(self) -> tuple[int, ...]:
        """The values of C, the number of cache rows that a pass reads: 512, 1024, ... and the capacity."""
        steps = []
        span = SHORTEST_SPAN
        while span < self.capacity:
            steps.append(span)
            span *= 2
        return (*steps, self.capacity)

    def span(self, end: int) -> int:
        """The smallest of `spans` that covers rows 0 to `end` - 1."""
        return next(span for span in self.spans if span >= end)


# Inputs of a graph whose layers keep states.
COUNTS = ("pending", "certain")
# Hidden states, as inputs and outputs: of the target's and the draft's graphs, of the draft's, and of the graph that
# fuses.
HIDDEN, FEEDBACK, FUSED = "hidden", "feedback", "fused"
# An output of a DSpark draft's chain (arXiv 2607.05147): how likely its token is to be accepted, a logit.
CONFIDENCE = "confidence"


def is_cache(name: str) -> bool:
    """Whether an input or output `{side}.{i}.{name}` holds keys or values, not a state."""
    return name.rpartition(".")[2] in ("key", "value")


@dataclass(frozen=True)
class State:
    """One state tensor of a layer, other than keys and values. W is the contract's widest step. By `part`:

    `state`   `[1, *sizes]` fp32: a recurrence's state after all rows that are certain
    `rows`    `[1, W, *sizes]` fp32: the recurrence's inputs of the rows that are still open
    `window`  `[1, ahead + W, channels]` in the contract's precision, sizes (ahead, channels): the inputs of a
              convolution over ahead + 1 rows, those that are certain and those that are still open

    index: tells several of one kind in a layer apart.
    """

    part: Literal["state", "rows", "window"]
    sizes: tuple[int, ...]
    index: int = 0

    @property
    def name(self) -> str:
        return f"{self.part}.{self.index}" if self.index else self.part

    @property
    def ahead(self) -> int:
        """How many certain rows the tensor holds before the open ones."""
        return self.sizes[0] if self.part == "window" else 0

    def shape(self, contract: Contract) -> tuple[int, ...]:
        match self.part:
            case "state":
                return (1, *self.sizes)
            case "rows":
                return (1, contract.widest_step, *self.sizes)
            case "window":
                return (1, self.ahead + contract.widest_step, self.sizes[1])

    def precision(self, contract: Contract) -> Precision:
        return contract.precision if self.part == "window" else "fp32"


@dataclass(frozen=True)
class CacheLayer:
    """Shape of one layer's key and value cache, `[1, num_kv_heads, capacity, head_dim]` each, and its states.

    num_kv_heads: 0 for a layer without attention. head_dim: if keys and values differ in width, as in latent
    attention, the wider of the two; the other is padded with zeros.
    """

    num_kv_heads: int
    head_dim: int
    states: tuple[State, ...] = field(default=(), metadata=OPTIONAL)
