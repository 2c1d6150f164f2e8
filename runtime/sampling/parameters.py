"""What a request asks of the distribution that its tokens are drawn from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import Literal

from ...errors import ParameterError

Verification = Literal["block", "token"]

# name -> lowest, highest, whether the lowest itself is allowed, what the neutral value does
RANGES: dict[str, tuple[float, float, bool, str]] = {
    "temperature": (0.0, 100.0, True, "0 is greedy"),
    "top_p": (0.0, 1.0, False, "1 is off"),
    "min_p": (0.0, 1.0, True, "0 is off"),
    "repetition_penalty": (0.01, 100.0, True, "1 is off"),
    "presence_penalty": (-2.0, 2.0, True, "0 is off"),
    "frequency_penalty": (-2.0, 2.0, True, "0 is off"),
}
BIAS_LIMIT = 100.0


def whole_number(name: str, value: object) -> int:
    """`value` as an int, numpy's included. Raises `ParameterError` naming it for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ParameterError(f"{name} is {value!r}; it must be a whole number") from None


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """`value`, ids of any collection, as ints. Raises `ParameterError` naming it for anything else."""
    try:
        given = list(value)  # type: ignore[call-overload]
    except TypeError:
        raise ParameterError(f"{name} is {value!r}; it must be a list of token ids") from None
    return tuple(whole_number(f"a token of {name}", token) for token in given)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats, and so beyond all ranges
        return math.inf


@dataclass(frozen=True)
class SamplingParameters:
    """temperature 0 is greedy; everything else is off by default; without a seed every request draws afresh.

    The chain: logit bias; repetition, frequency and presence penalty; bans; temperature; top-k; top-p; min-p.
    repetition_penalty looks at prompt and output, as in transformers; the presence and frequency penalties look at the
    output only, as in the OpenAI API. min_new_tokens forbids the stop tokens before that many tokens.

    Raises `ParameterError` naming the parameter, what was given and what is allowed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: Iterable[int] = ()
    min_new_tokens: int = 0
    seed: int | None = None
    verification: Verification = "block"

    def __post_init__(self) -> None:
        for name, (low, high, closed, off) in RANGES.items():
            value = getattr(self, name)
            number = _number(name, value)
            object.__setattr__(self, name, number)
            if not ((low <= number if closed else low < number) and number <= high):  # NaN fails as well
                raise ParameterError(
                    f"{name} is {value}; it must be {'from' if closed else 'above'} {low:g} to {high:g} ({off})"
                )
        for name in ("top_k", "min_new_tokens", "seed"):
            value = getattr(self, name)
            if (name != "seed" or value is not None) and whole_number(name, value) < 0:
                raise ParameterError(f"{name} is {value}; it must be 0 or more")
        if self.verification not in ("block", "token"):
            raise ParameterError(f"verification is {self.verification!r}; it must be 'block' or 'token'")
        if not isinstance(self.logit_bias, Mapping):
            raise ParameterError(f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers")
        for token, bias in self.logit_bias.items():
            whole_number("a token of logit_bias", token)
            if not abs(_number(f"logit_bias of token {token}", bias)) <= BIAS_LIMIT:
                raise ParameterError(
                    f"logit_bias of token {token} is {bias}; it must be from -{BIAS_LIMIT:g} to {BIAS_LIMIT:g}"
                )
        object.__setattr__(self, "banned_tokens", token_ids("banned_tokens", self.banned_tokens))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything in front of the temperature changes a logit."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
        return penalties or bool(self.logit_bias) or bool(self.banned_tokens) or self.min_new_tokens > 0

    def check_tokens(self, vocab_size: int, stop_tokens: Collection[int]) -> None:
        """Raises `ParameterError` for ids that the vocabulary lacks, and when no token is left."""
        for name, tokens in (("logit_bias", self.logit_bias), ("banned_tokens", self.banned_tokens)):
            for token in tokens:
                if not 0 <= token < vocab_size:
                    raise ParameterError(f"{name} names token {token}; ids go from 0 to {vocab_size - 1}")
        forbidden = {*self.banned_tokens, *(stop_tokens if self.min_new_tokens else ())}
        if sum(0 <= token < vocab_size for token in forbidden) == vocab_size:
            raise ParameterError(
                f"banned_tokens and the stop tokens are all {vocab_size} tokens; at least one must be left"
            )
