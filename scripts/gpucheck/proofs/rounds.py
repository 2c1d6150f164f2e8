"""Compares rounds on the device with the host's rounds over the same models, and with plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from specexport.bundle import ALIAS, Contract
from specexport.runtime.proofs.equality import check_equality
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from specexport.runtime.stream import Generation

from ..finding import Finding
from ..presets import Effort
from ..session_under_test import Subject

# The share of sampled requests that must agree: the device draws in fp32 and the host in fp64, so a uniform number can
# fall between the two. Sampling is limited to few tokens: with random weights, each of 128256 tokens has so little
# probability that this would happen often.
MIN_AGREEING = 0.75
WAYS = (
    ("greedy", 1.0, SamplingParameters()),
    ("sampled, block", MIN_AGREEING, SamplingParameters(temperature=1.0, top_k=40, verification="block", seed=1)),
    (
        "sampled, token",
        MIN_AGREEING,
        SamplingParameters(temperature=0.8, top_k=40, top_p=0.95, verification="token", seed=2),
    ),
)


def prove_rounds(subject: Subject, prompts: Sequence[Sequence[int]], effort: Effort) -> Iterator[Finding]:
    """Prove rounds on `prompts`, and on some whose rounds cross the end of a span or reach the capacity."""
    session = subject.session
    contract = session.bundle.manifest.contract
    prompts = [*prompts, *edge_prompts(contract, session.engine.target.vocab_size)]
    if session.engine.rounds is not None:
        yield _served(session, prompts[0])
        host = Session(session.bundle, replace(session.engine, rounds=None))
        yield from _against_host(session, host, prompts, effort.new_tokens)
    equalities = [check_equality(session, prompt, effort.new_tokens) for prompt in prompts]
    equal = sum(entry.same_width for entry in equalities)
    near = sum(entry.first_difference is not None and entry.near_tie for entry in equalities)
    narrow = sum(entry.first_difference is None for entry in equalities)
    ties = sum(entry.row_tie for entry in equalities)
    detail = f"{equal} of {len(prompts)} prompts equal at the same width, {ties} up to a near tie; "
    detail += f"at width 1 {narrow} are, {near} up to a near tie of two logits"
    yield Finding("greedy rounds give plain decoding's tokens", all(entry.passed for entry in equalities), detail)


def edge_prompts(contract: Contract, vocab_size: int) -> list[list[int]]:
    """Random prompts that end a few rounds before the end of a span."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, vocab_size, span - 3 * contract.widest_step).tolist() for span in contract.spans]


def generate(session: Session, prompt: Sequence[int], params: SamplingParameters) -> Generation:
    """Generate from an empty cache, since rows of an earlier request may come from passes of another width."""
    session.reset()
    return session.generate(prompt, params, stop_token_ids=())


def _served(session: Session, prompt: Sequence[int]) -> Finding:
    """Check that the device runs the rounds; otherwise the later proofs would only prove the host's."""
    params = SamplingParameters(max_new_tokens=16)
    ways = (params, replace(params, temperature=1.0), replace(params, speculate=False))
    found = [generate(session, prompt, way).statistics for way in ways]
    elsewhere = sum(statistics.draft_seconds + statistics.target_seconds for statistics in found)
    served = all(statistics.device_seconds for statistics in found) and not elsewhere
    return Finding(
        "the device runs the rounds",
        served,
        "greedy, sampled and plain ones" if served else "the host ran some of them",
    )


def _against_host(
    session: Session, host: Session, prompts: Sequence[Sequence[int]], new_tokens: int
) -> Iterator[Finding]:
    drafts = sorted({0, 1, 2, session.max_draft_tokens})
    for title, least, way in WAYS:
        same = accepted = 0
        for prompt, k in product(prompts, drafts):
            params = replace(way, max_new_tokens=new_tokens, num_draft_tokens=k, drafter=ALIAS)
            ours, theirs = (generate(either, prompt, params) for either in (session, host))
            same += _shown(ours) == _shown(theirs)
            accepted += ours.statistics.accepted
        count = len(prompts) * len(drafts)
        detail = f"{same} of {count} generations have the same tokens and the same accepted drafts; "
        detail += f"{accepted} drafts were accepted"
        yield Finding(f"device rounds give the host's, {title}", same >= least * count, detail)


def _shown(generation: Generation) -> tuple[object, ...]:
    return generation.tokens, generation.statistics.accepted_by_position, generation.statistics.drafted_by_position
