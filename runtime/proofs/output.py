"""A request's tokens, with the rounds that gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..sampling.parameters import SamplingParameters
from ..session import Session
from ..state.statistics import Statistics


@dataclass(frozen=True)
class DecodedOutput:
    """widths[i]: width of the target's pass that token i came from. drafted: number of draft tokens, by round."""

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    drafted: tuple[int, ...]
    statistics: Statistics


def decode_request(session: Session, prompt: Sequence[int], params: SamplingParameters) -> DecodedOutput:
    """Run one request to its end."""
    tokens: list[int] = []
    widths: list[int] = []
    drafted: list[int] = []
    before, beside, statistics = 0, 0, Statistics()
    for chunk in session.stream(prompt, params):
        statistics = chunk.statistics
        drafted.append(statistics.drafted - before)
        before, beside_before = statistics.drafted, beside
        beside = statistics.leaves + statistics.fed_again
        tokens += chunk.tokens
        widths += [drafted[-1] + 1 + beside - beside_before] * len(chunk.tokens)
    return DecodedOutput(tuple(tokens), tuple(widths), tuple(drafted), statistics)
