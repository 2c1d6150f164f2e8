"""`specexport bench`: plain and speculative decoding of the same requests, interleaved.

Which of the two runs first alternates, so that a machine that gets warm or busy slows both equally.
Both get the same tokens, length limit and seed, and the caches are emptied before each, so both pay the prefill. As in
a server, speculative runs look up in the answers to earlier lines of the file, but never in those to the same one.
Sampled outputs may differ in length; times are compared per token.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from ...bundle import sha256
from ...errors import ParameterError
from ...runtime.drafting.names import check_drafter
from ...runtime.drafting.ngram_cache import NgramCache
from ...runtime.hub import bundle_name
from ...runtime.policy.host_identity import bundle_identity, describe_host
from ...runtime.proofs.equality import DecodedOutput, decode_request, judge
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from ..measuring.journal import Journal
from ..measuring.prompts import Progress, Request, silent
from .results import Bench, BenchOptions, Outputs, PairedRun, Run
from .table import summarize


def bench(
    session: Session,
    requests: Sequence[Request],
    options: BenchOptions,
    journal: Journal | None = None,
    progress: Progress = silent,
) -> Bench:
    """Run every request both ways and compare. Clears the session's cached prefix.

    journal: finished pairs are read from it and new ones appended; its header must be `journal_header`. It does not
    hold what an adaptive policy learnt in the session, nor answers, so a resumed run learns again. Raises
    `ParameterError`, and `OutputError` for a journal that cannot be read or written.
    """
    check(session, requests, options)
    work = list(_schedule(requests, options.repeats))
    finished = {key: journal.read(key, PairedRun) for key, *_ in work if journal and key in journal.finished}
    if len(finished) < len(work):
        run_both_ways(session, requests[0], options, True, NgramCache())  # warm-up
    progress(len(finished), len(work))
    pairs, answers = [], [NgramCache() for _ in range(options.repeats)]
    for key, repeat, index, plain_first in work:
        if key not in finished:
            request = requests[index]
            place = (index, request.line, request.route, repeat, len(request.tokens), plain_first)
            finished[key] = PairedRun(*place, *run_both_ways(session, request, options, plain_first, answers[repeat]))
            if journal:
                journal.add(key, asdict(finished[key]))
            progress(len(finished), len(work))
        pairs.append(finished[key])
    session.reset()
    routes = list(dict.fromkeys(pair.route for pair in pairs))
    summaries = tuple(summarize(route, [pair for pair in pairs if pair.route == route]) for route in routes)
    overall = summarize("all", pairs) if len(routes) > 1 else None
    manifest, name = session.bundle.manifest, session.engine.name
    host = describe_host(manifest, name, session.engine.device)
    policy = session.decisions.policy is not None
    return Bench(bundle_name(session.bundle.root), name, host, options, summaries, overall, tuple(pairs), policy)


def check(session: Session, requests: Sequence[Request], options: BenchOptions) -> None:
    """Raise `ParameterError` if there is no request or the session cannot do what the options ask for."""
    if not requests:
        raise ParameterError("there are no requests to run; give at least one", "requests")
    check_drafter(options.drafter, session.bundle.manifest.draft_names)
    if (options.num_draft_tokens or 0) > session.max_draft_tokens:
        most = session.max_draft_tokens
        raise ParameterError(
            f"num_draft_tokens is {options.num_draft_tokens}; --max-draft-tokens of this bundle is {most}",
            "num_draft_tokens",
        )


def journal_header(session: Session, requests: Sequence[Request], options: BenchOptions) -> dict[str, Any]:
    """What must be equal for one run to resume another."""
    root, engine = session.bundle.root, session.engine
    rows = [[request.line, request.route, list(request.tokens), request.max_new_tokens] for request in requests]
    return {
        "command": "bench",
        "format": 2,
        "bundle": bundle_identity(session.bundle),
        "files": {path.name: sha256(path) for path in sorted(root.glob("*.json"))},  # the plans and the policy
        "engine": engine.name,
        "threads": session.threads,
        "host": describe_host(session.bundle.manifest, engine.name, engine.device),
        "options": asdict(options),
        "requests": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
    }


def _schedule(requests: Sequence[Request], repeats: int) -> Iterator[tuple[str, int, int, bool]]:
    """Yield (journal key, repeat, index of the request, whether plain goes first).

    The order alternates within each route (the routes of a file may alternate too) and from repeat to repeat.
    """
    for repeat in range(repeats):
        places: Counter[str] = Counter()
        for index, request in enumerate(requests):
            yield f"{repeat}/{index}", repeat, index, (places[request.route] + repeat) % 2 == 0
            places[request.route] += 1


def run_both_ways(
    session: Session, request: Request, options: BenchOptions, plain_first: bool, answers: NgramCache
) -> tuple[Run, Run, Outputs]:
    """(plain run, speculative run, whether their outputs agree). Clears the session's cached prefix.

    answers: to earlier requests; the speculative run's is added.
    """
    decoded: dict[bool, DecodedOutput] = {}
    for speculate in (False, True) if plain_first else (True, False):
        decoded[speculate] = _decode(session, request, options, answers if speculate else None)
    plain, speculative = decoded[False], decoded[True]
    outputs = _compare(session, request, plain, speculative) if options.greedy else "not comparable"
    return _run(plain), _run(speculative), outputs


def _decode(session: Session, request: Request, options: BenchOptions, answers: NgramCache | None) -> DecodedOutput:
    """answers: None to decode plainly."""
    session.reset()
    params = replace(options.sampling, max_new_tokens=request.max_new_tokens, speculate=answers is not None)
    if answers is not None:
        session.answers = answers
        params = replace(
            params, num_draft_tokens=options.num_draft_tokens, drafter=options.drafter, route=request.route
        )
    return decode_request(session, request.tokens, params)


def _run(output: DecodedOutput) -> Run:
    known: dict[str, Any] = {"digest": hashlib.sha256(np.asarray(output.tokens, "<i8").tobytes()).hexdigest()}
    for name in {one.name for one in fields(Run)} - {"digest"}:
        value = getattr(output.statistics, name)
        known[name] = tuple(value) if isinstance(value, list) else value
    return Run(**known)


def _compare(session: Session, request: Request, plain: DecodedOutput, speculative: DecodedOutput) -> Outputs:
    """Compare greedy outputs by tiers L1 and L2 of `runtime/proofs/equality.py`."""
    if speculative.tokens == plain.tokens:
        return "equal"
    if SamplingParameters().with_defaults(session.bundle.manifest.defaults).adjusts_logits:
        return "not comparable"  # by the target's own logits
    stop_tokens = session.bundle.manifest.text.stop_token_ids
    try:
        given = request.tokens, plain.tokens, speculative.tokens, speculative.widths
        judged = judge(session, *given, stop_tokens, speculative.rows)
    finally:
        session.reset()
    return "near tie" if judged.passed else "different"
