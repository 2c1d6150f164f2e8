"""What calibration found, as data: the terminal, the report and `--json` show these and nothing else."""

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
    """One drafter with one fixed number of draft tokens, k, replayed on the traces of a route.

    acceptance_length: tokens a round, the bonus or correction token included, a(k). break_even: a*(k), the tokens a
    round must give. speedup: S(k) = a / a*. p10: the slowest tenth of the requests' speedups; slower: the part of the
    requests below 1.
    """

    drafter: str
    num_draft_tokens: int
    acceptance_length: float
    break_even: float
    speedup: Interval
    p10: float
    slower: float


@dataclass(frozen=True)
class Bucket:
    """Requests whose `kind` (`prompt` or `response`) length in tokens lies in low <= length < high (None: no end)."""

    kind: str
    low: int
    high: int | None
    requests: int
    acceptance_length: Interval


@dataclass(frozen=True)
class MeasuredRuns:
    """Timings of the recorded runs: plain and speculative in turn, with the model (or the lookup) at the largest k.

    speedup: plain over speculative time of the route, behind the prefill. predicted: from costs and traces. speedups:
    by request. first_token_plain, first_token_speculative: median seconds to the first token. latencies: seconds a
    token, plain and speculative.
    """

    num_draft_tokens: int
    speedup: Interval
    predicted: float
    speedups: tuple[float, ...]
    first_token_plain: float
    first_token_speculative: float
    latency_plain: Quantiles
    latency_speculative: Quantiles


@dataclass(frozen=True)
class RouteAnalysis:
    """One route. `policy` is what is written to policy.json.

    acceptance: by position, of the rounds that reached a draft token the part that had it accepted. per_round[n]:
    rounds of n + 1 tokens, as a share. per_request: quantiles of the requests' mean acceptance length. alpha:
    acceptance rate a token. textbook[k]: (1 - alpha^(k+1)) / (1 - alpha), for k from 0. All these are of the recorded
    drafter, the first candidate's.
    speedups: of the chosen candidate, predicted, by request whose response is not too short. missing: requests still
    needed for a verdict, 0 where there is one. words: the verdict in a sentence.
    """

    route: str
    requests: int
    tokens: int
    rounds: int
    policy: RoutePolicy
    words: str
    missing: int
    candidates: tuple[DraftCandidate, ...]
    chosen: DraftCandidate
    acceptance: tuple[float, ...]
    per_round: tuple[float, ...]
    per_request: Quantiles
    alpha: float
    textbook: tuple[float, ...]
    buckets: tuple[Bucket, ...]
    speedups: tuple[float, ...]
    measured: MeasuredRuns

    @property
    def recorded_drafter(self) -> str:
        """The drafter of the recorded runs: acceptance, alpha and textbook are its."""
        return self.candidates[0].drafter


@dataclass(frozen=True)
class SignalQuality:
    """How good a survival signal is, on requests that it was not fitted on.

    error: expected calibration error of a token's chance; survival_error: of the product along the draft; auc: of a
    token's chance.
    reliability: (mean predicted, observed, tokens) of every bin.
    """

    signal: str
    error: float
    survival_error: float
    auc: float
    reliability: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True)
class Analysis:
    """signals: every one tried; signal: the one chosen, None without a draft model. settings: as they were given."""

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
    signals: tuple[SignalQuality, ...]
    signal: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
