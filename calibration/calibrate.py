"""`specexport calibrate`: measure costs, record requests, fit survival, decide by route, write the bundle's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from ..errors import BundleError, MissingPackageError, OutputError, ParameterError
from ..runtime.costs.meter import CostMeter
from ..runtime.drafting.drafters import DRAFTERS, LOOKUPS
from ..runtime.policy.cost_model import COSTS, Costs
from ..runtime.policy.decisions import check_writable, write_decision
from ..runtime.policy.host_identity import bundle_identity, describe_host
from ..runtime.policy.routes import POLICY, POLICY_VERSION, Mode, Policy
from ..runtime.policy.survival import SURVIVAL, Survival
from ..runtime.sampling.parameters import SamplingParameters
from ..runtime.session import Session
from .measuring.adaptive_replay import Reading
from .measuring.journal import Journal
from .measuring.listening import listen
from .measuring.progress import Progress, silent
from .measuring.prompts import Request
from .measuring.record import Record, from_row, judged_tokens, record, to_row
from .statistics.results import Analysis, SignalQuality
from .survival.fit import fit_survival
from .verdicts.route_analysis import analyze_route
from .verdicts.verdict import Criteria, worth_reading

FOLDER = "calibration"
JOURNAL = f"{FOLDER}/calibrate.jsonl"
# Costs are measured this many times, spread over the run, in this many bursts each time.
GOES = 4
BURSTS = 6
# Judged tokens that a survival signal needs.
LEAST_TOKENS = 200


@dataclass(frozen=True)
class CalibrateOptions:
    """How to calibrate.

    temperature, top_k, top_p, seed: of the requests, whose drafts are judged by token verification. drafters: to choose
    from; none or `all` for all. floor: what the p10 speedup must reach. mode: of the entries of
    policy.json. bursts: see `CostMeter.measure`. Raises `ParameterError`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    drafters: tuple[str, ...] = ()
    floor: float = 0.9
    mode: Mode = "adaptive"
    bursts: int = BURSTS

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 10:  # NaN fails as well
            raise ParameterError(
                f"--floor is {self.floor}; it must be from 0 to 10, 1 for no slower than plain decoding"
            )
        _ = self.sampling  # checks them

    @property
    def sampling(self) -> SamplingParameters:
        return SamplingParameters(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)


def check_packages() -> None:
    """Check for packages before a long run, not after it. Raises `MissingPackageError`."""
    for package, module in (("scikit-learn", "sklearn"), ("matplotlib", "matplotlib"), ("jinja2", "jinja2")):
        if find_spec(module) is None:
            raise MissingPackageError(package, "calibrate")


def measure_only(session: Session, options: CalibrateOptions, progress: Progress = silent) -> Costs:
    """Measure the costs and write costs.json; the policy stays as it is. Raises `ParameterError`, `OutputError`."""
    _drafters(session, options)
    check_writable(session.bundle)
    meter = CostMeter(session)
    for go in range(GOES):
        progress(go, GOES)
        meter.measure(options.bursts)
    costs = meter.costs()
    write_decision(session.bundle, costs, COSTS)
    return costs


def calibrate(
    session: Session, requests: Sequence[Request], options: CalibrateOptions, command: str, progress: Progress = silent
) -> Analysis:
    """Measure, decide, and write costs.json, survival.json and policy.json into the bundle.

    command: as the report states it. Resumes an interrupted run. Raises `ParameterError`, `OutputError`.
    """
    _drafters(session, options)
    check_writable(session.bundle)
    folder = session.bundle.path(FOLDER)
    with Journal.open(session.bundle.path(JOURNAL), _header(session, requests, options)) as journal:
        meter = CostMeter(session, _contexts(session, requests))
        records, features = _record_all(session, requests, options, journal, meter, progress)
        progress(len(requests), len(requests))
        costs = meter.costs()
        survival, signals = _survival(session, records, features)
        reading = listen(session, requests, (records, features), costs, survival, options.sampling)
        if reading is not None and not worth_reading([one.trace for one in records], costs, reading):
            reading = survival = None
        analysis = replace(
            _analyze(session, records, costs, options, command, reading),
            signals=signals,
            signal=survival.signal if survival is not None else None,
        )
        policy = _policy(session, records, analysis, options, reading)
        write_decision(session.bundle, costs, COSTS)
        if survival is not None:
            write_decision(session.bundle, survival, SURVIVAL)
        else:
            session.bundle.path(SURVIVAL).unlink(missing_ok=True)
        write_decision(session.bundle, policy, POLICY)
        journal.remove()
    with suppress(OSError):  # a bench may keep its own journal there
        folder.rmdir()
    return analysis


def _record_all(
    session: Session,
    requests: Sequence[Request],
    options: CalibrateOptions,
    journal: Journal,
    meter: CostMeter,
    progress: Progress,
) -> tuple[list[Record], list[NDArray[np.float16]]]:
    """Record every request. Routes take turns, so that all see the machine in the same states.

    Costs are measured in between.
    """
    records, features = [], []
    goes = {len(requests) * go // GOES for go in range(GOES)}
    for number, request in enumerate(_in_turn(requests)):
        progress(number, len(requests))
        if number in goes:
            meter.measure(options.bursts)
            _warm_up(session, request)
        key = str(request.line)
        if key not in journal.finished:
            journal.add(key, to_row(*record(session, request, options.sampling, plain_first=number % 2 == 0)))
        try:
            found, numbers = from_row(journal.finished[key])
        except BundleError as error:
            raise OutputError(f"{journal.path}, row {key}: {error}; delete the file to start over") from None
        records.append(found)
        features.append(numbers)
    return records, features


def _warm_up(session: Session, request: Request) -> None:
    session.generate(
        request.tokens, max_new_tokens=min(4, request.max_new_tokens), num_draft_tokens=session.max_draft_tokens
    )


def _in_turn(requests: Sequence[Request]) -> list[Request]:
    """The first request of every route, then the second of every route, and so on."""
    places: dict[str, int] = {}
    keyed = []
    for request in requests:
        places[request.route] = places.get(request.route, -1) + 1
        keyed.append((places[request.route], request))
    return [request for _, request in sorted(keyed, key=lambda item: item[0])]


def _contexts(session: Session, requests: Sequence[Request]) -> list[int]:
    """Context lengths to measure costs at: shortest prompt, longest sequence, their geometric mean, and the capacity:
    sessions may be given longer texts than these.
    """
    low = min(len(request.tokens) for request in requests)
    high = min(session.capacity, max(len(request.tokens) + request.max_new_tokens for request in requests))
    return [low, round((low * high) ** 0.5), high, session.capacity]


def _survival(
    session: Session, records: Sequence[Record], features: Sequence[NDArray[np.float16]]
) -> tuple[Survival | None, tuple[SignalQuality, ...]]:
    tokens = judged_tokens(records, features)
    if session.engine.draft is None or len(tokens) < LEAST_TOKENS or len(set(tokens.request.tolist())) < 2:
        return None, ()
    return fit_survival(tokens, bundle_identity(session.bundle))


def _analyze(
    session: Session,
    records: Sequence[Record],
    costs: Costs,
    options: CalibrateOptions,
    command: str,
    reading: Reading | None,
) -> Analysis:
    """Everything but the survival signals."""
    by_route: dict[str, list[int]] = {}
    for number, one in enumerate(records):
        by_route.setdefault(one.route, []).append(number)
    possible = _possible_drafters(session)
    criteria = Criteria(_drafters(session, options), options.floor, options.mode)
    return Analysis(
        bundle=str(session.bundle.root),
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
            analyze_route(
                route,
                [records[number] for number in numbers],
                costs,
                possible,
                criteria,
                reading and replace(reading, logits=tuple(reading.logits[number] for number in numbers)),
            )
            for route, numbers in sorted(by_route.items())
        ),
        signals=(),
        signal=None,
    )


def _drafters(session: Session, options: CalibrateOptions) -> tuple[str, ...]:
    """Drafters to choose from, the preferred one first. Raises `ParameterError` for one that cannot run here."""
    possible = _possible_drafters(session)
    for name in options.drafters:
        if name not in (*possible, "all"):
            raise ParameterError(
                f"--drafter is {name}; with this bundle and engine it must be one of {', '.join(possible)}, or all"
            )
    return possible if "all" in options.drafters else options.drafters or possible


def _possible_drafters(session: Session) -> tuple[str, ...]:
    """The session's default first. Where the device runs whole rounds only the model: lookups run on the host."""
    if session.engine.rounds is not None and session.engine.draft is not None:
        return ("model",)
    return DRAFTERS if session.engine.draft is not None else tuple(LOOKUPS)


def _policy(
    session: Session,
    records: Sequence[Record],
    analysis: Analysis,
    options: CalibrateOptions,
    reading: Reading | None,
) -> Policy:
    routes = {one.route: one.policy for one in analysis.routes}
    if len(routes) == 1:
        (default,) = routes.values()
    else:
        # The p10 of a mixture is that of its worst route, which an adaptive schedule finds out by itself.
        floor = options.floor if options.mode == "fixed" else 0.0
        criteria = Criteria(_drafters(session, options), floor, options.mode)
        possible = _possible_drafters(session)
        default = analyze_route("all", records, analysis.costs, possible, criteria, reading).policy
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
    return {
        "bundle": bundle_identity(session.bundle),
        "engine": session.engine.name,
        "host": describe_host(session.engine.name, session.engine.device),
        "threads": session.threads,
        "prompts": hashlib.sha256(prompts.encode()).hexdigest(),
        "sampling": asdict(options.sampling),
    }
