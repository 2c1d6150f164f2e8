"""Records one request: timed plain and speculative, and once more to know the draft's token at every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Logits
from ...runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ...runtime.policy.survival import top_logit
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ...runtime.state.statistics import Statistics
from ...strict import OPTIONAL
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
class Judged:
    """A draft token that the target judged. round: the number of its round. index: position in the draft, from 0.
    probability: `top_logit` of the draft's row. confidence: see `OpenedDraft`; None if the draft gives none.
    """

    round: int
    index: int
    probability: float
    accepted: bool
    confidence: float | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Record:
    """A recorded request. tokens: prompt and output. agrees: see `agreement`. rounds: (drafted, accepted) of each
    round.
    """

    line: int
    route: str
    prompt_tokens: int
    limit: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    rounds: tuple[tuple[int, ...], ...]
    judged: tuple[Judged, ...]
    plain: Timing
    speculative: Timing

    @property
    def trace(self) -> Trace:
        return Trace(self.line, self.route, self.prompt_tokens, self.tokens, self.agrees, self.limit)


@dataclass(frozen=True)
class RecordedRound:
    """One round. probability, confidence: of every draft pass, as of `Judged`.

    last_choice: the draft's greedy choice for the last token before the round; None if its first pass fed one token.
    """

    num_drafted: int
    num_accepted: int
    probability: tuple[float, ...]
    confidence: tuple[float | None, ...]
    last_choice: int | None


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
        self._probability: list[float] = []
        self._confidence: list[float | None] = []
        self._last_choice: int | None = None

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._probability, self._confidence, self._last_choice = [], [], None
        return RoundPlan(self.num_draft_tokens, draft_stop=self)

    def include(self, index: int, logits: Logits) -> bool:
        if index == 0 and len(logits) > 1:
            self._last_choice = int(logits[-2, : self.vocab].argmax())
        self._probability.append(top_logit(logits[-1]))
        self._confidence.append(self.confidence() if self.confidence is not None else None)
        return True

    def go_on(self, num_drafted: int) -> bool:
        return True

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        return count

    def observe(self, outcome: RoundOutcome) -> None:
        read = tuple(self._probability), tuple(self._confidence)
        self.rounds.append(RecordedRound(outcome.num_drafted, outcome.num_accepted, *read, self._last_choice))


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
    judged = []
    for number, round in enumerate(recorder.rounds):
        for index in range(min(round.num_accepted + 1, round.num_drafted, len(round.probability))):
            read = round.probability[index], index < round.num_accepted, round.confidence[index]
            judged.append(Judged(number, index, *read))
    agrees = agreement(recorder.rounds, tokens, sampling.greedy) if session.drafts.names else [None] * len(tokens)
    return Record(
        line=request.line,
        route=request.route,
        prompt_tokens=len(request.tokens),
        limit=request.max_new_tokens,
        tokens=(*request.tokens, *tokens),
        agrees=tuple(agrees),
        rounds=tuple((round.num_drafted, round.num_accepted) for round in recorder.rounds),
        judged=tuple(judged),
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

    request `[n] int64`. round `[n] int64`, unique over all requests. index `[n] int64`: position in the draft, from 0.
    probability `[n] float32`: `top_logit` of the draft's row. confidence `[n] float32`: the draft's own, NaN
    without one. accepted `[n] bool`.
    """

    request: NDArray[np.int64]
    round: NDArray[np.int64]
    index: NDArray[np.int64]
    probability: NDArray[np.float32]
    confidence: NDArray[np.float32]
    accepted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.request)

    def of(self, chosen: NDArray[np.bool_]) -> JudgedTokens:
        """The tokens where `chosen` `[n]` holds."""
        return JudgedTokens(*(array[chosen] for array in vars(self).values()))


def judged_tokens(records: Sequence[Record]) -> JudgedTokens:
    numbers = [(place, item) for place, one in enumerate(records) for item in one.judged]
    rounds: dict[tuple[int, int], int] = {}
    return JudgedTokens(
        request=np.array([place for place, _ in numbers], np.int64),
        round=np.array([rounds.setdefault((place, item.round), len(rounds)) for place, item in numbers], np.int64),
        index=np.array([item.index for _, item in numbers], np.int64),
        probability=np.array([item.probability for _, item in numbers], np.float32),
        confidence=np.array([item.confidence for _, item in numbers], np.float32),
        accepted=np.array([item.accepted for _, item in numbers], np.bool_),
    )
