"""Rounds that run completely on the device, one launch each.

The host sends noise and tokens, and reads back a few integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Engine, RoundNoise, Rounds
from ..drafting.names import model_of
from ..drafting.rounds import RoundOutcome, RoundPlan, Source
from ..sampling.distribution import Probabilities
from ..sampling.parameters import ON_DEVICE, SamplingParameters
from ..sampling.rules import NonFiniteLogitsError, noise_streams
from ..state.context import Context
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics


def device_rounds(engine: Engine, parameters: SamplingParameters, drafter: str | None) -> Rounds | None:
    """The engine's own rounds, if they can serve the request: without a drafter, or with the draft model.

    Otherwise the host runs the rounds, pass by pass: for looked-up drafts, for whatever changes logits (a grammar,
    penalties, bias, bans, a minimum length), for log-probabilities, for verification rules that the device lacks
    (greedy requests need none, whatever they name), and for a draft model whose ids are not the target's.
    """
    rounds = engine.rounds
    on_host = parameters.verification not in ON_DEVICE and not parameters.greedy
    if rounds is None or parameters.needs_host or on_host:
        return None
    return rounds if drafter is None or (drafter == model_of(drafter) and rounds.drafts) else None


class DeviceRound:
    """Draws the same noise from the same seed as `SamplingRule`: both give the same tokens up to rounding."""

    def __init__(
        self, context: Context, rounds: Rounds, parameters: SamplingParameters, drafts: bool, statistics: Statistics
    ) -> None:
        self._context, self._rounds, self._drafts, self._statistics = context, rounds, drafts, statistics
        self._vocab_size = context.target.decoder.vocab_size
        self._verification = None if parameters.greedy else parameters.verification
        self._sampling = np.array(parameters.device_row, np.float32)
        self._draft_noise, self._target_noise = noise_streams(parameters.seed)

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        if self._drafts and self._context.draft is not None:
            self._context.draft.prefill(tokens, len(tokens) - 2)

    def run(self, tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
        draft = self._context.draft
        # The first draft pass feeds two tokens, so a sequence of one starts with a plain round.
        k = plan.num_draft_tokens if self._drafts and draft is not None and len(tokens) > 1 else 0
        start, hidden = perf_counter(), None
        if k and isinstance(draft, HiddenDecoder):
            hidden = draft.missing(tokens, k + 1)
            k = k if hidden is not None else 0  # without them it cannot draft
        elif k and draft is not None:
            self.prefill(tokens, plan)  # rows that plain rounds have left out
            draft.rows = min(draft.rows, len(tokens) - 2)  # the valid ones, should the round fail
        result = self._rounds.run(tokens, k, self._draw_noise(k), hidden)
        self._context.target.rows = len(tokens) + k
        if hidden is not None and isinstance(draft, HiddenDecoder):
            draft.wrote(len(hidden))
        elif k and draft is not None:
            draft.rows = len(tokens) + k - 1
        self._statistics.device_seconds += perf_counter() - start
        for index, confidence in enumerate(result.confidence):
            if math.isnan(confidence):
                raise NonFiniteLogitsError("draft", index, confidence)
        if not 0 <= result.next_token < self._vocab_size:
            raise NonFiniteLogitsError("target", result.num_accepted, math.nan)
        drafted = tuple(result.draft_tokens)
        sources: list[Source] = ["model"] * len(drafted)
        return RoundOutcome(drafted, tuple(sources), result.num_accepted, (result.next_token,))

    def _draw_noise(self, k: int) -> RoundNoise | None:
        if self._verification is None:
            return None
        drawn, judged = self._draft_noise.random(k), self._target_noise.random(k + 1)
        return RoundNoise(self._verification, self._sampling, _float32(drawn), _float32(judged))


def _float32(uniforms: Probabilities) -> NDArray[np.float32]:
    """Rounded, but never up to 1."""
    return np.minimum(uniforms.astype(np.float32), np.nextafter(np.float32(1.0), np.float32(0.0)))
