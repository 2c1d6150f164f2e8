"""What every model graph of a bundle takes, gives and keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ..strict import OPTIONAL

Precision = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
ELEMENT_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}

# The shortest part of the cache that attention looks at, where it costs by how much it looks at.
SHORTEST_SPAN = 512


@dataclass(frozen=True)
class Contract:
    """What every model graph of the bundle keeps.

    inputs   `tokens [1, T] int64`, `position [1] int64`, `past.{i}.key/value [1, num_kv_heads, capacity, head_dim]` in
             `precision`; in the dialects `onnx` and `rows` also `columns [C] int64`, 0 to C - 1: the cache rows
             looked at
    outputs  `logits [1, R, vocab] fp32` with R = T for T <= widest_step and R = 1 (the last row) beyond it,
             `present.{i}.key/value`, bound to the same memory as `past`; in the dialect `rows` instead
             `new.{i}.key/value [1, num_kv_heads, T, head_dim]`, which the caller places at `position`

    A draft's graph in the dialect `ort` may have a confidence head (`ModelSpec.features` = F > 0, arXiv 2607.05147).
    Then it also takes the weights `head [F + 1] fp32`, the bias last, and gives, for the rows of the logits, what the
    head reads and its logit:
    `features [1, R, F] fp32` and `confidence [1, R] fp32` = features . head[:F] + head[F].

    A graph whose layers keep states (`CacheLayer.states`) also takes `pending [1] int64`, how many of the open rows
    count, and `certain [1] int64`, how many of these and of the T new ones it takes in for good (see
    docs/architecture.md, "States"). Each state is `past.{i}.{name}` and `present.{i}.{name}`: in the dialect `ort` in
    the same memory, in `onnx` copied there behind the pass.

    Where there are tree rows, the target's graphs also take `depth [T] int64`, how far row i lies behind
    `position` in the text, and `ancestor [T, T] bool`, whether row i sees row j, itself included. Row i lies in cache
    row position + i. A chain has the depths 0 to T - 1 and sees all in front.

    capacity: rows of the cache, the longest sequence. max_draft_tokens: the largest k. prompt_chunk: widest pass.
    tree_rows: most rows of a step beside those of its chain, 0 where no graph takes trees.
    """

    capacity: int
    max_draft_tokens: int
    prompt_chunk: int
    precision: Precision
    tree_rows: int = field(default=0, metadata=OPTIONAL)  # bundles made before there were trees lack it

    def __post_init__(self) -> None:
        if self.max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it must be at least 1")
        if self.tree_rows < 0:
            raise ValueError(f"tree_rows is {self.tree_rows}; it must be 0 (chains only) or more")
        smallest = max(16, 4 * self.widest_step)  # what the proof's schedule walks through
        if self.capacity < smallest:
            raise ValueError(
                f"a capacity of {self.capacity} is too small; "
                f"{self.max_draft_tokens} draft tokens{self._beside} need {smallest} or more"
            )
        if self.prompt_chunk < 1:
            raise ValueError(f"prompt_chunk is {self.prompt_chunk}; it must be at least 1")

    @property
    def _beside(self) -> str:
        return f" and {self.tree_rows} tree rows" if self.tree_rows else ""

    @property
    def widest_step(self) -> int:
        """Most tokens a pass gives logits for: k + 1 and the rows of a tree, and 2 for the first draft step."""
        return max(2, self.max_draft_tokens + 1 + self.tree_rows)

    def of(self, role: Literal["target", "draft"]) -> Contract:
        """What that model's graphs keep: only the target's take trees."""
        return self if role == "target" else replace(self, tree_rows=0)

    @property
    def rows_name(self) -> str:
        """Name of the logits' row dimension: the graph's own word on how wide a step it gives all logits for."""
        return f"at_most_{self.widest_step}_rows"

    @property
    def widths(self) -> tuple[int, ...]:
        """Token widths T that are bound at load; a prompt's last chunk may have any width below prompt_chunk."""
        return (*range(1, self.widest_step + 1), *([self.prompt_chunk] if self.prompt_chunk > self.widest_step else []))

    @property
    def spans(self) -> tuple[int, ...]:
        """The ladder of C, how much of the cache a pass looks at: 512, 1024, ... and the capacity."""
        steps = []
        span = SHORTEST_SPAN
        while span < self.capacity:
            steps.append(span)
            span *= 2
        return (*steps, self.capacity)

    def span(self, end: int) -> int:
        """The least of `spans` that holds rows 0 to `end` - 1."""
        return next(span for span in self.spans if span >= end)


# Inputs of a graph whose layers keep states.
COUNTS = ("pending", "certain")


def is_cache(name: str) -> bool:
    """Whether an input or output `{side}.{i}.{name}` is of keys or values, not of a state."""
    return name.rpartition(".")[2] in ("key", "value")


@dataclass(frozen=True)
class State:
    """One tensor of what a layer keeps beside keys and values, by `part`. W is the contract's widest step.

    `state`   `[1, *sizes]` fp32: what a recurrence has made of all rows that are certain
    `rows`    `[1, W, *sizes]` fp32: what the recurrence reads of the rows that are still open
    `window`  `[1, ahead + W, channels]` in the contract's precision, sizes (ahead, channels): the inputs of a
              convolution over ahead + 1 rows, those that are certain and those that are still open

    index: of several of one kind in a layer.
    """

    part: Literal["state", "rows", "window"]
    sizes: tuple[int, ...]
    index: int = 0

    @property
    def name(self) -> str:
        return f"{self.part}.{self.index}" if self.index else self.part

    @property
    def ahead(self) -> int:
        """Rows that are certain in front of those that are open."""
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

    num_kv_heads: 0 for a layer without attention. head_dim: the wider of the two where a model's differ, as in latent
    attention; the other is padded with zeros.
    """

    num_kv_heads: int
    head_dim: int
    states: tuple[State, ...] = field(default=(), metadata=OPTIONAL)  # bundles made before there were any lack it
