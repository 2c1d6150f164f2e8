"""One request, decoded plainly and speculatively, and whether the outputs agree.

Both get the same tokens, length limit and seed, and the caches are emptied before each, so both pay the prefill.
Sampled outputs may differ in length; times are compared per token.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from ...runtime.proofs.equality import judge
from ...runtime.proofs.output import Output, decode_request
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ..measuring.prompts import Request
from .results import BenchOptions, Outputs, Run


def run_both_ways(
    session: Session, request: Request, options: BenchOptions, plain_first: bool
) -> tuple[Run, Run, Outputs]:
    """(plain run, speculative run, whether their outputs agree). Clears the session's cached prefix."""
    found: dict[bool, Output] = {}
    for speculate in (False, True) if plain_first else (True, False):
        found[speculate] = _decode(session, request, options, speculate)
    plain, speculative = found[False], found[True]
    outputs = _compare(session, request, plain, speculative) if options.greedy else "not comparable"
    return _run(plain), _run(speculative), outputs


def _decode(session: Session, request: Request, options: BenchOptions, speculate: bool) -> Output:
    session.reset()
    params = SamplingParameters(
        max_new_tokens=request.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        speculate=speculate,
    )
    if speculate:
        params = replace(
            params, num_draft_tokens=options.num_draft_tokens, drafter=options.drafter, route=request.route
        )
    return decode_request(session, request.tokens, params)


def _run(output: Output) -> Run:
    statistics = output.statistics
    return Run(
        emitted=statistics.emitted,
        rounds=statistics.rounds,
        looked_up=statistics.looked_up,
        draft_passes=statistics.draft_passes,
        guess_passes=statistics.guess_passes,
        rounds_by_drafted=tuple(np.bincount(output.drafted).tolist()),
        drafted_by_position=tuple(statistics.drafted_by_position),
        accepted_by_position=tuple(statistics.accepted_by_position),
        first_token_seconds=statistics.first_token_seconds,
        prefill_seconds=statistics.prefill_seconds,
        decode_seconds=statistics.decode_seconds,
        draft_seconds=statistics.draft_seconds,
        target_seconds=statistics.target_seconds,
        device_seconds=statistics.device_seconds,
        host_seconds=statistics.host_seconds,
        digest=hashlib.sha256(np.asarray(output.tokens, "<i8").tobytes()).hexdigest(),
    )


def _compare(session: Session, request: Request, plain: Output, speculative: Output) -> Outputs:
    """Compare greedy outputs by tiers L1 and L2 of `runtime/proofs/equality.py`."""
    if speculative.tokens == plain.tokens:
        return "equal"
    if SamplingParameters().with_defaults(session.bundle.manifest.defaults).adjusts_logits:
        return "not comparable"  # by the target's own logits
    stop_tokens = session.bundle.manifest.text.stop_token_ids
    try:
        judged = judge(session, request.tokens, plain.tokens, speculative.tokens, speculative.widths, stop_tokens)
    finally:
        session.reset()
    return "near tie" if judged.passed else "different"
