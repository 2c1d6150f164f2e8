"""What one pass of each kind costs on this host, and the break-even that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ..engines.base import Decoder
from ..errors import ParameterError
from ..runtime.session import Options, Session


@dataclass(frozen=True)
class Costs:
    """Median times in seconds at one context length, for rounds of `num_draft_tokens` (k).

    plain: a target pass of width 1 (t1). draft: all k draft passes of a round (k * d). verify: a target pass of width
    k + 1, v(k+1). host: time of a round outside of the engine (h), and of a plain one.
    """

    context: int
    num_draft_tokens: int
    plain: float
    draft: float
    verify: float
    host: float
    plain_host: float

    @property
    def break_even(self) -> float:
        """a*(k) = (k*d + v(k+1) + h) / (t1 + plain h): the tokens a round must give to be as fast as plain decoding."""
        return (self.draft + self.verify + self.host) / (self.plain + self.plain_host)


def measure_costs(session: Session, context: int, num_draft_tokens: int, repeats: int = 60) -> Costs:
    """Time plain passes and speculative rounds in turn, so that both meet the machine in the same state.

    A round's passes run in the order of the loop: the target's pass evicts the draft's weights from the CPU's caches,
    and a draft timed alone would look cheaper than it is. The session's cached prefix is forgotten.
    """
    target, draft = session.engine.target, session.engine.draft
    if draft is None:
        raise ParameterError("the bundle has no draft model whose passes could be timed; build it with --draft")
    k, tokens = num_draft_tokens, [1] * (num_draft_tokens + 1)
    plain, drafts, verify = [], [], []
    session.reset()
    for _ in range(repeats):
        plain.append(_timed(target, [tokens[:1]], context))
        drafts.append(_timed(draft, [tokens[:2], *[tokens[:1]] * (k - 1)], context))
        verify.append(_timed(target, [tokens], context))
    host, plain_host = (_host(session, context, speculate, k) for speculate in (True, False))
    return Costs(context, k, median(plain), median(drafts), median(verify), host, plain_host)


def _timed(decoder: Decoder, passes: Sequence[Sequence[int]], position: int) -> float:
    start = perf_counter()
    for tokens in passes:
        decoder.step(tokens, position)
    return perf_counter() - start


def _host(session: Session, context: int, speculate: bool, num_draft_tokens: int) -> float:
    """Host time a round, from a real generation."""
    count = min(64, session.capacity - context)
    options = Options(max_new_tokens=count, num_draft_tokens=num_draft_tokens, stop_token_ids=(), speculate=speculate)
    statistics = session.generate([1] * context, **options).statistics
    session.reset()
    return statistics.host_seconds / statistics.rounds
