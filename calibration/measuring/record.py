"""Records one request: timed plain and speculative, and once more to know the draft's token at every position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Logits
from ...runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ...runtime.state.statistics import Statistics
from .prompts import Request
from .traces import Trace


@dataclass(frozen=True)
class Timing:
    """first_token: seconds to the first token. decode: seconds after the prefill. emitted: tokens."""

    first_token: float
    decode: float
    emitted: int

    @classmethod
    def of(cls, statistics: Statistics) -> Timing:
        return cls(statistics.first_token_seconds, statistics.decode_seconds, statistics.emitted)

    @property
    def latency(self) -> float:
        """Seconds per token, prefill excluded."""
        return self.decode / self.emitted


@dataclass(frozen=True)
class Record:
    """A recorded request. tokens: prompt and output. agrees: see `agreement`. rounds: (drafted, accepted) of each
    round. confidence: of each round, those of the draft tokens that the target judged; none if the draft tells none.
    """

    line: int
    route: str
    prompt_tokens: int
    limit: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    rounds: tuple[tuple[int, ...], ...]
    confidence: tuple[tuple[float, ...], ...]
    plain: Timing
    speculative: Timing

    @property
    def trace(self) -> Trace:
        return Trace(self.line, self.route, self.prompt_tokens, self.tokens, self.agrees, self.limit)


@dataclass(frozen=True)
class RecordedRound:
    """One round. confidence: of every draft pass, see `OpenedDraft`; none if the draft tells none.

    last_choice: the draft's greedy choice for the last token before the round; None if its first pass fed one token.
    """

    num_drafted: int
    num_accepted: int
    confidence: tuple[float, ...]
    last_choice: int | None

    @property
    def judged(self) -> tuple[float, ...]:
        """The confidence of the tokens that the target judged: the accepted ones and the first rejected one."""
        return self.confidence[: min(self.num_accepted + 1, self.num_drafted)]


@dataclass
class Recorder:
    """A schedule and `DraftStop` that only records. confidence: see `OpenedDraft`.

    vocab: how many token ids the target has; the draft's choices are limited to these.
    """

    num_draft_tokens: int
    confidence: Callable[[], float] | None
    vocab: int | None = None
    rounds: list[RecordedRound] = field(default_factory=list)
    needs_host: bool = True

    def __post_init__(self) -> None:
        self._told: list[float] = []
        self._last_choice: int | None = None

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._told, self._last_choice = [], None
        return RoundPlan(self.num_draft_tokens, draft_stop=self)

    def include(self, index: int, logits: Logits) -> bool:
        if index == 0 and len(logits) > 1:
            self._last_choice = int(logits[-2, : self.vocab].argmax())
        if self.confidence is not None:
            self._told.append(self.confidence())
        return True

    def go_on(self, num_drafted: int) -> bool:
        return True

    def looked_up(self, odds: Sequence[float], drafted: int) -> int:
        return len(odds)

    def observe(self, outcome: RoundOutcome) -> None:
        drafted, accepted = outcome.num_drafted, outcome.num_accepted
        self.rounds.append(RecordedRound(drafted, accepted, tuple(self._told), self._last_choice))


def record(session: Session, request: Request, sampling: SamplingParameters, plain_first: bool) -> Record:
    """The record of `request`.

    Every run starts from an empty cache. The draft's tokens are recorded in a third run, so that the times do not
    include recording. sampling: temperature, top_k, top_p and seed, and the draft model as the drafter, None for the
    first.
    """
    confidence = session.drafts.confidence(sampling.drafter)
    recorder = Recorder(session.max_draft_tokens, confidence, session.engine.target.vocab_size)
    params = replace(sampling, max_new_tokens=request.max_new_tokens, verification="token")
    ways = {
        "plain": replace(params, speculate=False),
        "speculative": replace(params, num_draft_tokens=session.max_draft_tokens),
    }
    timings = {}
    for name in list(ways)[:: 1 if plain_first else -1]:
        session.reset()
        timings[name] = Timing.of(session.generate(request.tokens, ways[name]).statistics)
    session.reset()
    tokens = session.generate(request.tokens, params, schedule=recorder).tokens
    agrees = agreement(recorder.rounds, tokens, sampling.greedy) if session.drafts.names else [None] * len(tokens)
    return Record(
        line=request.line,
        route=request.route,
        prompt_tokens=len(request.tokens),
        limit=request.max_new_tokens,
        tokens=(*request.tokens, *tokens),
        agrees=tuple(agrees),
        rounds=tuple((round.num_drafted, round.num_accepted) for round in recorder.rounds),
        confidence=tuple(round.judged for round in recorder.rounds),
        **timings,
    )


def agreement(rounds: Sequence[RecordedRound], output: Sequence[int], greedy: bool) -> list[bool | None]:
    """For every output token, whether the draft model would have proposed it there; None where unknown.

    Known for a round's draft tokens up to the first rejected one. For the token after a fully accepted draft, it is
    known from the next round's first draft pass, under greedy decoding.
    """
    agrees: list[bool | None] = [None] * len(output)
    place = 0
    for round in rounds:
        if greedy and round.last_choice is not None and 0 < place <= len(output) and agrees[place - 1] is None:
            agrees[place - 1] = round.last_choice == output[place - 1]
        for index in range(min(round.num_accepted + 1, round.num_drafted)):
            if place + index < len(output):
                agrees[place + index] = index < round.num_accepted
        place += round.num_accepted + 1
    return agrees


@dataclass(frozen=True)
class JudgedTokens:
    """n draft tokens in the order in which they were drafted, each preceded by accepted ones only.

    request `[n] int64`. index `[n] int64`: position in the draft, from 0. confidence `[n] float64`. accepted
    `[n] bool`.
    """

    request: NDArray[np.int64]
    index: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.request)

    def of(self, chosen: NDArray[np.bool_]) -> JudgedTokens:
        """The tokens where `chosen` `[n]` holds."""
        return JudgedTokens(*(array[chosen] for array in vars(self).values()))


def judged_tokens(records: Sequence[Record]) -> JudgedTokens:
    """Of all records, without rounds in which a confidence is no number."""
    found = [
        (request, index, confidence, index < accepted)
        for request, one in enumerate(records)
        for (_, accepted), told in zip(one.rounds, one.confidence, strict=True)
        if all(map(math.isfinite, told))
        for index, confidence in enumerate(told)
    ]
    request, index, confidence, accepted = zip(*found, strict=True) if found else ((), (), (), ())
    return JudgedTokens(
        np.array(request, np.int64),
        np.array(index, np.int64),
        np.array(confidence, np.float64),
        np.array(accepted, np.bool_),
    )
