"""The interface of an engine: up to two decoders, each a model with a static KV cache that never moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..bundle import Bundle, Contract, ModelSpec
from ..errors import EngineError
from .rules import RuleSpec

Logits = NDArray[np.float32]
Rows = NDArray[np.generic]  # rows of one cache, in the engine's own format


@dataclass(frozen=True, eq=False)
class SavedStates:
    """A copy of recurrent and convolution states on the host, in the engine's own format.

    A pass can continue from any position from `start` to `end`.
    """

    start: int
    end: int
    arrays: Sequence[NDArray[np.generic]]


class Decoder(Protocol):
    """A model with its KV cache. has_states: whether layers keep states in addition to keys and values."""

    vocab_size: int
    has_states: bool

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        """Write `tokens` into the cache rows from `position` on and return their logits `[rows, vocab] float32`.

        rows is `len(tokens)` up to the contract's widest step, else 1 (the last token's). The array is a fixed buffer:
        the next step or feed, of any width, overwrites it. Rollback needs no call: pass a smaller position next time.
        Raises `EngineError` if `position + len(tokens)` exceeds the capacity.
        """
        ...

    def feed(self, tokens: Sequence[int], position: int) -> None:
        """Like `step`, but without logits, for any number of tokens up to the contract's prompt chunk.

        Cache rows after theirs may be overwritten too, up to the capacity.
        """
        ...

    def resumable(self, rows: int) -> int:
        """The largest position up to `rows` from which a pass can continue; smaller if states cannot be rolled back.

        rows: at most as many as the passes so far have written. A pass can always start at 0.
        """
        ...

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill every cache row from `start` on with `value`, for proofs that rows beyond the position are not read."""
        ...

    def read_rows(self, end: int) -> list[Rows]:
        """Copies of cache rows 0 to `end` on the host: one array `[heads, end, elements or bytes]` per cache."""
        ...

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        """Write rows `start` to `end` of what `read_rows` returned back into the caches."""
        ...

    def read_recurrent_states(self, end: int) -> SavedStates:
        """A copy of the states on the host. end: a position from which a pass can continue; later rows are left out.

        This and `write_recurrent_states` exist only with `has_states`.
        """
        ...

    def write_recurrent_states(self, saved: SavedStates) -> None:
        """Restore what `read_recurrent_states` returned. The caller restores the cache rows below `saved.end`."""
        ...


class TakesTrees(Protocol):
    """A decoder whose steps may be trees."""

    def step_tree(self, tokens: Sequence[int], parents: Sequence[int], position: int) -> Logits:
        """Like `Decoder.step`, for a tree of at most as many tokens as the contract's widest step.

        parents: for each of the last `len(parents)` tokens, the index in `tokens` of the token that it follows, smaller
        than its own. All tokens before those are a chain that starts at `position`; the cache rows of the chain are the
        same as after `step`.
        """
        ...


def check_rows(end: int, contract: Contract) -> None:
    """Raises `EngineError` if `end`, where the rows of a pass would end, is beyond the capacity."""
    if end > contract.capacity:
        raise EngineError(
            f"a pass would write {end} cache rows, the capacity is {contract.capacity}; shorten the sequence"
        )


def feed_passes(
    tokens: Sequence[int], position: int, contract: Contract, pad_from: int
) -> Iterator[tuple[int, Sequence[int], int]]:
    """Yields each pass: its width, its tokens (at most as many), and the position of the first.

    pad_from: from this many tokens on, a pass is padded to a prompt chunk. The padding's cache rows are overwritten
    later, so only the capacity can forbid it; passes are then at most as wide as a step.
    """
    widest, chunk, capacity = contract.widest_step, contract.prompt_chunk, contract.capacity
    while tokens:
        padded = len(tokens) >= pad_from and position + chunk <= capacity
        count = min(len(tokens), chunk if padded else widest)
        yield chunk if padded else count, tokens[:count], position
        tokens, position = tokens[count:], position + count


Arrays = Mapping[str, NDArray[np.generic]]
# Runs a graph without a cache: input arrays by name to output arrays by name.
RunGraph = Callable[[Arrays], Arrays]


class Reader(Protocol):
    """Gives a draft that reads the target's hidden states (`ModelSpec.reads`) those of its next pass."""

    def read(self, hidden: NDArray[np.float32]) -> None:
        """The next pass, of `len(hidden)` tokens, reads the hidden states of these rows of the target, `[T, F]`."""
        ...

    def read_back(self) -> None:
        """The next pass, of one token, reads what the last row of the last `step` gave back."""
        ...


@dataclass(frozen=True)
class RoundNoise:
    """Sampling parameters and noise of one sampled round. The noise is uniform in [0, 1), float32.

    verification: `token` or `block`. sampling `[4]`: as in `engines/rules.py`. draft_noise `[k]`: for the draft tokens.
    noise `[k + 1]`: for acceptance, the last one for the token that follows.
    """

    verification: str
    sampling: NDArray[np.float32]
    draft_noise: NDArray[np.float32]
    noise: NDArray[np.float32]


@dataclass(frozen=True)
class RoundResult:
    """The result of one round on the device.

    draft_tokens `[k]`. confidence `[k]`: the largest softmax probability at each of them, NaN if its logits were NaN.
    next_token: the token after the accepted ones; the vocabulary's size if the target's logits were NaN.
    """

    draft_tokens: list[int]
    confidence: list[float]
    num_accepted: int
    next_token: int


class Rounds(Protocol):
    """Runs whole rounds on the device: draft, verify and accept in one launch.

    drafts: whether rounds can draft; if not, they only decode plainly.
    """

    drafts: bool

    def run(
        self,
        tokens: Sequence[int],
        num_draft_tokens: int,
        noise: RoundNoise | None,
        hidden: NDArray[np.float32] | None = None,
    ) -> RoundResult:
        """Continue `tokens`; greedy if `noise` is None.

        The target's cache must hold all tokens but the last one, the draft's all but the last two. A round that drafts
        needs at least two tokens. Raises `EngineError` if there are fewer, or if `len(tokens) + num_draft_tokens`
        exceeds the capacity.

        hidden: of a draft that reads the target's hidden states, those of the last rows of `tokens[:-1]`, which its
        cache lacks: 1 to `num_draft_tokens + 1` of them. The round writes these rows.
        """
        ...


def nothing() -> None:
    pass


@dataclass(frozen=True)
class OpenedDraft:
    """confidence: of a draft that was trained to tell how likely its tokens are to be accepted (DSpark, arXiv
    2607.05147): the uncalibrated logit of its last `step`. reader: of a draft that reads the target.
    """

    decoder: Decoder
    confidence: Callable[[], float] | None = None
    reader: Reader | None = None


@dataclass(frozen=True)
class Engine:
    """A bundle's models, loaded by one engine.

    draft: the bundle's first. open_draft: opens another one; None if the engine runs only the first.
    """

    name: str
    dialect: str  # of the graphs that it runs
    target: Decoder
    draft: OpenedDraft | None = None
    open_rule: Callable[[RuleSpec], RunGraph] | None = None  # for their proof; None if rounds do not run on the device
    rounds: Rounds | None = None  # None if the device cannot run whole rounds
    close: Callable[[], None] = nothing  # releases everything that the engine holds
    device: int = 0  # which GPU; 0 for engines on the CPU
    open_draft: Callable[[ModelSpec], OpenedDraft] | None = None
    trees: TakesTrees | None = None  # the target, if the bundle was built with tree rows
    # hidden states `[T, F]` of the target's last pass, a fixed buffer, if its graph gives them (`ModelSpec.taps`)
    taps: Callable[[], NDArray[np.float32]] | None = None
    warm_up: Callable[[], None] | None = None  # does what the first pass would wait for; all cached rows are lost


@dataclass(frozen=True)
class Availability:
    """Whether this host can run an engine. detail: what was found. remedy: what to do if it cannot."""

    usable: bool
    detail: str
    remedy: str = ""


class EngineModule(Protocol):
    """What the module of an engine provides; see `load_engine` and `Availability`."""

    def load(self, bundle: Bundle, threads: int, device: int) -> Engine: ...

    def availability(self) -> Availability: ...
