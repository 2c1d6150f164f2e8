"""The session's sequence, and how much of it each cache holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...bundle import NO_DRAFT
from ...engines.base import Rows
from .cached_decoder import CachedDecoder
from .hidden_rows import HiddenDecoder
from .prompt_cache import PromptCache, StateCheckpoint, shared_prefix

# If a prompt diverges from an earlier one at least so many tokens after the place that it continues from, prefill stops
# there, for later prompts to continue from. That takes one additional pass, once, and saves at least a pass of so many
# rows each time.
MIN_CHECKPOINT_GAP = 16


@dataclass(frozen=True)
class _CacheHit:
    """What the host has of a sequence for one decoder, whose cache has the first `there` rows of it.

    end: rows after which a pass can continue with it. parting: number of tokens that the sequence shares with an
    earlier one.
    """

    there: int
    end: int
    rows: Sequence[Rows]
    place: StateCheckpoint | None
    parting: int


def _restore(cached: CachedDecoder, hit: _CacheHit) -> None:
    if hit.end <= cached.rows:
        return
    if hit.end > hit.there:
        cached.decoder.write_rows(hit.rows, hit.there, hit.end)
    if hit.place is not None:
        cached.rows = 0  # an interrupt leaves unknown states
        cached.decoder.write_recurrent_states(hit.place.states)
    cached.resume(hit.end)


@dataclass
class Context:
    """One sequence and the caches that hold it.

    drafts: those that are open, by name, the bundle's first draft before the others, which keep no rows between
    sequences except those of a common prefix. drafts_with: the one that the request drafts with.

    Invariant between rounds: `rows` of every decoder are the rows of `tokens[:rows]`. Rolling back lowers `rows`,
    nothing else: the next write overwrites what lies beyond. If a decoder's states cannot be rolled back that far, it
    has no rows; what it lacks is fed again, from the nearest place on that `prompt_cache` has.

    readers: drafts of the request that read the target's hidden states; taps: gives those of its last pass.

    salt: the sequence's, see `SamplingParameters.cache_salt`. prompt_cache: stores rows that the next sequence
    overwrites, if anything does. restored: target rows that the last `start` got back from there.
    """

    target: CachedDecoder
    drafts: dict[str, CachedDecoder] = field(default_factory=dict)
    drafts_with: str = NO_DRAFT
    tokens: list[int] = field(default_factory=list)
    salt: str | None = None
    prompt_cache: PromptCache | None = None
    restored: int = 0
    readers: Sequence[HiddenDecoder] = ()
    taps: Callable[[], NDArray[np.float32]] | None = None

    @property
    def decoders(self) -> tuple[CachedDecoder, ...]:
        """The decoders that `prompt_cache` stores, by index: the target and the first draft."""
        return self.every_decoder[:2]

    @property
    def every_decoder(self) -> tuple[CachedDecoder, ...]:
        return (self.target, *self.drafts.values())

    @property
    def draft(self) -> CachedDecoder | None:
        """The cache that the request drafts with, None without a draft model."""
        return self.drafts.get(self.drafts_with)

    def start(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Make `prompt` the sequence; returns how many of its tokens already have target rows.

        `restored` of these came back from `prompt_cache`. Sequences of different salts share no rows.
        """
        common = shared_prefix(self.tokens, prompt) if salt == self.salt else 0
        hit: list[_CacheHit] = []
        if self.prompt_cache is not None:
            for cached in self.decoders:
                if isinstance(cached, HiddenDecoder):  # what waits is not stored, and states go back little
                    cached.catch_up(self.tokens, cached.reach)
            hit = self._find(self.prompt_cache, prompt, salt, common)  # first: room may have to be made
            for index in range(len(self.decoders)):
                self._mark(index)
            held = [(cached.decoder, cached.rows) for cached in self.decoders]
            self.prompt_cache.save(self.tokens, self.salt, held, common)
        for cached in self.every_decoder:  # first: an interrupt in between must not leave rows of other tokens
            cached.keep((min(common, cached.last(prompt)) if cached.decoder.has_states else common) - cached.ahead)
        self.tokens, self.salt = list(prompt), salt
        kept = self.target.rows
        for index, (cached, part) in enumerate(zip(self.decoders, hit, strict=bool(hit))):
            _restore(cached, part)
            self._set_places(index, part.parting)
        # The last token is fed by the first round, whose logits continue the prompt.
        self.target.keep(len(prompt) - 1)
        self.target.on_feed = self.take if self.readers else None
        for reader in self.readers:
            reader.keep(len(prompt) - 2)  # its first pass has a row to write, at least
            self.target.keep(reader.reach)  # where it lacks hidden states, the target gives them again
        self.restored = max(0, self.target.rows - kept)
        return self.target.rows

    def _find(self, prompt_cache: PromptCache, prompt: Sequence[int], salt: str | None, common: int) -> list[_CacheHit]:
        """What the host has of `prompt`, by decoder. common: tokens that it shares with the sequence."""
        saved, shared = prompt_cache.longest(prompt, salt)
        hit = []
        for index, cached in enumerate(self.decoders):
            there, place = max(0, min(cached.rows, common - cached.ahead)), None
            rows = saved.rows[index] if saved is not None else ()
            end = max(there, min(shared - cached.ahead, saved.counts[index]) if saved is not None else 0)
            if cached.decoder.has_states:
                place, end = prompt_cache.nearest(index, prompt[: min(end, cached.last(prompt))], salt)
            hit.append(_CacheHit(there, end, rows, place, max(common, shared)))
        return hit

    def _set_places(self, index: int, parting: int) -> None:
        """Where prefill stops to copy states: at the prompt's end, and where it diverges from an earlier one."""
        cached = self.decoders[index]
        if not cached.decoder.has_states:
            return
        end = cached.last(self.tokens)
        cached.at_place = partial(self._mark, index)
        cached.checkpoints = (parting, end) if cached.rows + MIN_CHECKPOINT_GAP <= parting < end else (end,)

    def _mark(self, index: int) -> None:
        """Keep a decoder's states as they are now, if it has any."""
        cached, decoder = self.decoders[index], self.decoders[index].decoder
        # A failed pass leaves rows without states.
        known = cached.rows > 0 and decoder.resumable(cached.rows) == cached.rows
        if self.prompt_cache is not None and decoder.has_states and known:
            shared = cached.rows in cached.checkpoints[:-1]
            self.prompt_cache.mark(index, decoder, self.tokens[: cached.rows], self.salt, shared)

    def take(self, position: int, count: int) -> None:
        """Give the drafts that read them the target's hidden states of its last pass, whose first `count` rows are
        those of the sequence from `position` on.
        """
        if self.readers and self.taps is not None:
            hidden = self.taps()[:count]
            for reader in self.readers:
                reader.take(self.tokens, position, hidden)

    def keep(self, rows: int) -> None:
        for cached in self.every_decoder:
            cached.keep(rows - cached.ahead)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.keep(length)

    def forget(self) -> None:
        """Start from nothing, with clean caches: a NaN in a dead row could still poison the rows that mask it."""
        if self.prompt_cache is not None:
            self.prompt_cache.forget(self.tokens, self.salt)
        self.truncate(0)
        for cached in self.every_decoder:
            cached.decoder.overwrite_rows(0, 0.0)
