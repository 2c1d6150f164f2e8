"""The steps of a calibration, which a journal keeps: requests, recorded with every draft, and costs in between."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ..runtime.costs.meter import CostMeter, Times, decoding, reading
from ..runtime.drafting.names import check_drafter
from ..runtime.session import Session
from .measuring.journal import Journal, Step
from .measuring.prompts import Progress, Request
from .measuring.record import Record, record
from .options import CalibrateOptions

# Costs are measured this many times, spread over the run; at contexts beyond every request once, at the end.
VISITS = 4


def measure(
    session: Session,
    requests: Sequence[Request],
    options: CalibrateOptions,
    journal: Journal,
    meters: Mapping[str, CostMeter],
    progress: Progress,
) -> dict[str, list[Record]]:
    """Record every request with every draft; returns the records by draft model.

    Routes take turns, so that all of them see the machine in the same states. Costs are measured in between. What the
    journal has is not measured again.
    """
    turns, warm = _in_turn(requests), -1
    recorded: dict[str, list[Record]] = {model: [] for model in meters}
    before = [len(turns) * one // VISITS for one in range(VISITS)]

    def run(key: str, model: str, number: int) -> None:
        def ran() -> Record:
            nonlocal warm
            quarter = max(one for one in before if one <= number)
            if warm != quarter:
                _warm_up(session, turns[number])
                warm = quarter
            return record(session, turns[number], options.sampling_with(model), plain_first=number % 2 == 0)

        recorded[model].append(journal.once(key, Record, ran))

    steps: list[Step] = []
    longest = max(len(one.tokens) + one.max_new_tokens for one in requests)
    for number, request in enumerate(turns):
        if number in before:
            steps += visits(meters, number, options.bursts, journal, most=longest)
        for model in meters:
            key = f"{request.line} {model}"
            work = 3 * reading(len(request.tokens)) + 2 * decoding(request.max_new_tokens, len(request.tokens))
            steps.append(Step(key, partial(float, work), partial(run, key, model, number)))
    steps += visits(meters, len(turns), options.bursts, journal, least=longest + 1)
    journal.take(steps, progress)
    session.reset()
    return recorded


def visits(
    meters: Mapping[str, CostMeter], number: int, bursts: int, journal: Journal, least: int = 0, most: int = sys.maxsize
) -> Iterator[Step]:
    """Steps that measure costs at the contexts from `least` to `most`. number: of these visits, for the journal."""

    def time(key: str, meter: CostMeter, context: int, burst: int) -> None:
        if not (burst and meter.enough):
            meter.add(journal.once(key, Times, partial(meter.time, context, first=not burst)))

    for model, meter in meters.items():
        for context in meter.contexts:
            for burst in range(bursts if least <= context <= most else 0):
                key = f"costs {number} {model} {context} {burst}"
                yield Step(key, partial(meter.work, context, burst), partial(time, key, meter, context, burst))


def _warm_up(session: Session, request: Request) -> None:
    drafter = check_drafter(None, session.bundle.manifest.draft_names)
    tokens, most = min(4, request.max_new_tokens), session.max_draft_tokens
    session.generate(request.tokens, max_new_tokens=tokens, num_draft_tokens=most, drafter=drafter)


def _in_turn(requests: Sequence[Request]) -> list[Request]:
    """The first request of every route, then the second of every route, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for request in requests:
        turns.append(seen[request.route])
        seen[request.route] += 1
    return [request for _, request in sorted(zip(turns, requests, strict=True), key=lambda item: item[0])]
