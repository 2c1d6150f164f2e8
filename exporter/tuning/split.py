"""Which prompts are trained on, which choose the best state of the draft, and which judge it.

By prompt, not token, and each prompt once: logs repeat prompts, and one that was learned from cannot judge.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...calibration.measuring.prompts import Request
from ...errors import ParameterError
from .answers import Answer, Job
from .options import TuneOptions

# Of ten prompts two judge, and one chooses when to stop: judging by what was chosen by would flatter it.
EVERY = 10
JUDGING = (4, 9)
CHOOSING = (7,)
FEWEST_JUDGING = 4
FEWEST = EVERY // len(JUDGING) * FEWEST_JUDGING
# As many tokens as `specexport calibrate` wants of a survival signal.
LEAST_TOKENS = 200


@dataclass(frozen=True)
class Split:
    """training, choosing, judging: of the user's prompts, and for the last also those that are only to be judged.

    general: prompts whose answers are mixed in. routes: of the user's prompts. left_out: why some are in no part.
    """

    training: tuple[Request, ...]
    choosing: tuple[Request, ...]
    judging: tuple[Request, ...]
    general: tuple[Request, ...]
    routes: tuple[str, ...]
    left_out: tuple[str, ...]

    def jobs(self, options: TuneOptions) -> dict[str, list[Job]]:
        """By part. Prompts that choose and judge are answered once, as they are served."""

        def asked(requests: Sequence[Request], answers: int = 1) -> list[Job]:
            return [
                Job(request, options.temperature_of(number), _seed(options.seed, number, request))
                for number in range(answers)
                for request in requests
            ]

        return {
            "training": asked(self.training, options.answers),
            "choosing": asked(self.choosing),
            "judging": asked(self.judging),
            "general": asked(self.general, options.answers),
        }


def split(requests: Sequence[Request], others: Sequence[Request], general: Sequence[Request]) -> Split:
    """others: only judged. Raises `ParameterError` for too few different requests."""
    own = _new(requests, ())
    if len(own) < FEWEST:
        raise ParameterError(
            f"different prompts found: {len(own)}, expected at least {FEWEST}, so that {FEWEST_JUDGING} judge the "
            "draft; give more",
            "prompts",
        )
    parts: dict[str, list[Request]] = {"training": [], "choosing": [], "judging": []}
    for place, request in _places(own):
        parts["judging" if place in JUDGING else "choosing" if place in CHOOSING else "training"].append(request)
    only = _new(others, own)
    held_out = [*parts["choosing"], *parts["judging"], *only]
    left_out = []
    if len(own) < len(requests):
        left_out.append(f"{len(requests) - len(own)} of the {len(requests)} prompts, which repeat others")
    if len(only) < len(others):
        left_out.append(
            f"{len(others) - len(only)} of the {len(others)} prompts of --judge, which repeat others or are among "
            "--prompts, most of which are trained on"
        )
    return Split(
        training=tuple(parts["training"]),
        choosing=tuple(parts["choosing"]),
        judging=(*parts["judging"], *only),
        general=tuple(_new(general, held_out)),
        routes=tuple(dict.fromkeys(request.route for request in own)),
        left_out=tuple(left_out),
    )


def _new(requests: Iterable[Request], known: Iterable[Request]) -> list[Request]:
    """Each prompt once, and none that is `known`."""
    seen = {request.tokens for request in known}
    found = []
    for request in requests:
        if request.tokens not in seen:
            seen.add(request.tokens)
            found.append(request)
    return found


def _places(requests: Sequence[Request]) -> Iterable[tuple[int, Request]]:
    """Each request with its place, from 0 to 9, in ten of its route; what is left of all routes shares tens."""
    sizes, seen, rest = Counter(request.route for request in requests), Counter[str](), 0
    for request in requests:
        place = seen[request.route]
        seen[request.route] += 1
        if place >= sizes[request.route] // EVERY * EVERY:
            place, rest = rest, rest + 1
        yield place % EVERY, request


def _seed(seed: int, number: int, request: Request) -> int:
    """Of the answer `number`: the same whatever the other prompts are."""
    return int(hashlib.sha256(json.dumps([seed, number, request.tokens]).encode()).hexdigest()[:7], 16)


def check_length(judging: Sequence[Answer]) -> None:
    """Raises `ParameterError` for answers too short to judge by."""
    found = sum(len(answer.tokens) for answer in judging)
    if found < LEAST_TOKENS:
        raise ParameterError(
            f"the target's answers to {len(judging)} held-out prompts have {found} tokens, expected {LEAST_TOKENS}; "
            "give more prompts or ones with longer answers, or raise --max-new-tokens; the answers are kept",
            "prompts",
        )
