"""A request's way from logits to tokens: what a draft proposes, and what of it the target lets stand."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from ...bundle import Role
from ...engines.base import Logits
from ...errors import ParameterError
from .acceptance import VERIFY, verify_tokens
from .adjustment import LogitAdjustment
from .distribution import Distribution, Row
from .parameters import SEEDS, SamplingParameters
from .truncation import processed_distribution


class NonFiniteLogitsError(Exception):
    """A model gave NaN, or no finite logit at all; the session says where. index: draft tokens in front of the row."""

    def __init__(self, role: Role, index: int, value: float) -> None:
        super().__init__(f"{role} logits hold {value}")
        self.role, self.index, self.value = role, index, value


class Rule(Protocol):
    def propose(self, draft_logits: Row) -> int | None:
        """The next draft token from the draft's logits `[vocab]`, remembered until `accept`.

        None where no token that the draft knows is allowed. No draw decides that, so the output's distribution stays.
        """
        ...

    def certain(self, draft_token: int) -> None:
        """The next draft token is this one, without chance: it was looked up."""
        ...

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        """From target logits `[num_draft_tokens + 1, vocab]`: `(num_accepted, next_token)`."""
        ...


class _Rows:
    """What both rules do before they look at a row.

    `vocab_size` is the target's; a draft may know fewer ids or more.
    """

    def __init__(self, vocab_size: int, adjustment: LogitAdjustment | None = None) -> None:
        self._vocab_size = vocab_size
        self._adjustment = adjustment
        self._drafted: list[int] = []

    def _draft_row(self, logits: Row) -> Row | None:
        """The draft's row as the request changes it, None when nothing is left of it."""
        known = logits[: self._vocab_size]
        if self._adjustment is None:
            return known
        row = self._adjustment(known, self._drafted)
        return None if row.max() == -np.inf < known.max() else row

    def _target_row(self, logits: Row, drafted: Sequence[int]) -> Row:
        if self._adjustment is None:
            return logits
        row = self._adjustment(logits, drafted)
        if row.max() == -np.inf < logits.max():
            raise ParameterError(
                "banned_tokens and min_new_tokens forbid every token that the target can give here; allow more"
            )
        return row

    def _emit(self, tokens: Sequence[int]) -> None:
        self._drafted = []
        if self._adjustment is not None:
            self._adjustment.extend(tokens)


class GreedyRule(_Rows):
    """Temperature 0: a draft token stands while it is the target's argmax; the lowest id wins a tie."""

    def propose(self, draft_logits: Row) -> int | None:
        row = self._draft_row(draft_logits)
        if row is None:
            return None
        self._drafted.append(_argmax("draft", row, len(self._drafted)))
        return self._drafted[-1]

    def certain(self, draft_token: int) -> None:
        self._drafted.append(draft_token)

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        def best(index: int) -> int:
            return _argmax("target", self._target_row(target_logits[index], draft_tokens[:index]), index)

        # A row at a time: rows behind the first rejection are never looked at.
        count, token = 0, best(0)
        while count < len(draft_tokens) and token == draft_tokens[count]:
            count += 1
            token = best(count)
        self._emit([*draft_tokens[:count], token])
        return count, token


def noise_streams(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """Independent streams of uniforms, for drafting and for acceptance."""
    if seed is not None and seed < 0:
        seed %= SEEDS
    draft_seed, target_seed = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(draft_seed), np.random.default_rng(target_seed)


class SamplingRule(_Rows):
    """Draws from processed distributions, and verifies by the rule that the parameters name.

    Noise for drafting and for acceptance are independent streams of one seed. Where every draft token is certain, the
    block rule has no gain, and token verification looks at fewer rows.
    """

    def __init__(
        self, parameters: SamplingParameters, vocab_size: int, adjustment: LogitAdjustment | None = None
    ) -> None:
        super().__init__(vocab_size, adjustment)
        self._parameters = parameters
        self._draft_noise, self._target_noise = noise_streams(parameters.seed)
        self._draft_probs: list[Distribution] = []

    def propose(self, draft_logits: Row) -> int | None:
        row = self._draft_row(draft_logits)
        if row is None:
            return None
        probs = self._distribution("draft", row, len(self._drafted))
        self._draft_probs.append(probs)
        self._drafted.append(probs.draw(self._draft_noise.random()))
        return self._drafted[-1]

    def certain(self, draft_token: int) -> None:
        self._drafted.append(draft_token)
        self._draft_probs.append(Distribution.certain(draft_token))

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        draft_probs, self._draft_probs = self._draft_probs, []

        @lru_cache(None)
        def target(index: int) -> Distribution:
            return self._distribution("target", self._target_row(target_logits[index], draft_tokens[:index]), index)

        chance = any(len(probs.probs) > 1 for probs in draft_probs)
        verify = VERIFY[self._parameters.verification] if chance else verify_tokens
        count, token = verify(target, draft_probs, draft_tokens, self._target_noise.random(len(draft_tokens) + 1))
        self._emit([*draft_tokens[:count], token])
        return count, token

    def _distribution(self, role: Role, row: Row, index: int) -> Distribution:
        top = float(row.max())  # NaN, where there is one
        if not math.isfinite(top):
            raise NonFiniteLogitsError(role, index, top)
        return processed_distribution(row, self._parameters, top)


def _argmax(role: Role, row: Row, index: int) -> int:
    best = int(row.argmax())  # of NaN, where there is one
    if not math.isfinite(row[best]):
        raise NonFiniteLogitsError(role, index, float(row[best]))
    return best


def make_rule(
    parameters: SamplingParameters, vocab_size: int, prompt: Sequence[int], stop_tokens: Collection[int]
) -> Rule:
    """`vocab_size`: the target's. Raises `ParameterError` for token ids that it lacks."""
    parameters.check_tokens(vocab_size, stop_tokens)
    adjustment = LogitAdjustment(parameters, prompt, stop_tokens, vocab_size) if parameters.adjusts_logits else None
    return GreedyRule(vocab_size, adjustment) if parameters.greedy else SamplingRule(parameters, vocab_size, adjustment)
