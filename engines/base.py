"""What an engine gives: two decoders, each a model with a static cache that never moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle, Contract, ModelSpec
from ..errors import EngineError

Logits = NDArray[np.float32]
Rows = NDArray[np.generic]  # of one cache, as the engine keeps them


@dataclass(frozen=True, eq=False)
class SavedStates:
    """Recurrent and convolution states on the host, as the engine keeps them: a pass goes on behind `start` to `end`
    rows.
    """

    start: int
    end: int
    arrays: Sequence[NDArray[np.generic]]


class Decoder(Protocol):
    """has_states: whether layers keep more than keys and values."""

    vocab_size: int
    has_states: bool

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        """Write `tokens` into cache rows `position...` and return their logits `[rows, vocab] float32`.

        rows is `len(tokens)` up to the contract's widest step, else 1 (the last token's). The array is a fixed
        buffer: any next step or feed, of whatever width, overwrites it. Rolling back needs no call: pass a smaller
        position next time. `position + len(tokens)` must not exceed the capacity.
        """
        ...

    def feed(self, tokens: Sequence[int], position: int) -> None:
        """The same for tokens whose logits nobody asks for, any number of them up to the contract's prompt chunk.

        Cache rows behind them may be written too, up to the capacity.
        """
        ...

    def resumable(self, rows: int) -> int:
        """The most rows, of the first `rows`, behind which a pass can go on: fewer where states cannot be rolled back.

        0 is always one. Rows are those of the passes so far.
        """
        ...

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill every cache row from `start` on, for proofs that rows beyond the position are never read."""
        ...

    def read_rows(self, end: int) -> list[Rows]:
        """Copies of cache rows 0 to `end` on the host, an array `[heads, end, elements or bytes]` a cache."""
        ...

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        """Put rows `start` to `end` of what `read_rows` gave back in their places."""
        ...

    def read_states(self, end: int) -> SavedStates:
        """A copy of the states on the host. end: rows behind which a pass can go on; what lies beyond is left out.

        Only where `has_states`; so is the next.
        """
        ...

    def write_states(self, saved: SavedStates) -> None:
        """Put back what `read_states` gave. The cache rows below `saved.end` are the caller's to put back."""
        ...


class TakesTrees(Protocol):
    """A decoder whose steps may be trees."""

    def step_tree(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> Logits:
        """As `Decoder.step`, of rows of which the last hang below others. At most the contract's widest step.

        parents: of the last `len(parents)` tokens, the place in `tokens` of the one that each follows; it lies in front
        of its own. All tokens before them are a chain behind `position` rows, and leave that chain's rows in the cache.
        """
        ...


def check_rows(end: int, contract: Contract) -> None:
    """Raises `EngineError` for a pass that would write cache rows up to `end`, beyond the buffers' last one."""
    if end > contract.capacity:
        raise EngineError(
            f"a pass would write {end} cache rows, the capacity is {contract.capacity}; shorten the sequence"
        )


Arrays = Mapping[str, NDArray[np.generic]]
# A graph without a cache: arrays by name in, arrays by name out.
RunGraph = Callable[[Arrays], Arrays]


class Head(Protocol):
    """The confidence head of a draft's graph (`exporter/tracing/confidence_head.py`, arXiv 2607.05147).

    Its weights are zeros until they are set.

    size: F, how many numbers it reads a row. Rows are those of the draft's last `step`; after a `feed` they are
    nobody's.
    """

    size: int

    def set_weights(self, weights: NDArray[np.float32]) -> None:
        """`[F + 1]`, the bias last, for the passes to come. Raises `EngineError` for another number of them."""
        ...

    def confidence(self) -> float:
        """The logit of the last row, not yet calibrated: how sure it is that the token drafted from it is accepted."""
        ...

    def features(self) -> NDArray[np.float32]:
        """What the head read, `[rows, F]`: a fixed buffer, as the logits are."""
        ...


@dataclass(frozen=True)
class Chances:
    """What a sampled round is given; uniforms in [0, 1), float32.

    verification: `token` or `block`. sampling `[4]`: temperature, top_k, top_p, min_p, as `exporter/rules/graphs.py`
    takes them. draft_noise `[k]`: for the draft tokens. noise `[k + 1]`: for acceptance, and last for the token that
    follows.
    """

    verification: str
    sampling: NDArray[np.float32]
    draft_noise: NDArray[np.float32]
    noise: NDArray[np.float32]


@dataclass(frozen=True)
class RoundResult:
    """draft_tokens `[k]`. confidence `[k]`: each one's largest softmax probability, NaN for logits that are no numbers.

    next_token is the vocabulary's size where the target's logits were no numbers.
    """

    draft_tokens: list[int]
    confidence: list[float]
    num_accepted: int
    next_token: int


class Rounds(Protocol):
    """Whole rounds on the device: draft, verify and accept in one launch.

    drafts: whether they can draft, or only decode plainly.
    """

    drafts: bool

    def run(self, tokens: Sequence[int], num_draft_tokens: int, chances: Chances | None) -> RoundResult:
        """Continue `tokens`, greedily without `chances`.

        The caches hold all but the last token, the draft's all but the last two.

        Two tokens at least for a round that drafts. `len(tokens) + num_draft_tokens` must not exceed the capacity.
        """
        ...


def nothing() -> None:
    pass


@dataclass(frozen=True)
class OpenedDraft:
    """head: of its graph, None where it has none."""

    decoder: Decoder
    head: Head | None


@dataclass(frozen=True)
class Engine:
    """open_draft: opens a draft beside the bundle's first, None where the engine runs the first alone."""

    name: str
    dialect: str  # of the graphs it runs
    target: Decoder
    draft: Decoder | None = None
    # for the proof of compiled rules; None for one it never runs
    open_graph: Callable[[Path], RunGraph | None] | None = None
    rounds: Rounds | None = None  # where the device can do whole rounds
    close: Callable[[], None] = nothing  # gives back what the engine holds
    head: Head | None = None  # of the draft, where its graph has one
    device: int = 0  # which GPU, where it runs on one
    open_draft: Callable[[ModelSpec], OpenedDraft] | None = None
    trees: TakesTrees | None = None  # the target, where the bundle was built for trees


@dataclass(frozen=True)
class Availability:
    """Whether this host can run an engine: `detail` is what was found, `remedy` what to do when it cannot."""

    usable: bool
    detail: str
    remedy: str = ""


class EngineModule(Protocol):
    def load(self, bundle: Bundle, threads: int, device: int) -> Engine: ...

    def availability(self) -> Availability: ...
