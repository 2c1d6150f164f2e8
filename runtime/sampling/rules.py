"""From logits to tokens for one request: what a draft proposes, and how much of it the target accepts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from ...bundle import Role
from ...engines.base import Logits
from ...errors import GrammarError, ParameterError
from ..grammar.constraint import Constraint, Matcher
from .acceptance import VERIFY, verify_tokens
from .adjustment import LogitAdjustment
from .distribution import Distribution, Probabilities, Row
from .parameters import SEEDS, SamplingParameters
from .spectr import Candidate, Candidates, matching_candidate
from .truncation import processed_distribution


class Noise(Protocol):
    """Like `numpy.random.Generator`."""

    def random(self, size: int) -> Probabilities:
        """Uniforms in [0, 1), `[size]`."""
        ...


def noise_streams(seed: int | None) -> tuple[np.random.Generator, np.random.Generator]:
    """Independent streams of uniforms, for drafting and for acceptance."""
    if seed is not None and seed < 0:
        seed %= SEEDS
    draft_seed, target_seed = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(draft_seed), np.random.default_rng(target_seed)


class NonFiniteLogitsError(Exception):
    """A model gave NaN, or no finite logit at all; the session says where. index: number of draft tokens before the
    row.
    """

    def __init__(self, role: Role, index: int, value: float) -> None:
        super().__init__(f"{role} logits hold {value}")
        self.role, self.index, self.value = role, index, value


class Proposer(Protocol):
    """What a draft needs of a rule."""

    def propose(self, draft_logits: Row) -> int | None:
        """The next draft token from the draft's logits `[vocab]`, remembered until `accept`.

        None if no token that the draft knows is allowed, or if the request ends. That does not depend on a draw, so the
        output's distribution stays.
        """
        ...

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, the grammar allows after the draft: a lookup ends there."""
        ...

    def record_deterministic(self, draft_token: int) -> None:
        """The next draft token is this one, deterministically: it was looked up, or forced."""
        ...


class Rule(ABC):
    """Of one request; implements `Proposer`.

    constrained: whether by a grammar. candidates: None if the verification judges none.
    """

    candidates: Candidates | None = None

    def __init__(
        self, vocab_size: int, adjustment: LogitAdjustment | None = None, constraint: Constraint | None = None
    ) -> None:
        """vocab_size: the target's; a draft may know fewer ids or more."""
        self._vocab_size = vocab_size
        self._adjustment, self._constraint = adjustment, constraint
        self._drafted: list[int] = []
        self.constrained = constraint is not None

    def propose(self, draft_logits: Row) -> int | None:
        token = self._propose(draft_logits)
        if token is not None:
            self._drafted.append(token)
        return token

    def record_deterministic(self, draft_token: int) -> None:
        self._drafted.append(draft_token)

    @abstractmethod
    def _propose(self, draft_logits: Row) -> int | None: ...

    @abstractmethod
    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        """From target logits `[num_draft_tokens + 1, vocab]`: `(num_accepted, next_token)`."""

    def accept_tree(
        self, target_logits: Logits, draft_tokens: Sequence[int], candidates: Sequence[Candidate]
    ) -> tuple[int, list[int]]:
        """The same with one more row for each of `candidates`: `(num_accepted, the tokens that follow)`, one or two.

        If the token that follows is a candidate, its row has the target's distribution after it, and one more token is
        drawn from that, with noise of its own.
        """
        rows = len(draft_tokens) + 1
        count, token = self.accept(target_logits[:rows], draft_tokens)
        found = matching_candidate(candidates, count, token)
        if found is None:
            return count, [token]
        try:
            return count, [token, self.accept(target_logits[rows + found : rows + found + 1], [])[1]]
        except NonFiniteLogitsError as error:
            raise NonFiniteLogitsError(error.role, count + 1, error.value) from None

    def legal(self, tokens: Sequence[int]) -> int:
        return len(tokens) if self._constraint is None else self._constraint.legal(tokens, self._drafted)

    def forced(self, most: int) -> list[int]:
        """Up to `most` tokens that the grammar forces after the draft."""
        return [] if self._constraint is None else self._constraint.forced(self._drafted, most)

    def _draft_row(self, logits: Row) -> Row | None:
        """The draft's row, processed by the request's settings; None if nothing is left of it, or if the request
        ends.
        """
        known = logits[: self._vocab_size]
        try:
            if self._constraint is not None and self._constraint.over(self._drafted):
                return None
            row = self._row(known, self._drafted)
        except GrammarError:  # of a position that the output may never reach
            return None
        return None if row is not known and row.max() == -np.inf < known.max() else row

    def _target_row(self, logits: Row, drafted: Sequence[int]) -> Row:
        row = self._row(logits, drafted)
        if row is not logits and row.max() == -np.inf < logits.max():
            if self._constraint is not None:
                raise GrammarError(
                    "dead end: every token that the grammar allows here is ruled out by the model, banned_tokens or "
                    "stop_token_ids; allow more",
                    code="grammar_failed",
                )
            raise ParameterError(
                "banned_tokens and min_new_tokens forbid every token that the target can produce here; allow more",
                "banned_tokens",
            )
        return row

    def _row(self, logits: Row, drafted: Sequence[int]) -> Row:
        """The row after `drafted`. The grammar comes first, so that truncation sees only what it allows."""
        row = logits if self._constraint is None else self._constraint.mask(logits, drafted)
        return self._adjusted(row, drafted)

    def _adjusted(self, row: Row, drafted: Sequence[int]) -> Row:
        return row if self._adjustment is None else self._adjustment(row, drafted)

    def _emit(self, tokens: Sequence[int]) -> None:
        self._drafted = []
        if self._adjustment is not None:
            self._adjustment.extend(tokens)
        if self._constraint is not None:
            self._constraint.emit(tokens)


class GreedyRule(Rule):
    """Temperature 0: a draft token is accepted while it is the target's argmax; the lowest id wins a tie."""

    def _propose(self, draft_logits: Row) -> int | None:
        try:
            token = self._allowed_argmax(draft_logits[: self._vocab_size], self._drafted)
        except GrammarError:
            return None
        if token is None:
            row = self._draft_row(draft_logits)
            return None if row is None else _argmax("draft", row, len(self._drafted))
        return token

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        def best(index: int) -> int:
            token = self._allowed_argmax(target_logits[index], draft_tokens[:index])
            if token is None:
                return _argmax("target", self._target_row(target_logits[index], draft_tokens[:index]), index)
            return token

        # Row by row: rows after the first rejection are never looked at.
        count, token = 0, best(0)
        while count < len(draft_tokens) and token == draft_tokens[count]:
            count += 1
            token = best(count)
        self._emit([*draft_tokens[:count], token])
        return count, token

    def _allowed_argmax(self, logits: Row, drafted: Sequence[int]) -> int | None:
        """The row's argmax if a grammar allows it: it is then the masked row's too, and no mask is needed."""
        if self._constraint is None or self._constraint.over(drafted):
            return None
        row = self._adjusted(logits, drafted)
        token = int(row.argmax())
        return token if math.isfinite(row[token]) and self._constraint.allows(token, drafted) else None


class SamplingRule(Rule):
    """Draws from processed distributions, and verifies by the rule named in the parameters.

    Noise for drafting and for acceptance comes from independent streams of one seed. If every draft token is
    deterministic, the block rule has no gain, so token verification is used, which looks at fewer rows.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        vocab_size: int,
        adjustment: LogitAdjustment | None = None,
        constraint: Constraint | None = None,
        noise: tuple[Noise, Noise] | None = None,
    ) -> None:
        """noise: for drafting and for acceptance, from the parameters' seed unless a proof supplies its own."""
        super().__init__(vocab_size, adjustment, constraint)
        self._parameters = parameters
        self._draft_noise, self._target_noise = noise or noise_streams(parameters.seed)
        self._draft_probs: list[Distribution] = []
        if parameters.verification == "spectr":
            self.candidates = Candidates()

    def _propose(self, draft_logits: Row) -> int | None:
        row = self._draft_row(draft_logits)
        if row is None:
            return None
        probs = self._distribution("draft", row, len(self._drafted))
        token = probs.draw(float(self._draft_noise.random(1)[0]))
        self._draft_probs.append(probs)
        if self.candidates is not None:
            self.candidates.add(probs, token, self._draft_noise.random)
        return token

    def record_deterministic(self, draft_token: int) -> None:
        super().record_deterministic(draft_token)
        self._draft_probs.append(Distribution.point_mass(draft_token))
        if self.candidates is not None:
            self.candidates.add_deterministic(draft_token)

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        draft_probs, self._draft_probs = self._draft_probs, []

        @lru_cache(None)
        def target(index: int) -> Distribution:
            return self._distribution("target", self._target_row(target_logits[index], draft_tokens[:index]), index)

        def judged(size: int) -> tuple[int, int]:
            """The verdict on the draft's first `size` tokens."""
            probs = draft_probs[:size]
            is_stochastic = any(len(one.probs) > 1 for one in probs)
            verify = VERIFY[self._parameters.verification] if is_stochastic else verify_tokens
            try:
                return verify(target, probs, draft_tokens[:size], np.append(uniforms[:size], uniforms[-1]))
            except (NonFiniteLogitsError, GrammarError, ParameterError):
                known = target.cache_info().currsize
                if known == size:
                    raise
            # The block rule looks at rows that the output may never reach. A row without a distribution ends the draft
            # before it, which depends only on tokens that stay in the draft.
            return judged(known)

        if self.candidates is not None:
            count, token = self.candidates.verify(target, draft_probs, draft_tokens, self._target_noise.random)
        else:
            uniforms = self._target_noise.random(len(draft_tokens) + 1)
            count, token = judged(len(draft_tokens))
        self._emit([*draft_tokens[:count], token])
        return count, token

    def _distribution(self, role: Role, row: Row, index: int) -> Distribution:
        top = float(row.max())  # NaN, where there is one
        if not math.isfinite(top):
            raise NonFiniteLogitsError(role, index, top)
        if role == "draft" or self._constraint is not None:  # which have few tokens: of a cut vocabulary, allowed ones
            tokens = np.flatnonzero(row > -np.inf)
            if 2 * len(tokens) <= len(row):  # later steps cost time by their number
                found = processed_distribution(row[tokens], self._parameters, top)
                return Distribution(found.probs, tokens if found.tokens is None else tokens[found.tokens])
        return processed_distribution(row, self._parameters, top)


def _argmax(role: Role, row: Row, index: int) -> int:
    best = int(row.argmax())  # of NaN, where there is one
    if not math.isfinite(row[best]):
        raise NonFiniteLogitsError(role, index, float(row[best]))
    return best


def make_rule(
    parameters: SamplingParameters,
    vocab_size: int,
    prompt: Sequence[int],
    stop_tokens: Collection[int],
    matcher: Matcher | None = None,
) -> Rule:
    """`vocab_size`: the target's. matcher: at the start of the request's grammar, kept by the rule.

    Raises `ParameterError` for token ids that the vocabulary lacks.
    """
    parameters.check_tokens(vocab_size, stop_tokens)
    adjustment = LogitAdjustment(parameters, prompt, stop_tokens, vocab_size) if parameters.adjusts_logits else None
    constraint = Constraint(matcher, stop_tokens, vocab_size) if matcher is not None else None
    if parameters.greedy:
        return GreedyRule(vocab_size, adjustment, constraint)
    return SamplingRule(parameters, vocab_size, adjustment, constraint)
