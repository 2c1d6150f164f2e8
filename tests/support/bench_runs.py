"""Requests, runs and pairs of runs made by hand, as `specexport bench` would have them."""

from __future__ import annotations

import random
from typing import Any

from specexport.calibration.bench.results import PairedRun, Run
from specexport.calibration.measuring.prompts import Request

from .doubles import VOCAB


def requests(count: int = 6, routes: str = "ab", new_tokens: int = 9) -> list[Request]:
    """The routes alternate, as they may in a file."""
    draw = random.Random(0)
    return [
        Request(
            line,
            routes[line % len(routes)],
            tuple(draw.randrange(VOCAB) for _ in range(draw.randrange(1, 20))),
            new_tokens,
        )
        for line in range(1, count + 1)
    ]


def run(
    decode: float, emitted: int = 10, rounds: int = 5, prefill: float = 1.0, first: float = 1.5, **more: Any
) -> Run:
    shares = dict(
        draft_seconds=0.25 * decode, target_seconds=0.5 * decode, device_seconds=0.0, host_seconds=0.25 * decode
    )
    positions = dict(drafted_by_position=(rounds, rounds), accepted_by_position=(rounds, 0))
    counts = dict(looked_up=0, draft_passes=0, rounds_by_drafter={})
    given: dict[str, Any] = counts | positions | shares | dict(digest="d") | more
    return Run(
        emitted=emitted,
        rounds=rounds,
        first_token_seconds=first,
        prefill_seconds=prefill,
        decode_seconds=decode,
        **given,
    )


def pair(
    request: int, plain: Run, speculative: Run, route: str = "r", repeat: int = 0, outputs: Any = "equal"
) -> PairedRun:
    return PairedRun(request, request + 1, route, repeat, 7, True, plain, speculative, outputs)
