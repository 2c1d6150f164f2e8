"""`specexport calibrate`: measure costs, record requests, fit survival, decide for each route, write the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from ..errors import MissingPackageError
from ..runtime.costs.meter import CostMeter
from ..runtime.hub import bundle_name
from ..runtime.policy.cost_model import COSTS, Costs
from ..runtime.policy.files import JOURNALS, check_writable, write_decision
from ..runtime.policy.host_identity import bundle_identity, describe_host
from ..runtime.policy.routes import POLICY, POLICY_VERSION, Policy
from ..runtime.policy.routing import ROUTING
from ..runtime.policy.survival import SURVIVAL
from ..runtime.session import Session
from .drafted import Drafted, normalized
from .measuring.confidence import Reading, read_confidence
from .measuring.journal import Journal, own_path
from .measuring.prompts import Progress, Request, silent
from .measuring.record import Record, judged_tokens
from .options import CalibrateOptions, drafters_of, models_of
from .statistics.results import Analysis
from .steps import measure
from .survival.fit import MIN_TOKENS, fit_survival
from .verdicts.route_analysis import analyze_route
from .verdicts.routing import choose_routing
from .verdicts.verdict import Criteria, worth_reading


def check_packages() -> None:
    """Check for scikit-learn before a long run, not after it. Raises `MissingPackageError`."""
    if find_spec("sklearn") is None:
        raise MissingPackageError("scikit-learn", "calibrate")


def calibrate(
    session: Session, requests: Sequence[Request], options: CalibrateOptions, command: str, progress: Progress = silent
) -> Analysis:
    """Measure costs and acceptance, decide for each route, and write what sessions follow into the bundle.

    Writes costs.json, policy.json and survival.json, and routing.json where choosing among drafts pays. command: as the
    report states it. Resumes an interrupted run. Raises `ParameterError`, `OutputError`,
    `MissingPackageError`.
    """
    check_packages()
    drafters_of(session, options)
    check_writable(session.bundle)
    with Journal.open(journal_path(session, requests, options), _header(session, requests, options)) as journal:
        contexts = _contexts(session, requests)
        meters = {model: CostMeter(session, contexts, draft=model) for model in models_of(session, options)}
        recorded = measure(session, requests, options, journal, meters, progress)
        costs = normalized({model: meter.costs() for model, meter in meters.items()})
        drafted = [_drafted(session, model, recorded[model], costs[model]) for model in meters]
        analysis = _analyze(session, drafted, options, command)
        policy, routing = _policy(session, drafted, analysis, options), None
        if options.mode == "adaptive":
            vocab, made_for = session.bundle.manifest.target.vocab_size, bundle_identity(session.bundle)
            routing, unnamed = choose_routing(drafted, analysis.routes, vocab, made_for, analysis.made)
            analysis = replace(analysis, unnamed=unnamed)
        write_decision(session.bundle, costs, COSTS)
        survivals = {one.model: one.reading.survival for one in drafted if one.reading is not None}
        write_decision(session.bundle, survivals, SURVIVAL)
        if routing is not None:
            write_decision(session.bundle, routing, ROUTING)
        else:
            session.bundle.path(ROUTING).unlink(missing_ok=True)
        write_decision(session.bundle, policy, POLICY)
        journal.remove()
    with suppress(OSError):  # the folder may still hold other journals
        session.bundle.path(JOURNALS).rmdir()
    return analysis


def journal_path(session: Session, requests: Sequence[Request], options: CalibrateOptions) -> Path:
    return own_path(session.bundle.path(JOURNALS), "calibrate", _header(session, requests, options))


def _contexts(session: Session, requests: Sequence[Request]) -> list[int]:
    """Context lengths to measure costs at: the shortest prompt, the longest sequence, their geometric mean, and the
    capacity, since sessions may get longer texts than these.
    """
    low = min(len(request.tokens) for request in requests)
    high = min(session.capacity, max(len(request.tokens) + request.max_new_tokens for request in requests))
    return [low, round((low * high) ** 0.5), high, session.capacity]


def _drafted(session: Session, model: str, records: Sequence[Record], costs: Costs) -> Drafted:
    """What was recorded with the draft `model`, and its confidence if reading it pays."""
    drafted, tokens = Drafted(model, tuple(records), costs), judged_tokens(records)
    if len(tokens) < MIN_TOKENS or len(set(tokens.request.tolist())) < 2:
        return drafted
    survival, estimate = fit_survival(tokens, bundle_identity(session.bundle, model))
    reading = Reading(survival, tuple(map(read_confidence, records)))
    pays = worth_reading(drafted.traces, costs, reading, model)
    return replace(drafted, reading=reading if pays else None, estimate=estimate)


def _analyze(session: Session, drafted: Sequence[Drafted], options: CalibrateOptions, command: str) -> Analysis:
    first = drafted[0]
    records, costs = first.records, first.costs
    by_route: dict[str, list[int]] = {}
    for number, one in enumerate(records):
        by_route.setdefault(one.route, []).append(number)
    criteria = Criteria(drafters_of(session, options), options.floor, options.mode)
    return Analysis(
        bundle=bundle_name(session.bundle.root) or str(session.bundle.root),
        command=command,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=costs.host,
        engine=session.engine.name,
        temperature=options.temperature,
        max_new_tokens=max(one.limit for one in records),
        floor=options.floor,
        max_draft_tokens=costs.max_draft_tokens,
        costs=costs,
        routes=tuple(
            analyze_route(route, [one.only(numbers) for one in drafted], criteria)
            for route, numbers in sorted(by_route.items())
        ),
        estimate=first.estimate,
        reads_confidence=first.reading is not None,
    )


def _policy(session: Session, drafted: Sequence[Drafted], analysis: Analysis, options: CalibrateOptions) -> Policy:
    routes = {one.route: one.policy for one in analysis.routes}
    if len(routes) == 1:
        (default,) = routes.values()
    else:
        # The p10 of a mixture is that of its worst route; an adaptive schedule notices such routes by itself.
        floor = options.floor if options.mode == "fixed" else 0.0
        criteria = Criteria(drafters_of(session, options), floor, options.mode)
        default = analyze_route("all", drafted, criteria).policy
    return Policy(
        schema_version=POLICY_VERSION,
        bundle=bundle_identity(session.bundle),
        engine=session.engine.name,
        made=analysis.made,
        temperature=options.temperature,
        floor=options.floor,
        default=default,
        routes=routes,
    )


def _header(session: Session, requests: Sequence[Request], options: CalibrateOptions) -> dict[str, object]:
    """What must be equal for an interrupted run to be resumed."""
    prompts = json.dumps([asdict(request) for request in requests])
    manifest, names = session.bundle.manifest, models_of(session, options)
    return {
        "format": 4,
        "bundle": bundle_identity(session.bundle),
        "engine": session.engine.name,
        "host": describe_host(manifest, session.engine.name, session.engine.device),
        "threads": session.threads,
        "drafts": {d.name: manifest.files[d.model.weights].sha256 for d in manifest.drafts if d.name in names},
        "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
        "sampling": asdict(options.sampling),
        "bursts": options.bursts,
    }
