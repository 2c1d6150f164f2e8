"""Measures the cost of rounds: whole rounds of real generations, with every number of draft tokens in turn.

Passes are timed in the order of the loop, since the target's pass evicts the draft's weights from the CPU's caches: a
draft timed alone would look cheaper than it is. Taking turns, all k see the same disturbances of the machine, and are
compared with the plain rounds of their own turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import mean, median
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...bundle import NO_DRAFT, Bundle
from ...engines.base import Engine
from ...errors import ParameterError
from ..drafting.drafts import Drafts
from ..loop.chunks import Chunk
from ..policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime
from ..policy.host_identity import bundle_identity, describe_host
from ..policy.schedule import FixedSchedule, Schedule
from ..sampling.parameters import UNADJUSTED, SamplingParameters
from ..state.cached_decoder import CachedDecoder, Cancelled
from ..stream import Stream

# Timed rounds per generation, unless told otherwise: few, so that turns are short. The first round is not timed: it
# finds the CPU's caches as another k left them.
BURST = 4
# Seconds at one context after which no further burst begins.
MAX_SECONDS = 15.0
# For estimates of the time left only, chosen from times of SmolLM2-135M: tokens of a prompt that take about as long as
# a round, and tokens in the caches that double a round's time.
PROMPT, CACHED = 8, 2048
# Seed of the prompts' random tokens, on which costs do not depend.
SEED = 5


class Metered(Protocol):
    """What the meter needs of a `Session`."""

    bundle: Bundle
    engine: Engine
    threads: int
    drafts: Drafts

    @property
    def capacity(self) -> int: ...

    @property
    def max_draft_tokens(self) -> int: ...

    def stream(self, prompt: list[int], params: SamplingParameters, schedule: Schedule) -> Stream: ...

    def reset(self) -> None: ...


# Seconds of a round, of its draft passes, of its target pass.
RoundTime = tuple[float, ...]


@dataclass(frozen=True)
class Times:
    """One burst of every number of draft tokens at one context, in seconds.

    target_prefill, draft_prefill: per token; None behind the first burst of a visit to the context, which finds the
    prompt in the caches. rounds: by number of draft tokens. Without a draft model, rounds with a draft are target
    passes alone. seconds: of all the rounds.
    """

    context: int
    target_prefill: float | None
    draft_prefill: float | None
    rounds: tuple[tuple[RoundTime, ...], ...]
    seconds: float


def reading(tokens: int) -> float:
    """About how many rounds with short contexts take as long as a prompt of `tokens`."""
    return tokens / PROMPT * (1 + tokens / CACHED / 2)


def decoding(rounds: int, context: int) -> float:
    """The same of `rounds` with `context` tokens in the caches."""
    return rounds * (1 + context / CACHED)


class CostMeter:
    """Collects the times of several measurements, so that a long run can spread them over its duration.

    contexts: numbers of tokens in the caches at which rounds are timed, in ascending order.
    """

    def __init__(
        self,
        session: Metered,
        contexts: Sequence[int],
        burst: int = BURST,
        longest: float = MAX_SECONDS,
        draft: str | None = None,
    ) -> None:
        """contexts: tokens in the caches. burst: timed rounds per generation.

        longest: seconds at one context after which no further burst begins. draft: the one that drafts the rounds, by
        default the bundle's first. Raises `ParameterError`.
        """
        self._session, self._draft = session, draft or session.bundle.manifest.first_draft
        self._most = session.max_draft_tokens
        self._burst_rounds, self._longest = burst, longest
        room = session.capacity - (burst + 2) * (self._most + 1)
        if room < 1:
            raise ParameterError(
                f"a capacity of {session.capacity} tokens is too small to measure costs in; "
                "build with a larger --max-seq-len"
            )
        self.contexts = sorted({max(2, min(context, room)) for context in contexts})
        self._times: list[Times] = []
        self._spent = self._pace = 0.0
        self._order = random.Random(SEED)
        self._has_model = self._draft != NO_DRAFT
        self._reads = session.bundle.manifest.draft_called(self._draft).model.reads if self._has_model else None
        self._slots = self._reads.slots if self._reads is not None else 0

    def work(self, context: int, burst: int) -> float:
        """How long `time` takes, as `reading` counts. burst: its number in a visit to the context, where `enough` may
        come before it.
        """
        rounds = self._rounds(context)
        if burst * rounds * self._pace > self._longest:
            return 0.0
        return rounds + (0.0 if burst else reading(context))

    def _rounds(self, context: int) -> float:
        return decoding((self._most + 1) * (self._burst_rounds + 2), context)

    def measure(self, bursts: int) -> None:
        """Visit every context, and keep the times of `bursts` bursts, fewer where a model is slow."""
        for context in self.contexts:
            for burst in range(bursts):
                if not (burst and self.enough):
                    self.add(self.time(context, first=not burst))
        self._session.reset()

    def time(self, context: int, first: bool = True) -> Times:
        """Time one burst of every number of draft tokens at `context`.

        first: of a visit to the context, so the prefills are timed before it. The session's cached prefix is lost.
        """
        prompt = np.random.default_rng(SEED).integers(0, self._session.engine.target.vocab_size, context).tolist()
        if first:
            self._session.reset()
        # Nothing new to read behind the first burst, unless a run was interrupted. A draft that reads the target needs
        # the prompt's hidden states, which a plain prefill does not keep. The round is for a cancellation to be seen.
        prefill = self._burst(prompt, 0, 1, speculate=self._reads is not None)[0]
        draft_prefill = self._read(prompt) if first else 0.0
        rounds: list[Sequence[RoundTime]] = [()] * (self._most + 1)
        numbers, start = list(range(self._most + 1)), perf_counter()
        self._order.shuffle(numbers)
        for k in numbers:
            if self._has_model or not k:
                rounds[k] = self._burst(prompt, k, self._burst_rounds)[1]
            else:
                rounds[k] = self._passes(context, k)
        seconds = perf_counter() - start
        by_k = tuple(map(tuple, rounds))
        if not first:
            return Times(context, None, None, by_k, seconds)
        return Times(context, prefill / context, draft_prefill / context, by_k, seconds)

    def add(self, times: Times) -> None:
        """Keep `times`, of this meter or of one before it in an interrupted run."""
        self._spent = times.seconds + (self._spent if times.target_prefill is None else 0.0)
        self._pace = times.seconds / self._rounds(times.context)
        self._times.append(times)

    @property
    def enough(self) -> bool:
        """Whether no further burst is needed in this visit: a slow model's times vary little."""
        return self._spent > self._longest

    def costs(self) -> Costs:
        session, points = self._session, tuple(map(self._point, self.contexts))
        return Costs(
            schema_version=COSTS_VERSION,
            bundle=bundle_identity(session.bundle, self._draft),
            host=describe_host(session.bundle.manifest, session.engine.name, session.engine.device),
            engine=session.engine.name,
            threads=session.threads,
            made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            target_prefill=median(one.target_prefill for one in self._times if one.target_prefill is not None),
            draft_prefill=median(one.draft_prefill for one in self._times if one.draft_prefill is not None),
            points=points,
        )

    def _burst(self, prompt: list[int], k: int, rounds: int, speculate: bool = False) -> tuple[float, list[RoundTime]]:
        """The seconds of the prefill, and the times of `rounds` rounds after the first one. Raises `Cancelled`.

        speculate: whether rounds of no draft tokens are those of a request that drafts.
        """
        session, number = self._session, self._session.max_draft_tokens + 1
        schedule = FixedSchedule(k)
        drafter, most = self._draft if self._has_model else None, (rounds + 2) * number
        params = SamplingParameters(
            **UNADJUSTED, stop_token_ids=(), max_new_tokens=most, speculate=speculate or k > 0, drafter=drafter
        )
        stream = session.stream(prompt, params, schedule)
        statistics = _round(stream).statistics
        prefill = statistics.prefill_seconds
        times: list[RoundTime] = []
        for _ in range(rounds):
            draft, target, start = statistics.draft_seconds, statistics.target_seconds, perf_counter()
            _round(stream)
            whole = perf_counter() - start
            times.append((whole, statistics.draft_seconds - draft, statistics.target_seconds - target))
        stream.close()
        return prefill, times

    def _read(self, prompt: list[int]) -> float:
        """Seconds of the draft's prefill, in chunks."""
        if not self._has_model:
            return 0.0
        manifest, opened = self._session.bundle.manifest, self._session.drafts.open(self._draft)
        draft, reads = opened.decoder, self._reads
        chunk = manifest.contract.prompt_chunk
        tokens = [token % draft.vocab_size for token in prompt]
        start = perf_counter()
        for place in range(0, len(tokens), chunk):
            part = tokens[place : place + chunk]
            if reads is not None and opened.reader is not None:
                opened.reader.read(np.zeros((len(part), len(reads.taps) * manifest.target.tap_width), np.float32))
            draft.feed(part, place)
        return perf_counter() - start

    def _passes(self, context: int, k: int) -> list[RoundTime]:
        """Time target passes alone: without a draft model the text decides whether a round has a draft."""
        target = self._session.engine.target
        times: list[RoundTime] = []
        if target.resumable(context) != context:
            self._session.reset()  # before rows are written of which it knows nothing
            CachedDecoder(target, self._session.bundle.manifest.contract.prompt_chunk).prefill([1] * context, context)
        for _ in range(self._burst_rounds + 1):
            start = perf_counter()
            target.step([1] * (k + 1), context)
            seconds = perf_counter() - start
            times.append((seconds, 0.0, seconds))
        return times[1:]

    def _point(self, context: int) -> CostPoint:
        turns = [[np.array(rows).T for rows in one.rounds] for one in self._times if one.context == context]
        by_k = [np.concatenate(rows, axis=1) for rows in zip(*_leveled(turns), strict=True)]
        rest = 0.0 if self._has_model else np.median(by_k[0][0] - by_k[0][2])  # the time of a lookup is negligible
        for times in by_k[1:]:
            times[0] += rest
        rounds = _rising([_measured(whole) for whole, _, _ in by_k])
        on_host = np.median(by_k[0][2]) > 0
        if not on_host:  # the device runs whole rounds, whose parts cannot be timed
            nothing = MeasuredTime(0.0, 0.0, 0.0)
            return CostPoint(context, rounds, nothing, rounds, (nothing,) * len(rounds))
        draft = [seconds / k for k, (_, passes, _) in enumerate(by_k) if k for seconds in passes.tolist()]
        if self._slots:  # its pass gives the first token, a further one costs what the chain does
            last = min(self._slots, self._most)
            first, every = (float(np.median(by_k[k][1])) for k in (1, last))
            draft = [max(0.0, every - first) / max(1, last - 1)]
        host = tuple(_measured(np.maximum(0.0, whole - draft - target)) for whole, draft, target in by_k)
        verify = _rising([_measured(target) for _, _, target in by_k])
        return CostPoint(context, rounds, _measured(draft), verify, host)


def _round(stream: Stream) -> Chunk:
    chunk = next(stream, None)
    if chunk is None or chunk.finish_reason == "cancelled":
        raise Cancelled
    return chunk


def _leveled(turns: Sequence[Sequence[NDArray[np.float64]]]) -> list[list[NDArray[np.float64]]]:
    """`turns` with their plain rounds equally fast: whatever else runs on the host mostly slows a whole turn.

    turns: by k, `[3, rounds]` with the times of whole rounds first.
    """
    plain = [float(np.median(turn[0][0])) for turn in turns]
    return [[times * (median(plain) / own) for times in turn] for turn, own in zip(turns, plain, strict=True)]


def _measured(seconds: Sequence[float] | NDArray[np.float64]) -> MeasuredTime:
    p10, middle, p90 = np.percentile(seconds, [10, 50, 90]).tolist()
    return MeasuredTime(middle, p10, p90)


def _rising(times: Sequence[MeasuredTime]) -> tuple[MeasuredTime, ...]:
    """Medians that never fall, the closest in squares (pool adjacent violators): more tokens never take less time, so a
    fall is noise of the host.
    """
    pools: list[list[float]] = []
    for time in times:
        pools.append([time.median])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    medians = [mean(pool) for pool in pools for _ in pool]
    return tuple(
        MeasuredTime(middle, min(time.p10, middle), max(time.p90, middle))
        for time, middle in zip(times, medians, strict=True)
    )
