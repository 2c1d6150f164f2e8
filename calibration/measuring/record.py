"""Records one request: timed plain and speculative, and traced to know the draft's token at every position."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BundleError
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ...runtime.state.statistics import Statistics
from ...strict import OPTIONAL, parse
from .judged_tokens import JudgedTokens
from .prompts import Request
from .recorder import Recorder, agreement, misses
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
    probability: `top_logit` of the draft's row.
    """

    round: int
    index: int
    probability: float
    accepted: bool


@dataclass(frozen=True)
class Record:
    """A recorded request. tokens: prompt and output. agrees, missed: see `Trace`; misses are unknown when sampling.
    rounds: (drafted, accepted) of each round.
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
    missed: tuple[tuple[int, ...], ...] = field(default=(), metadata=OPTIONAL)

    @property
    def trace(self) -> Trace:
        return Trace(self.line, self.route, self.prompt_tokens, self.tokens, self.agrees, self.limit, self.missed)

    @property
    def speedup(self) -> float:
        return self.plain.latency / self.speculative.latency


def record(
    session: Session, request: Request, sampling: SamplingParameters, plain_first: bool, timed: bool = True
) -> tuple[Record, NDArray[np.float16]]:
    """(the record of `request`, the confidence head's features of its judged tokens `[n, F] float16`).

    Every run starts from an empty cache. The draft's tokens are recorded in a third run, so that the times do not
    include recording. timed: whether to run the other two, whose times are 0 otherwise. sampling: temperature, top_k,
    top_p and seed, and the draft model as the drafter, None for the first.
    """
    head = session.drafts.head(sampling.drafter)
    recorder = Recorder(session.max_draft_tokens, head, session.engine.target.vocab_size)
    params = replace(sampling, max_new_tokens=request.max_new_tokens, verification="token")
    ways = {
        "plain": replace(params, speculate=False),
        "speculative": replace(params, num_draft_tokens=session.max_draft_tokens),
    }
    found = dict.fromkeys(ways, Timing(0.0, 0.0, 0))
    for name in list(ways)[:: 1 if plain_first else -1] if timed else ():
        session.reset()
        found[name] = Timing.of(session.generate(request.tokens, ways[name]).statistics)
    session.reset()
    tokens = session.generate(request.tokens, params, schedule=recorder).tokens
    judged, rows, first = [], [], 0  # first: index of the round's first draft pass
    for number, round in enumerate(recorder.rounds):
        for index in range(min(round.num_accepted + 1, round.num_drafted, len(round.probability))):
            judged.append(Judged(number, index, round.probability[index], index < round.num_accepted))
            rows.append(first + index)
        first += len(round.probability)
    size = head.size if head is not None else 0
    features = np.array([recorder.features[row] for row in rows] if size else [], np.float16).reshape(len(rows), size)
    agrees = agreement(recorder.rounds, tokens, sampling.greedy)
    row = Record(
        line=request.line,
        route=request.route,
        prompt_tokens=len(request.tokens),
        limit=request.max_new_tokens,
        tokens=(*request.tokens, *tokens),
        agrees=tuple(agrees) if session.drafts.names else (None,) * len(tokens),
        rounds=tuple((round.num_drafted, round.num_accepted) for round in recorder.rounds),
        judged=tuple(judged),
        **found,
        missed=misses(recorder.rounds, agrees) if sampling.greedy and session.drafts.names else (),
    )
    return row, features


def judged_tokens(records: Sequence[Record], features: Sequence[NDArray[np.float16]]) -> JudgedTokens:
    """The judged tokens of all requests, in order. features: by request, `[n, F]`, F = 0 without a head."""
    numbers = [(place, item) for place, one in enumerate(records) for item in one.judged]
    rounds: dict[tuple[int, int], int] = {}
    read = [one for one in features if len(one)]  # F is unknown for a request without judged tokens
    return JudgedTokens(
        request=np.array([place for place, _ in numbers], np.int64),
        round=np.array([rounds.setdefault((place, item.round), len(rounds)) for place, item in numbers], np.int64),
        index=np.array([item.index for _, item in numbers], np.int64),
        probability=np.array([item.probability for _, item in numbers], np.float32),
        features=np.concatenate(read).astype(np.float32) if read else np.zeros((0, 0), np.float32),
        accepted=np.array([item.accepted for _, item in numbers], np.bool_),
    )


def to_row(record: Record, features: NDArray[np.float16]) -> dict[str, Any]:
    """A JSON row for the journal."""
    return {"record": asdict(record), "features": base64.b64encode(features.astype("<f2").tobytes()).decode()}


def from_row(row: dict[str, Any]) -> tuple[Record, NDArray[np.float16]]:
    """The inverse of `to_row`. Raises `BundleError` for a row that is not a recorded request."""
    try:
        # A row that was just made has tuples where JSON has lists.
        record = parse(Record, json.loads(json.dumps(row["record"])), "record")
        numbers = np.frombuffer(base64.b64decode(row["features"], validate=True), "<f2").astype(np.float16)
        width = len(numbers) // len(record.judged) if record.judged else 0
        return record, numbers.reshape(len(record.judged), width)
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"found no recorded request: {error}") from None
