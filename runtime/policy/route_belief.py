"""Which of the recorded routes a request is like, by its prompt and by what its rounds accept; `routing.json`.

For requests that name no route, where a bundle's routes want different drafts. The prompt's tokens say where a belief
starts (naive Bayes over what the recorded prompts had), and every round with a draft moves it (Bayes over the chances
that this drafter's tokens had on each route). `specexport calibrate` writes the file where choosing so pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...strict import OPTIONAL
from .routes import check_unit

ROUTING = "routing.json"
ROUTING_VERSION = 1

# Of the evidence of a round, what is kept; how much of a belief goes back to where it started with each such round; and
# the log-odds that a prompt can give. Chosen on the first 24 prompts of the demo's routes, where others moved the
# results by less than 2 %; figures in docs are of other prompts.
TEMPER, LEAK, SUREST = 0.6, 0.02, 6.0
LEAST = 1e-6


@dataclass(frozen=True)
class KnownDraft:
    """Of a drafter on a route, by what was recorded. speedup: adapting, over plain decoding. chances, unit: as of
    `RoutePolicy`.
    """

    speedup: float
    chances: tuple[float, ...]
    unit: float = field(default=1.0, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if not 0 < self.speedup < math.inf:
            raise ValueError(f"speedup is {self.speedup}; it must be a number above 0")
        if not self.chances or not all(0 <= chance <= 1 for chance in self.chances):  # NaN fails as well
            raise ValueError(f"chances are {list(self.chances)}; expected a probability for every draft token")
        check_unit(self.unit)

    def chance_of(self, drafted: int, accepted: int) -> float:
        """That of so many draft tokens so many are accepted."""
        chances = (*self.chances, *self.chances[-1:] * (drafted - len(self.chances)))
        failed = 1.0 - chances[accepted] if accepted < drafted else 1.0
        return math.prod(chances[:accepted]) * failed


@dataclass(frozen=True)
class KnownRoute:
    """drafters: by name. tokens: how often each token id came in its prompts, the commonest ones; total: of all."""

    drafters: dict[str, KnownDraft]
    tokens: dict[str, int]
    total: int

    def __post_init__(self) -> None:
        if not all(key.isdecimal() and count > 0 for key, count in self.tokens.items()):
            raise ValueError("tokens must be token ids and how often each came, at least once")
        if self.total < sum(self.tokens.values()):
            raise ValueError(f"total is {self.total}, fewer than its tokens count")

    def logarithm(self, prompt: Sequence[int], vocab: int) -> float:
        """Of the chance of a prompt's tokens, each by itself."""
        whole = math.log(self.total + vocab)
        return sum(math.log(self.tokens.get(str(token), 0) + 1) - whole for token in prompt)


@dataclass(frozen=True)
class Routing:
    """drafters: to choose from, the best for all first. vocab: tokens that prompts may have; 0 where prompts tell
    nothing.
    """

    schema_version: int
    bundle: str
    made: str
    vocab: int
    drafters: tuple[str, ...]
    routes: dict[str, KnownRoute]

    def __post_init__(self) -> None:
        if self.schema_version != ROUTING_VERSION:
            raise ValueError(
                f"schema version {self.schema_version}, this specexport reads {ROUTING_VERSION}; run specexport "
                "calibrate again"
            )
        if self.vocab < 0 or not self.drafters or not self.routes:
            raise ValueError("there is nothing to choose from; expected drafters and routes, and a vocab of at least 0")
        for name, route in self.routes.items():
            if set(route.drafters) != set(self.drafters):
                raise ValueError(f"route {name!r} has other drafters than {', '.join(self.drafters)}")

    def of_prompt(self, prompt: Sequence[int]) -> dict[str, float]:
        """How probable each route is, no surer than e^`SUREST` to 1; even odds where prompts tell nothing."""
        if not self.vocab:
            return dict.fromkeys(self.routes, 1.0 / len(self.routes))
        logs = {name: route.logarithm(prompt, self.vocab) for name, route in self.routes.items()}
        odds = {name: math.exp(max(log - max(logs.values()), -SUREST)) for name, log in logs.items()}
        return {name: share / sum(odds.values()) for name, share in odds.items()}

    def unit(self, drafter: str) -> float:
        """Of all routes together, as of `RoutePolicy`."""
        units = [route.drafters[drafter].unit for route in self.routes.values()]
        return sum(units) / len(units)


class Belief:
    """Of one request. shares: how probable each route is."""

    def __init__(self, routing: Routing, prompt: Sequence[int]) -> None:
        self._routes, self._start = routing.routes, routing.of_prompt(prompt)
        self.shares = dict(self._start)

    def speedup(self, drafter: str) -> float:
        """Expected over plain decoding."""
        return sum(share * self._routes[route].drafters[drafter].speedup for route, share in self.shares.items())

    def chances(self, drafter: str) -> tuple[float, ...]:
        """Of draft tokens to be accepted when all before them are, as believed now."""
        found = [(share, self._routes[route].drafters[drafter].chances) for route, share in self.shares.items()]
        most = min(len(chances) for _, chances in found)
        return tuple(sum(share * chances[index] for share, chances in found) for index in range(most))

    def observe(self, drafter: str, drafted: int, accepted: int) -> None:
        """A round in which `drafter`'s model drafted."""
        odds = {
            route: share * max(self._routes[route].drafters[drafter].chance_of(drafted, accepted), LEAST) ** TEMPER
            for route, share in self.shares.items()
        }
        whole = sum(odds.values())
        self.shares = {route: (1.0 - LEAK) * share / whole + LEAK * self._start[route] for route, share in odds.items()}
