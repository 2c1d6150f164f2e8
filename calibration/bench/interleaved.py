"""`specexport bench`: plain and speculative decoding of the same requests, in turn.

Every request is run both ways with the same tokens, lengths and seed, which way first alternates, and the caches are
emptied before each, so that both pay the prefill. Where lengths differ, as sampled ones do, plain time is taken for as
many tokens as the speculative run gave.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from ...bundle import sha256
from ...errors import BundleError, OutputError, ParameterError
from ...runtime.drafting.drafters import check_drafter
from ...runtime.policy.host_identity import bundle_identity, describe_host
from ...runtime.proofs.equality import judge
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Options, Session
from ...runtime.state.statistics import Statistics
from ...strict import parse
from ..measuring.journal import Journal
from ..measuring.prompts import Request
from ..statistics.intervals import quantiles, ratio_interval
from ..statistics.results import Interval, Quantiles

# `near tie`: they differ where the target's two best logits lie no further apart than widths differ
# (docs/losslessness.md, L2).
Outputs = Literal["equal", "near tie", "different", "not comparable"]


@dataclass(frozen=True)
class BenchOptions:
    """num_draft_tokens: of every round; None for the session's own way, its policy where it has one.

    repeats: how often each request is run both ways. Raises `ParameterError`.
    """

    num_draft_tokens: int | None = None
    drafter: str | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128
    repeats: int = 1

    def __post_init__(self) -> None:
        SamplingParameters(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)
        for name in ("max_new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_draft_tokens is not None and self.num_draft_tokens < 1:
            raise ParameterError(
                f"num_draft_tokens is {self.num_draft_tokens}; it must be at least 1, or there is nothing to compare"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Run:
    """One request, one way. Times in seconds; counts as of `Statistics`. decode_seconds: behind the prefill.

    rounds_by_drafted[n]: rounds that drafted n tokens. digest: SHA-256 of the tokens as int64.
    """

    emitted: int
    rounds: int
    looked_up: int
    draft_passes: int
    rounds_by_drafted: tuple[int, ...]
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    first_token_seconds: float
    prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    target_seconds: float
    device_seconds: float
    host_seconds: float
    digest: str

    def __post_init__(self) -> None:
        if self.emitted < 1 or self.rounds < 1 or not 0 < self.decode_seconds < math.inf:
            raise ValueError(f"{self.emitted} tokens of {self.rounds} rounds in {self.decode_seconds} s cannot be")

    @property
    def latency(self) -> float:
        """Seconds a token behind the prefill."""
        return self.decode_seconds / self.emitted


@dataclass(frozen=True)
class Pair:
    """One request, both ways. request: its place in the run, from 0. line: of the file. repeat: from 0."""

    request: int
    line: int
    route: str
    repeat: int
    prompt_tokens: int
    plain_first: bool
    plain: Run
    speculative: Run
    outputs: Outputs

    @property
    def plain_seconds(self) -> float:
        """What plain decoding takes behind the prefill for as many tokens as the speculative run gave."""
        return self.plain.latency * self.speculative.emitted


# Of the pairs of a route: the speedup that was to be expected, None where that is not known.
Predict = Callable[[str, Sequence[Pair]], float | None]
# (pairs finished, pairs in all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RouteBench:
    """One route, or all of them. Intervals are by request, quantiles over requests.

    prompt_tokens, emitted: of the speculative runs. speedup: plain time a token over speculative time a token, behind
    the prefill. whole_request: the same with it. speedups: quantiles of the requests' own; slower: the part of them
    below 1. latency_*: seconds a token; first_token_*: seconds. tokens_per_round: emitted over rounds, the bonus token
    included. acceptance[i]: the part of the rounds that drafted token i and had it accepted. *_share: of the time of
    the speculative runs behind the prefill. predicted: speedup by costs. equal, near_ties, different, not_comparable:
    pairs, by their outputs.
    """

    route: str
    requests: int
    prompt_tokens: int
    emitted: int
    rounds: int
    speedup: Interval
    whole_request: Interval
    speedups: Quantiles
    slower: float
    latency_plain: Quantiles
    latency_speculative: Quantiles
    first_token_plain: Quantiles
    first_token_speculative: Quantiles
    tokens_per_round: float
    acceptance: tuple[float, ...]
    draft_share: float
    target_share: float
    device_share: float
    host_share: float
    predicted: float | None
    equal: int
    near_ties: int
    different: int
    not_comparable: int


@dataclass(frozen=True)
class Bench:
    """routes: in the order of the prompts. overall: all of them together, where there are several.

    host: what it ran on.
    """

    bundle: str
    engine: str
    host: str
    options: BenchOptions
    routes: tuple[RouteBench, ...]
    overall: RouteBench | None
    pairs: tuple[Pair, ...]

    @property
    def passed(self) -> bool:
        return not any(route.different for route in self.routes)

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed} | asdict(self)


def bench(
    session: Session,
    requests: Sequence[Request],
    options: BenchOptions,
    journal: Journal | None = None,
    progress: Progress | None = None,
    predict: Predict | None = None,
) -> Bench:
    """Run every request both ways and compare. The session's cached prefix is forgotten.

    journal: pairs that it holds are not run again, new ones are added; its header must be `journal_header`. What an
    adaptive policy has learnt in the session is not in it: a run that goes on learns anew. Raises `ParameterError`, and
    `OutputError` for a journal that cannot be read or written.
    """
    check(session, requests, options)
    work = list(_schedule(requests, options.repeats))
    finished = {key: _read_pair(journal, key) for key, *_ in work if journal and key in journal.finished}
    if len(finished) < len(work):
        _run_pair(session, requests[0], options, True)  # warm-up
    if progress:
        progress(len(finished), len(work))
    pairs = []
    for key, repeat, index, plain_first in work:
        if key not in finished:
            request = requests[index]
            place = (index, request.line, request.route, repeat, len(request.tokens), plain_first)
            finished[key] = Pair(*place, *_run_pair(session, request, options, plain_first))
            if journal:
                journal.add(key, asdict(finished[key]))
            if progress:
                progress(len(finished), len(work))
        pairs.append(finished[key])
    session.reset()
    routes = list(dict.fromkeys(pair.route for pair in pairs))
    summaries = tuple(summarize(route, [pair for pair in pairs if pair.route == route], predict) for route in routes)
    overall = summarize("all", pairs, None) if len(routes) > 1 else None
    name = session.engine.name
    return Bench(session.bundle.root.name, name, describe_host(name), options, summaries, overall, tuple(pairs))


def check(session: Session, requests: Sequence[Request], options: BenchOptions) -> None:
    """Raises `ParameterError` for what the session cannot do, and for no request at all."""
    if not requests:
        raise ParameterError("there are no requests to run; give one at least")
    check_drafter(options.drafter, session.engine.draft is not None)
    if (options.num_draft_tokens or 0) > session.max_draft_tokens:
        most = session.max_draft_tokens
        raise ParameterError(
            f"num_draft_tokens is {options.num_draft_tokens}; this bundle was built for 1 to {most} (--max-draft-tokens)"
        )


def journal_header(session: Session, requests: Sequence[Request], options: BenchOptions) -> dict[str, Any]:
    """What two runs must have in common for one to continue the other."""
    root, engine = session.bundle.root, session.engine.name
    given = [[request.line, request.route, list(request.tokens), request.max_new_tokens] for request in requests]
    return {
        "command": "bench",
        "bundle": bundle_identity(session.bundle),
        "files": {path.name: sha256(path) for path in sorted(root.glob("*.json"))},  # the plans and the policy
        "engine": engine,
        "threads": session.threads,
        "host": describe_host(engine),
        "options": asdict(options),
        "requests": hashlib.sha256(json.dumps(given).encode()).hexdigest(),
    }


def summarize(route: str, pairs: Sequence[Pair], predict: Predict | None = None) -> RouteBench:
    """pairs: of one route at least one; the repeats of a request count as one longer request."""
    groups: dict[int, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.request, []).append(pair)
    grouped = list(groups.values())

    def totals(value: Callable[[Pair], float]) -> list[float]:
        return [sum(map(value, group)) for group in grouped]

    def means(value: Callable[[Pair], float]) -> Quantiles:
        return quantiles([total / len(group) for total, group in zip(totals(value), grouped, strict=True)])

    plain, speculative = totals(lambda pair: pair.plain_seconds), totals(lambda pair: pair.speculative.decode_seconds)
    speedups = [one / other for one, other in zip(plain, speculative, strict=True)]
    whole_plain = totals(lambda pair: pair.plain.prefill_seconds + pair.plain_seconds)
    whole_speculative = totals(lambda pair: pair.speculative.prefill_seconds + pair.speculative.decode_seconds)
    runs = [pair.speculative for pair in pairs]
    rounds, emitted, seconds = (
        sum(getattr(run, name) for run in runs) for name in ("rounds", "emitted", "decode_seconds")
    )
    drafted, accepted = (
        _by_position(getattr(run, f"{name}_by_position") for run in runs) for name in ("drafted", "accepted")
    )
    share = {
        name: sum(getattr(run, f"{name}_seconds") for run in runs) / seconds
        for name in ("draft", "target", "device", "host")
    }
    outputs = [pair.outputs for pair in pairs]
    return RouteBench(
        route=route,
        requests=len(grouped),
        prompt_tokens=sum(pair.prompt_tokens for pair in pairs),
        emitted=emitted,
        rounds=rounds,
        speedup=ratio_interval(plain, speculative),
        whole_request=ratio_interval(whole_plain, whole_speculative),
        speedups=quantiles(speedups),
        slower=sum(speedup < 1 for speedup in speedups) / len(speedups),
        latency_plain=means(lambda pair: pair.plain.latency),
        latency_speculative=means(lambda pair: pair.speculative.latency),
        first_token_plain=means(lambda pair: pair.plain.first_token_seconds),
        first_token_speculative=means(lambda pair: pair.speculative.first_token_seconds),
        tokens_per_round=emitted / rounds,
        acceptance=tuple(one / other for one, other in zip(accepted, drafted, strict=True)),
        draft_share=share["draft"],
        target_share=share["target"],
        device_share=share["device"],
        host_share=share["host"],
        predicted=predict(route, pairs) if predict else None,
        equal=outputs.count("equal"),
        near_ties=outputs.count("near tie"),
        different=outputs.count("different"),
        not_comparable=outputs.count("not comparable"),
    )


def _schedule(requests: Sequence[Request], repeats: int) -> Iterator[tuple[str, int, int, bool]]:
    """(key of the journal, repeat, index of the request, whether plain goes first).

    The order alternates within a route, since the routes of a file may alternate too, and from repeat to repeat.
    """
    for repeat in range(repeats):
        places: Counter[str] = Counter()
        for index, request in enumerate(requests):
            yield f"{repeat}/{index}", repeat, index, (places[request.route] + repeat) % 2 == 0
            places[request.route] += 1


def _read_pair(journal: Journal, key: str) -> Pair:
    try:
        return parse(Pair, journal.finished[key], f"{journal.path}, row {key}")
    except BundleError as error:
        raise OutputError(f"{error}; delete the file to start over") from None


def _run_pair(session: Session, request: Request, options: BenchOptions, plain_first: bool) -> tuple[Run, Run, Outputs]:
    """The plain run, the speculative one, and what their outputs say."""
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
    """The run, its tokens, and of each token the width of the target's pass that it came from."""
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
    """The tiers L1 and L2 of `runtime/proofs/equality.py`, of these very runs."""
    if speculative == plain:
        return "equal"
    try:
        judged = judge(session, request.tokens, plain, speculative, widths)
    finally:
        session.reset()
    # Where one only ends earlier than the other there is no first difference, and no rounding explains it.
    return "near tie" if judged.passed and judged.first_difference is not None else "different"


def _by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]
