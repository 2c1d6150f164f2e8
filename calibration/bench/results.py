"""Options and results of a benchmark, as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...errors import ParameterError
from ...runtime.sampling.parameters import SamplingParameters
from ..statistics.results import Interval, Quantiles

# near tie: the outputs differ, and where they first do, the target's two best logits are so close that a pass of
# another width may swap them (docs/losslessness.md, L2).
Outputs = Literal["equal", "near tie", "different", "not comparable"]


@dataclass(frozen=True)
class BenchOptions:
    """How to run a benchmark.

    num_draft_tokens: k of every round; None lets the session choose, by the bundle's policy if there is one.
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
        _ = self.sampling  # checks them
        for name in ("max_new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; it must be at least 1", name)
        if self.num_draft_tokens is not None and self.num_draft_tokens < 1:
            raise ParameterError(
                f"num_draft_tokens is {self.num_draft_tokens}; it must be at least 1, or there is nothing to compare",
                "num_draft_tokens",
            )

    @property
    def sampling(self) -> SamplingParameters:
        return SamplingParameters(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Run:
    """One request decoded one way, plainly or speculatively.

    Times in seconds; counts as in `Statistics`. decode_seconds: after the prefill. digest: SHA-256 of the int64 tokens.
    """

    emitted: int
    rounds: int
    looked_up: int
    draft_passes: int
    rounds_by_drafter: dict[str, int]
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
            raise ValueError(f"{self.emitted} tokens of {self.rounds} rounds in {self.decode_seconds} s are impossible")

    @property
    def latency(self) -> float:
        """Seconds per token, prefill excluded."""
        return self.decode_seconds / self.emitted


@dataclass(frozen=True)
class PairedRun:
    """One request decoded both ways.

    request: index in the run, from 0. line: of the prompt file, from 1. repeat: from 0.
    """

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
        """Time of plain decoding, prefill excluded, scaled to the number of tokens of the speculative run."""
        return self.plain.latency * self.speculative.emitted


@dataclass(frozen=True)
class RouteBench:
    """Results of one route, or of all routes together.

    Intervals are resampled by request; quantiles are over requests. prompt_tokens, emitted: of the speculative runs.
    speedup: plain over speculative time per token, prefill excluded; whole_request: the same, prefill included.
    speedups: quantiles of the requests' own speedups; slower: share of the requests below 1. latency_*: seconds per
    token; first_token_*: seconds. tokens_per_round: emitted over rounds, the bonus token included. rounds_by_drafter:
    as in `Statistics`. acceptance[i]: of the rounds that drafted token i, the share that accepted it. *_share: of the
    speculative time, prefill excluded.
    equal, near_ties, different, not_comparable: numbers of pairs.
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
    rounds_by_drafter: dict[str, int]
    acceptance: tuple[float, ...]
    draft_share: float
    target_share: float
    device_share: float
    host_share: float
    equal: int
    near_ties: int
    different: int
    not_comparable: int


@dataclass(frozen=True)
class Bench:
    """Results of a whole benchmark.

    routes: in the order of the prompts. overall: all routes together, None if there is only one. host: what it ran on.
    follows_policy: whether the bundle's policy decides what the options leave open.
    """

    bundle: str
    engine: str
    host: str
    options: BenchOptions
    routes: tuple[RouteBench, ...]
    overall: RouteBench | None
    pairs: tuple[PairedRun, ...]
    follows_policy: bool = False

    @property
    def passed(self) -> bool:
        return not any(route.different for route in self.routes)

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed} | asdict(self)
