"""Results of a calibration, as data: the terminal, the report and `--json` show these and nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routes import RoutePolicy


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval, resampled by request."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Quantiles:
    p10: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class DraftCandidate:
    """One drafter, replayed on the traces of a route: with a fixed number of draft tokens, k, or adapting, up to k.

    acceptance_length: a(k), tokens per round including the bonus or correction token. break_even: a*(k), the tokens a
    round has to yield. speedup: S(k) = a / a*. p10: 10th percentile of the requests' speedups. slower: share of the
    requests below 1.
    """

    drafter: str
    num_draft_tokens: int
    acceptance_length: float
    break_even: float
    speedup: Interval
    p10: float
    slower: float
    adapts: bool = False


@dataclass(frozen=True)
class MeasuredRuns:
    """Timings of the recorded runs: plain and speculative interleaved, with the model (or the lookup) at the largest k.

    speedup: plain over speculative time of the route, prefill excluded. predicted: from costs and traces.
    first_token_*: median seconds to the first token. latency_*: seconds per token.
    """

    num_draft_tokens: int
    speedup: Interval
    predicted: float
    first_token_plain: float
    first_token_speculative: float
    latency_plain: Quantiles
    latency_speculative: Quantiles


@dataclass(frozen=True)
class RouteAnalysis:
    """Everything about one route.

    acceptance: of the recorded runs, by position, the share accepted of the rounds that reached it. policy: the route's
    entry of policy.json. words: its verdict in a sentence. missing: requests still needed for a verdict, 0 if there is
    one. recorded_drafter: of the recorded runs. chosen: the best fixed number of draft tokens. adaptive: the schedule
    that will run, with the same drafter; None if a fixed number will run. adapting: the same schedule with each
    drafter. speedups: the predicted speedup of what will run, for each request whose response is not too short.
    """

    route: str
    requests: int
    tokens: int
    rounds: int
    policy: RoutePolicy
    words: str
    missing: int
    recorded_drafter: str
    candidates: tuple[DraftCandidate, ...]
    chosen: DraftCandidate
    acceptance: tuple[float, ...]
    speedups: tuple[float, ...]
    measured: MeasuredRuns
    adaptive: DraftCandidate | None = None
    adapting: tuple[DraftCandidate, ...] = ()

    @property
    def judged(self) -> DraftCandidate:
        """What the verdict is on: the schedule that will run."""
        return self.adaptive or self.chosen


@dataclass(frozen=True)
class EstimateQuality:
    """How good the estimate of acceptance is on requests that it was not fitted on.

    error: expected calibration error of a token's chance. auc: how well the chance separates accepted from rejected.
    """

    error: float
    auc: float


@dataclass(frozen=True)
class Analysis:
    """A whole calibration. estimate: from the confidence of the first draft, None if it tells none or too little was
    judged. reads_confidence: whether sessions use it. unnamed: a sentence about requests that name no route, empty if
    there was nothing to choose.
    """

    bundle: str
    command: str
    made: str
    host: str
    engine: str
    temperature: float
    max_new_tokens: int
    floor: float
    max_draft_tokens: int
    costs: Costs
    routes: tuple[RouteAnalysis, ...]
    estimate: EstimateQuality | None
    reads_confidence: bool
    unnamed: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
