"""How a draft is tuned, and which prompts it is trained on and judged by. Imports no torch, so that a wrong option is
refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...calibration.measuring.prompts import Request
from ...errors import ParameterError

# Every fifth prompt judges the draft.
EVERY = 5
MIN_PROMPTS = 4 * EVERY
# Tokens of answers to judge by, as many as `specexport calibrate` wants of a survival signal.
MIN_TOKENS = 200


@dataclass(frozen=True)
class TuneOptions:
    """max_new_tokens: of an answer. answers: to each training prompt; every third is sampled at temperature 1, the
    others at `temperature`. epochs: passes over all answers. general: maximum share of the training tokens that answer
    built-in texts, so that little else is forgotten. Of a new head: vocabulary, at most so many tokens, None for 32768,
    and inner, the width of its MLP, None for the target's. Raises `ParameterError`.
    """

    max_new_tokens: int = 128
    answers: int = 3
    temperature: float = 0.0
    epochs: int = 4
    general: float = 0.4
    vocabulary: int | None = None
    inner: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "answers", "epochs", "vocabulary", "inner"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ParameterError(f"{name} is {number}; it must be 1 or more", name)
        if not 0 <= self.temperature < math.inf:  # also: NaN
            raise ParameterError(
                f"temperature is {self.temperature}; it must be finite and at least 0 (0 is greedy)", "temperature"
            )
        if not 0 <= self.general <= 0.9:
            raise ParameterError(f"general is {self.general}; it must be from 0 to 0.9 (0.4: two fifths)", "general")


def split(requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
    """(training, judging): every fifth prompt, route by route, judges the draft.

    Each prompt counts once: logs repeat prompts, and one that was learned from cannot judge. Raises `ParameterError`
    for too few different prompts, and if the answers to those held out cannot have `MIN_TOKENS` together.
    """
    different = {request.tokens: request for request in reversed(requests)}
    if len(different) < MIN_PROMPTS:
        raise ParameterError(
            f"{len(different)} different prompt{'s' * (len(different) != 1)}, expected at least {MIN_PROMPTS}, so that "
            f"{MIN_PROMPTS // EVERY} judge the draft; give more",
            "prompts",
        )
    by_route = sorted(different.values(), key=lambda request: (request.route, request.line))
    training = [request for number, request in enumerate(by_route, 1) if number % EVERY]
    judging = by_route[EVERY - 1 :: EVERY]
    if (longest := sum(request.max_new_tokens for request in judging)) < MIN_TOKENS:
        raise ParameterError(
            f"the answers to {len(judging)} held-out prompts can have at most {longest} tokens, expected {MIN_TOKENS}; "
            "give more prompts, or longer answers: max_new_tokens in their lines, or else --max-new-tokens",
            "prompts",
        )
    return training, judging
