"""What was decided for a bundle, by route: whether to speculate, with which drafts, and how many.

`policy.json` in the bundle.

`specexport calibrate` writes it; it may be edited by hand, and is checked when it is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

POLICY = "policy.json"
POLICY_VERSION = 1

# The assumed acceptance probability of a draft token before anything is known: 0.5 to 0.7 ended within 2 % of each
# other, in a benchmark that is not kept.
GUESS = 0.6

Verdict = Literal["on", "off", "undecided"]
Mode = Literal["adaptive", "fixed"]


# The high end of an unbounded interval, such as that of one request. Finite, since JSON has no infinity.
UNBOUNDED = 1e9


@dataclass(frozen=True)
class Evidence:
    """The evidence: what calibration found for the drafter and the best fixed number of draft tokens.

    requests: those whose response is not too short. acceptance_length: a, tokens per round. break_even: a*, the tokens
    per round needed. speedup: a / a*, between low and high with 95 %; high is `UNBOUNDED`
    where that is not known. p10: 10th percentile of the requests' speedups.
    """

    requests: int
    acceptance_length: float
    break_even: float
    speedup: float
    low: float
    high: float
    p10: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, vars(self).values())):
            raise ValueError("a figure of the evidence is not a number")


@dataclass(frozen=True)
class RoutePolicy:
    """num_draft_tokens: the best fixed number, 0 where plain decoding is expected to be better.

    mode: `fixed` drafts num_draft_tokens every round, none where the verdict is off. `adaptive` drafts as many as pay,
    up to the bundle's maximum, by the draft's confidence and recent acceptance; where the verdict is off, none until
    probes say that drafting pays. chances: the probability of each draft token, from the first, to be accepted when all
    before it are; `adaptive` starts from these.
    """

    verdict: Verdict
    drafter: str
    num_draft_tokens: int
    mode: Mode
    chances: tuple[float, ...]
    evidence: Evidence | None

    def __post_init__(self) -> None:
        if self.num_draft_tokens < (1 if self.verdict == "on" else 0):
            raise ValueError(
                f"num_draft_tokens is {self.num_draft_tokens} but the verdict is {self.verdict!r}; it must be "
                "at least 1"
            )
        if not self.chances or not all(0 <= chance <= 1 for chance in self.chances):  # NaN fails as well
            raise ValueError(f"chances are {list(self.chances)}; expected a probability for every draft token")


@dataclass(frozen=True)
class Policy:
    """default: for requests that name no route, or one that is not in `routes`.

    temperature: of the requests that it was made from. floor: the required p10 speedup.
    """

    schema_version: int
    bundle: str
    engine: str
    made: str
    temperature: float
    floor: float
    default: RoutePolicy
    routes: dict[str, RoutePolicy]

    def __post_init__(self) -> None:
        if self.schema_version != POLICY_VERSION:
            raise ValueError(f"schema version {self.schema_version}, this specexport reads {POLICY_VERSION}")

    def of(self, route: str | None) -> RoutePolicy:
        return self.default if route is None else self.routes.get(route, self.default)
