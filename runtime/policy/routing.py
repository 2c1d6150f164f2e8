"""Which of the recorded routes a request resembles, where it names none and the routes want different drafts.

The prompt's tokens give the initial estimate (naive Bayes over the tokens of recorded prompts), and every round that a
model drafts updates it (Bayes' rule over the acceptance of its drafter on each route). `specexport calibrate` writes
`routing.json` where choosing the drafter by that pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import mul

ROUTING = "routing.json"
ROUTING_VERSION = 1

# The fraction of a round's evidence that counts; how far the estimate decays to its start with each such round; and the
# largest log-odds that a prompt can give. Chosen on the first 24 prompts of the demo's routes, where other values moved
# the results by less than 2 %; figures in docs are of other prompts.
TEMPER, LEAK, MAX_LOG_ODDS = 0.6, 0.02, 6.0
MIN_CHANCE = 1e-6


@dataclass(frozen=True)
class KnownDraft:
    """A drafter on a route, as recorded. speedup: of adaptive sessions over plain decoding. chances: as in
    `RoutePolicy`.
    """

    speedup: float
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < self.speedup < math.inf:
            raise ValueError(f"speedup is {self.speedup}; it must be a number above 0")
        if not self.chances or not all(0 <= chance <= 1 for chance in self.chances):  # NaN fails as well
            raise ValueError(f"chances are {list(self.chances)}; expected a probability for every draft token")

    @lru_cache(maxsize=1024)  # noqa: B019 - few drafts are ever known, and few outcomes of a round
    def evidence(self, drafted: int, accepted: int) -> float:
        """By how much a round speaks for this route: what counts of the probability that of `drafted` tokens exactly
        `accepted` are accepted.
        """
        chances = (*self.chances, *self.chances[-1:] * (drafted - len(self.chances)))
        failed = 1.0 - chances[accepted] if accepted < drafted else 1.0
        return float(max(math.prod(chances[:accepted]) * failed, MIN_CHANCE) ** TEMPER)


@dataclass(frozen=True)
class KnownRoute:
    """drafters: by name. tokens: how often each token id occurred in its prompts, the most frequent ones; total: of
    all.
    """

    drafters: dict[str, KnownDraft]
    tokens: dict[str, int]
    total: int

    def __post_init__(self) -> None:
        if not all(key.isdecimal() and count > 0 for key, count in self.tokens.items()):
            raise ValueError("tokens must be token ids and how often each came, at least once")
        if self.total < sum(self.tokens.values()):
            raise ValueError(f"total is {self.total}, fewer than its tokens count")

    @cached_property
    def _logs(self) -> dict[int, float]:
        return {int(token): math.log(count + 1) for token, count in self.tokens.items()}

    def logarithm(self, prompt: Sequence[int], vocab: int) -> float:
        """The log probability of a prompt's tokens, taken as independent."""
        logs = self._logs
        return sum(logs.get(token, 0.0) for token in prompt) - len(prompt) * math.log(self.total + vocab)


@dataclass(frozen=True)
class Routing:
    """drafters: to choose from, the best single one first. vocab: size of the prompts' vocabulary; 0 to ignore
    prompts.
    """

    schema_version: int
    bundle: str
    made: str
    vocab: int
    drafters: tuple[str, ...]
    routes: dict[str, KnownRoute]

    def __post_init__(self) -> None:
        if self.schema_version != ROUTING_VERSION:
            raise ValueError(f"schema version {self.schema_version}, this specexport reads {ROUTING_VERSION}")
        if self.vocab < 0 or not self.drafters or not self.routes:
            raise ValueError("there is nothing to choose from; expected drafters and routes, and a vocab of at least 0")
        for name, route in self.routes.items():
            if set(route.drafters) != set(self.drafters):
                raise ValueError(f"route {name!r} has other drafters than {', '.join(self.drafters)}")

    def of_prompt(self, prompt: Sequence[int]) -> dict[str, float]:
        """How probable each route is, at odds of at most e^`MAX_LOG_ODDS` to 1; even odds where prompts tell
        nothing.
        """
        if not self.vocab:
            return dict.fromkeys(self.routes, 1.0 / len(self.routes))
        logs = {name: route.logarithm(prompt, self.vocab) for name, route in self.routes.items()}
        odds = {name: math.exp(max(log - max(logs.values()), -MAX_LOG_ODDS)) for name, log in logs.items()}
        return {name: share / sum(odds.values()) for name, share in odds.items()}

    def renamed(self, names: Mapping[str, str]) -> Routing:
        routes = {
            route: replace(known, drafters={names[name]: one for name, one in known.drafters.items()})
            for route, known in self.routes.items()
        }
        return replace(self, drafters=tuple(names[name] for name in self.drafters), routes=routes)

    def of(self, drafter: str) -> list[KnownDraft]:
        """What is known of a drafter on each route, in their order."""
        return [route.drafters[drafter] for route in self.routes.values()]


class RoutePosterior:
    """Of one request. shares: how probable each route is, in their order. speedups: over plain decoding, expected of
    each drafter.
    """

    def __init__(self, routing: Routing, prompt: Sequence[int]) -> None:
        self._known = {name: routing.of(name) for name in routing.drafters}
        self.shares = list(routing.of_prompt(prompt).values())
        self._floor = [LEAK * share for share in self.shares]
        self.speedups: dict[str, float] = {}
        self._expect()

    def chances(self, drafter: str) -> tuple[float, ...]:
        """The expected probability of each draft token to be accepted when all before it are."""
        of_routes = zip(*(known.chances for known in self._known[drafter]), strict=False)
        return tuple(sum(map(mul, self.shares, chances)) for chances in of_routes)

    def observe(self, drafter: str, drafted: int, accepted: int) -> None:
        """Learn from a round in which `drafter`'s model drafted."""
        evidence = [known.evidence(drafted, accepted) for known in self._known[drafter]]
        odds = list(map(mul, self.shares, evidence))
        scale = (1.0 - LEAK) / sum(odds)
        self.shares = [scale * share + floor for share, floor in zip(odds, self._floor, strict=True)]
        self._expect()

    def _expect(self) -> None:
        self.speedups = {
            name: sum(share * one.speedup for share, one in zip(self.shares, known, strict=True))
            for name, known in self._known.items()
        }
