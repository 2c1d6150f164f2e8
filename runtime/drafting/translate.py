"""Drafts whose ids differ from the target's: fewer ids of the same tokenizer, or those of another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...bundle import Bundle, DraftSpec
from ...engines.base import Decoder, Logits
from ...engines.shared_vocabulary import load_maps


class Wrapped:
    """The caches are the decoder's own."""

    def __init__(self, decoder: Decoder) -> None:
        self.has_states = decoder.has_states
        self.resumable, self.overwrite_rows = decoder.resumable, decoder.overwrite_rows
        self.read_rows, self.write_rows = decoder.read_rows, decoder.write_rows
        self.read_recurrent_states, self.write_recurrent_states = (
            decoder.read_recurrent_states,
            decoder.write_recurrent_states,
        )
        self._decoder = decoder


class NarrowDecoder(Wrapped):
    """A draft that lacks the target's last ids (vocabularies are padded to different sizes) reads id 0 for them.

    At worst a wrong draft token: what the draft was fed never decides what the target emits.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.vocab_size = decoder.vocab_size
        super().__init__(decoder)

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        return self._decoder.step(self._known(tokens), position)

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self._decoder.feed(self._known(tokens), position)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        return [token if token < self.vocab_size else 0 for token in tokens]


class TranslatedDecoder(Wrapped):
    """A draft with another tokenizer that reads and writes the target's ids.

    Token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4): logits of the tokens that both know,
    -inf for all others, so that the softmax renormalizes over the intersection. A context token that the draft lacks is
    read as the nearest one that it has.
    """

    def __init__(self, decoder: Decoder, to_draft: NDArray[np.int64], shared: NDArray[np.int64]) -> None:
        """to_draft `[target vocab]`; shared `[2, n]`: target id and draft id of the tokens that both have."""
        self.vocab_size = len(to_draft)
        super().__init__(decoder)
        self._to_draft = to_draft.tolist()
        self._target_ids, draft_ids = shared
        every = np.array_equal(draft_ids, np.arange(decoder.vocab_size))  # as of a cut vocabulary: nothing to gather
        self._draft_ids = None if every else draft_ids
        self._logits = np.full((0, self.vocab_size), -np.inf, np.float32)

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        logits = self._decoder.step([self._to_draft[token] for token in tokens], position)
        if len(self._logits) < len(logits):
            self._logits = np.full((len(logits), self.vocab_size), -np.inf, np.float32)
        translated = self._logits[: len(logits)]
        for row, own in zip(translated, logits, strict=True):  # faster than all rows at once
            row[self._target_ids] = own if self._draft_ids is None else own[self._draft_ids]
        return translated

    def feed(self, tokens: Sequence[int], position: int) -> None:
        self._decoder.feed([self._to_draft[token] for token in tokens], position)


def draft_decoder(bundle: Bundle, draft: DraftSpec, decoder: Decoder, target_size: int) -> Decoder:
    """The draft as a decoder of the target's ids. Raises `BundleError` as `load_maps` does."""
    if (vocabulary := draft.shared_vocabulary) is not None:
        read = target_size if draft.model.reads is not None else decoder.vocab_size  # ids that its embedding has
        maps = load_maps(bundle.path(vocabulary.maps), vocabulary, target_size, decoder.vocab_size, read)
        return TranslatedDecoder(decoder, *maps)
    return decoder if decoder.vocab_size >= target_size else NarrowDecoder(decoder)
