"""Analyses made by hand, as calibration would find them: for what shows them to people."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from specexport.calibration.statistics.results import (
    Analysis,
    DraftCandidate,
    EstimateQuality,
    Interval,
    MeasuredRuns,
    Quantiles,
    RouteAnalysis,
)
from specexport.runtime.policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime
from specexport.runtime.policy.routes import Evidence, RoutePolicy, Verdict

WORDS = {"on": "Speculate", "off": "Do not speculate", "undecided": "Not known"}
SCRIPT = "<script>alert(1)</script>"


def time(seconds: float) -> MeasuredTime:
    return MeasuredTime(seconds, 0.95 * seconds, 1.1 * seconds)


def cost_point(context: int, k_max: int, draft: bool = True) -> CostPoint:
    plain, slow = 2.0e-3 * (1 + context / 4000), 1 + context / 4000
    verify = [plain * (1 + (0.05 + context / 60000) * m) for m in range(k_max + 1)]
    host = [0.05e-3 + 0.01e-3 * k for k in range(k_max + 1)]
    drafted = 0.25e-3 * slow if draft else 0.0
    rounds = [k * drafted + verify[k] + host[k] for k in range(k_max + 1)]
    return CostPoint(context, tuple(map(time, rounds)), time(drafted), tuple(map(time, verify)), tuple(map(time, host)))


def costs(k_max: int = 4, draft: bool = True, contexts: Sequence[int] = (64, 512, 2048)) -> Costs:
    points = tuple(cost_point(context, k_max, draft) for context in contexts)
    return Costs(
        COSTS_VERSION,
        "0" * 16,
        "a CPU, 2 cores",
        "onnxruntime",
        2,
        "2026-11-21",
        1 / 4200,
        1 / 21000 if draft else 0.0,
        points,
    )


def route(
    name: str,
    verdict: Verdict,
    alpha: float,
    requests: int = 60,
    k_max: int = 4,
    drafters: Sequence[str] = ("model", "ngram"),
    seed: int = 0,
) -> RouteAnalysis:
    """A route whose tokens are accepted with about `alpha`."""
    random = Random(f"{name!r} {seed}")
    measured_costs = costs(k_max, "model" in drafters).at(512)
    textbook = tuple(sum(alpha**j for j in range(k + 1)) for k in range(k_max + 1))
    half = 0.5 / requests**0.5
    spread = [random.lognormvariate(0, 0.15) for _ in range(requests)]

    def candidate(drafter: str, k: int) -> DraftCandidate:
        length = 1 + (textbook[k] - 1) * (0.93 if "model" in drafter else 0.85 if len(drafters) == 1 else 0.2)
        cost = measured_costs.rounds[k] if "model" in drafter else measured_costs.looked_up(k)
        break_even = cost / measured_costs.plain
        speedup = length / break_even
        p10 = speedup * sorted(spread)[requests // 10]
        slower = sum(speedup * factor < 1 for factor in spread) / requests
        return DraftCandidate(
            drafter, k, length, break_even, Interval(speedup, speedup * (1 - half), speedup * (1 + half)), p10, slower
        )

    candidates = tuple(candidate(drafter, k) for drafter in drafters for k in range(1, k_max + 1))
    chosen = max(candidates, key=lambda one: one.speedup.value)
    speedups = tuple(chosen.speedup.value * factor for factor in spread)
    widest = next(one for one in candidates if one.num_draft_tokens == k_max)
    acceptance = tuple(min(1.0, alpha * (0.97 + 0.02 * j)) for j in range(k_max))
    evidence = Evidence(
        requests,
        chosen.acceptance_length,
        chosen.break_even,
        chosen.speedup.value,
        chosen.speedup.low,
        chosen.speedup.high,
        chosen.p10,
    )
    slow = Quantiles(2.1e-3, 2.2e-3, 2.6e-3, 3.9e-3)
    fast = Quantiles(*(value / widest.speedup.value for value in vars(slow).values()))
    return RouteAnalysis(
        route=name,
        requests=requests,
        tokens=requests * 96,
        rounds=round(requests * 96 / widest.acceptance_length),
        policy=RoutePolicy(verdict, chosen.drafter, chosen.num_draft_tokens, "adaptive", (alpha,) * k_max, evidence),
        words=f"{WORDS[verdict]}, with {chosen.num_draft_tokens} draft tokens by {chosen.drafter}: "
        f"{chosen.speedup.value:.2f}x expected.",
        missing=137 if verdict == "undecided" else 0,
        recorded_drafter=drafters[0],
        candidates=candidates,
        chosen=chosen,
        acceptance=acceptance,
        speedups=speedups,
        measured=MeasuredRuns(
            num_draft_tokens=k_max,
            speedup=Interval(widest.speedup.value * 0.98, widest.speedup.value * 0.94, widest.speedup.value * 1.03),
            predicted=widest.speedup.value,
            first_token_plain=31e-3,
            first_token_speculative=33e-3,
            latency_plain=slow,
            latency_speculative=fast,
        ),
    )


def analysis(routes: Sequence[RouteAnalysis] | None = None, k_max: int = 4, draft: bool = True) -> Analysis:
    """Three routes, ON, UNDECIDED and OFF, the last with an unfriendly name; by default of a pair with a draft."""
    if routes is None:
        routes = (
            route("code", "on", 0.8),
            route("chat & prose", "undecided", 0.36, 33),
            route(SCRIPT, "off", 0.08, 120),
        )
    return Analysis(
        bundle="demo.bundle",
        command="specexport calibrate demo.bundle --prompts prompts.jsonl",
        made="2026-11-21T20:00:00+00:00",
        host="a CPU, 2 cores, Linux",
        engine="onnxruntime",
        temperature=0.0,
        max_new_tokens=96,
        floor=0.97,
        max_draft_tokens=k_max,
        costs=costs(k_max, draft),
        routes=tuple(routes),
        estimate=EstimateQuality(0.013, 0.842) if draft else None,
        reads_confidence=draft,
    )


def lookups_only() -> Analysis:
    """Of a bundle without a draft model."""
    return analysis((route("quotes", "on", 0.95, drafters=("ngram",)),), draft=False)
