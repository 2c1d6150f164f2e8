"""How a draft is tuned. Imports no torch, so that a wrong option is refused at once.

Which prompts are trained on, which choose the best state of the draft, and which judge it.

By prompt, not token, and each prompt once: logs repeat prompts, and one that was learned from cannot judge.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...calibration.measuring.prompts import Request
from ...errors import ParameterError
from .answers import Answer, Job

Loss = Literal["kl", "lk"]

# Up to this size a draft learns as the demo draft did (examples/train_demo_pair.py); larger ones are mostly whole
# models, which a small step keeps what they know.
SMALL = 50_000_000


@dataclass(frozen=True)
class TuneOptions:
    """max_new_tokens: of an answer. answers: to each prompt that is trained on; the first at `temperature`, two of
    three as well, the third drawn at 1. loss: see `judge.py`. epochs: over all answers, at most. general: the part of
    the tokens trained on that answers to shipped texts are, so that little else is forgotten. rate: multiplies the
    learning rates of a draft of its size; None is 0.3 for one of up to 50 M weights that knows something already, else
    1. seed: of answers and training. step: tokens that a step learns from, prompts included; None is 4096 for small
    drafts and 16384 for others. Raises `ParameterError`.
    """

    max_new_tokens: int = 128
    answers: int = 3
    temperature: float = 0.0
    loss: Loss = "kl"
    epochs: int = 4
    general: float = 0.4
    rate: float | None = None
    seed: int = 0
    step: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("max-new-tokens", self.max_new_tokens),
            ("answers", self.answers),
            ("epochs", self.epochs),
        ):
            if value < 1:
                raise ParameterError(f"--{name} is {value}; it must be 1 or more", name.replace("-", "_"))
        if not 0 <= self.temperature < math.inf:  # also: NaN
            raise ParameterError(
                f"--temperature is {self.temperature}; it must be finite and at least 0 (0 is greedy)", "temperature"
            )
        if self.loss not in ("kl", "lk"):
            raise ParameterError(f"--loss is {self.loss}; it must be kl or lk", "loss")
        if not 0 <= self.general <= 0.9:
            raise ParameterError(f"--general is {self.general}; it must be from 0 to 0.9 (0.4: two fifths)", "general")

        if self.rate is not None and not 0 < self.rate <= 10:
            raise ParameterError(f"--rate is {self.rate}; it must be above 0 and at most 10", "rate")

    def temperature_of(self, number: int) -> float:
        """Of the answer `number` to a prompt, from 0."""
        return 1.0 if number % 3 == 2 else self.temperature

    def general_share(self, tokens: int) -> float:
        """The most tokens of general answers to add to so many others."""
        return tokens * self.general / (1 - self.general)


@dataclass(frozen=True)
class Shape:
    """Of a new draft."""

    layers: int
    width: int

    @classmethod
    def parse(cls, given: str) -> Shape:
        """`4x512`: 4 layers of width 512. Raises `ParameterError`."""
        found = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{1,4})", given)
        if found is None or int(found[2]) % 32:
            raise ParameterError(
                f"--fresh is {given}; it must be LAYERSxWIDTH, the width a multiple of 32, such as 4x512", "fresh"
            )
        return cls(int(found[1]), int(found[2]))


# Of ten prompts two judge, and one chooses when to stop: judging by what was chosen by would flatter it.
EVERY = 10
JUDGING = (4, 9)
CHOOSING = (7,)
MIN_JUDGING = 4
FEWEST = EVERY // len(JUDGING) * MIN_JUDGING
# As many tokens as `specexport calibrate` wants of a survival signal.
MIN_TOKENS = 200


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
            f"different prompts found: {len(own)}, expected at least {FEWEST}, so that {MIN_JUDGING} judge the "
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
    if found < MIN_TOKENS:
        raise ParameterError(
            f"the target's answers to {len(judging)} held-out prompts have {found} tokens, expected {MIN_TOKENS}; "
            "give more prompts or ones with longer answers, or raise --max-new-tokens; the answers are kept",
            "prompts",
        )
