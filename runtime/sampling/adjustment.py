"""What changes logits before the temperature: bias, bans, penalties, and the minimum length."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from .distribution import Row
from .parameters import SamplingParameters


class LogitAdjustment:
    """Counts the tokens of the sequence, so that every row is adjusted by the tokens before it.

    Order: logit bias, repetition penalty (Keskar et al. 2019, arXiv 1909.05858, section 4.1; prompt and output),
    frequency and presence penalty (output), then bans, and stop tokens below the minimum length.
    """

    def __init__(
        self, parameters: SamplingParameters, prompt: Sequence[int], stop_tokens: Collection[int], vocab_size: int
    ) -> None:
        self._parameters = parameters
        self._prompt = np.zeros(vocab_size, np.bool_)
        self._prompt[np.asarray(prompt, np.int64)] = True
        self._output = np.zeros(vocab_size, np.int32)  # how often each token was emitted
        self._emitted = 0
        self._biased = np.fromiter(parameters.logit_bias, np.int64)
        self._bias = np.fromiter(parameters.logit_bias.values(), np.float32)
        self._banned = np.asarray(parameters.banned_tokens or (), np.int64)
        self._stops = np.array([token for token in stop_tokens if 0 <= token < vocab_size], np.int64)

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` are now output."""
        np.add.at(self._output, np.asarray(tokens, np.int64), 1)
        self._emitted += len(tokens)

    def __call__(self, logits: Row, drafted: Sequence[int]) -> Row:
        """An adjusted copy of the logits `[vocab]` (a draft may have fewer) that follow the output and then
        `drafted`.
        """
        row, size = logits.copy(), len(logits)
        known = self._biased < size
        row[self._biased[known]] += self._bias[known]
        output = self._output
        if len(drafted):
            output = output.copy()
            np.add.at(output, np.asarray(drafted, np.int64), 1)
        self._penalise(row, output[:size])
        row[self._banned[self._banned < size]] = -np.inf
        if self._emitted + len(drafted) < (self._parameters.min_new_tokens or 0):
            row[self._stops[self._stops < size]] = -np.inf
        return row

    def _penalise(self, row: Row, output: NDArray[np.int32]) -> None:
        parameters = self._parameters
        if (repetition := parameters.repetition_penalty or 1.0) != 1.0:
            seen = np.flatnonzero(self._prompt[: len(row)] | (output > 0))
            logits, penalty = row[seen], np.float32(repetition)
            row[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
        if parameters.frequency_penalty or parameters.presence_penalty:
            used = np.flatnonzero(output)
            row[used] -= np.float32(parameters.frequency_penalty) * output[used] + np.float32(
                parameters.presence_penalty
            )
