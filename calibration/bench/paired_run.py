"""One request, decoded plainly and speculatively, and whether the outputs agree.

Both get the same tokens, length limit and seed, and the caches are emptied before each, so both pay the prefill.
Sampled outputs may differ in length; times are compared per token.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ...runtime.proofs.equality import judge
from ...runtime.session import Options, Session
from ...runtime.state.statistics import Statistics
from ..measuring.prompts import Request
from .results import BenchOptions, Outputs, Run


def run_both_ways(
    session: Session, request: Request, options: BenchOptions, plain_first: bool
) -> tuple[Run, Run, Outputs]:
    """(plain run, speculative run, whether their outputs agree). The session's cached prefix is forgotten."""
    found: dict[bool, tuple[Run, list[int], list[int]]] = {}
    for speculate in (False, True) if plain_first else (True, False):
        found[speculate] = _run(session, request, options, speculate)
    (plain, expected, _), (speculative, tokens, widths) = found[False], found[True]
    return (
        plain,
        speculative,
        _compare(session, request, expected, tokens, widths) if options.greedy else "not comparable",
    )


def _run(
    session: Session, request: Request, options: BenchOptions, speculate: bool
) -> tuple[Run, list[int], list[int]]:
    """(the run, its tokens, for each token the width of the target pass that gave it)."""
    session.reset()
    given = Options(
        max_new_tokens=request.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        speculate=speculate,
    )
    if speculate:
        given |= Options(num_draft_tokens=options.num_draft_tokens, drafter=options.drafter, route=request.route)
    tokens: list[int] = []
    widths: list[int] = []
    drafted: list[int] = []  # by round
    before, statistics = 0, Statistics()
    for chunk in session.stream(request.tokens, **given):
        statistics = chunk.statistics
        drafted.append(statistics.drafted - before)
        before = statistics.drafted
        tokens += chunk.tokens
        widths += [drafted[-1] + 1] * len(chunk.tokens)
    run = Run(
        emitted=statistics.emitted,
        rounds=statistics.rounds,
        looked_up=statistics.looked_up,
        draft_passes=statistics.draft_passes,
        rounds_by_drafted=tuple(np.bincount(drafted).tolist()),
        drafted_by_position=tuple(statistics.drafted_by_position),
        accepted_by_position=tuple(statistics.accepted_by_position),
        first_token_seconds=statistics.first_token_seconds,
        prefill_seconds=statistics.prefill_seconds,
        decode_seconds=statistics.decode_seconds,
        draft_seconds=statistics.draft_seconds,
        target_seconds=statistics.target_seconds,
        device_seconds=statistics.device_seconds,
        host_seconds=statistics.host_seconds,
        digest=hashlib.sha256(np.asarray(tokens, "<i8").tobytes()).hexdigest(),
    )
    return run, tokens, widths


def _compare(
    session: Session, request: Request, plain: list[int], speculative: list[int], widths: list[int]
) -> Outputs:
    """Compare greedy outputs by tiers L1 and L2 of `runtime/proofs/equality.py`."""
    if speculative == plain:
        return "equal"
    try:
        judged = judge(session, request.tokens, plain, speculative, widths)
    finally:
        session.reset()
    # Where one only ends earlier than the other there is no first difference, and no rounding explains it.
    return "near tie" if judged.passed and judged.first_difference is not None else "different"
