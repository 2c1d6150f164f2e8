"""How a draft is tuned. Imports no torch, so that a wrong option is refused at once."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from ...errors import ParameterError

Loss = Literal["kl", "lk"]

# Up to this size a draft learns as the demo draft did (examples/train_demo_pair.py); larger ones are mostly whole
# models, which a small step keeps what they know.
SMALL = 50_000_000


@dataclass(frozen=True)
class TuneOptions:
    """max_new_tokens: of an answer. answers: to each prompt that is trained on; the first at `temperature`, two of
    three as well, the third drawn at 1. loss: see `loss.py`. epochs: over all answers, at most. general: the part of
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
