"""Requests that name no route: whether to choose the drafter round by round, and what a session must know for that.

If the routes' best drafters use different drafts, all requests are replayed as one session without routes. Each half of
them is routed by what is known about the other half. `routing.json` is written if that is faster than the best single
drafter by `BETTER_BY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...runtime.drafting.names import model_of
from ...runtime.policy.routing import ROUTING_VERSION, KnownDraft, KnownRoute, Routing
from ..drafted import Drafted, of_drafter
from ..measuring.adaptive_replay import Reading, adaptive_seconds
from ..measuring.routed_replay import Priced, Runs, aligned, replay_routed
from ..measuring.trace_replay import plain_seconds
from ..measuring.traces import Trace, cached
from ..statistics.results import RouteAnalysis
from .chains import unit_of
from .verdict import BETTER_BY, conditional_chances, sides_of

# How many token ids of a route's prompts are kept, the most common ones.
MAX_TOKENS = 1024


@dataclass(frozen=True)
class Stream:
    """Requests, from `aligned`, and the drafters to choose from, the one that is best for all requests first."""

    requests: Sequence[Runs]
    drafters: Mapping[str, Priced]

    def only(self, numbers: Sequence[int]) -> Stream:
        drafters = {name: replace(one, reading=_part(one.reading, numbers)) for name, one in self.drafters.items()}
        return Stream([self.requests[number] for number in numbers], drafters)

    def sides(self) -> list[int]:
        """See `sides_of`."""
        return sides_of([next(iter(runs.values())).route for runs in self.requests])

    def halves(self) -> tuple[Stream, Stream]:
        sides = self.sides()
        one, other = ([number for number, side in enumerate(sides) if side == half] for half in (0, 1))
        return self.only(one), self.only(other)

    def traces(self, drafter: str) -> list[Trace]:
        return [runs[drafter] for runs in self.requests]

    def routes(self) -> dict[str, list[int]]:
        """The numbers of the requests of each route."""
        found: dict[str, list[int]] = {}
        for number, runs in enumerate(self.requests):
            found.setdefault(next(iter(runs.values())).route, []).append(number)
        return dict(sorted(found.items()))

    def alone(self, drafter: str, chances: Sequence[tuple[float, ...]], units: Sequence[float]) -> list[float]:
        """Seconds of each request with one drafter, adapting. chances, units: what each starts from."""
        one, traces = self.drafters[drafter], self.traces(drafter)
        return adaptive_seconds(traces, one.costs, drafter, cached(one.costs), chances, one.reading, units)[0]


def known(stream: Stream, vocab: int, bundle: str = "", made: str = "") -> Routing:
    """What a session must know to route requests like these. vocab: size of the vocabulary of the prompts, 0 to leave
    the prompts out.
    """
    routes = {}
    for route, numbers in stream.routes().items():
        own = stream.only(numbers)
        prompts = [trace.tokens[: trace.prompt_tokens] for trace in own.traces(next(iter(own.drafters)))]
        counts = Counter(token for prompt in prompts for token in prompt) if vocab else Counter[int]()
        tokens = {str(token): count for token, count in sorted(counts.most_common(MAX_TOKENS))}
        drafters = {name: _known_draft(own, name) for name in own.drafters}
        routes[route] = KnownRoute(drafters, tokens, counts.total())
    return Routing(ROUTING_VERSION, bundle, made, vocab, tuple(stream.drafters), routes)


def _known_draft(own: Stream, drafter: str) -> KnownDraft:
    traces, costs = own.traces(drafter), own.drafters[drafter].costs
    chances, unit = conditional_chances(traces, drafter, costs.max_draft_tokens), unit_of(traces, drafter, costs)
    plain = sum(plain_seconds(trace, cached(costs)) for trace in traces)
    spent = sum(own.alone(drafter, [chances] * len(traces), [unit] * len(traces)))
    return KnownDraft(round(plain / spent, 4), chances, unit)


def routed(stream: Stream, vocab: int) -> tuple[list[float], list[list[str]]]:
    """Like `replay_routed`, with each half of the requests routed by what is known about the other half."""
    halves, sides = [known(half, vocab) for half in stream.halves()], stream.sides()
    return replay_routed(stream.requests, lambda number: halves[1 - sides[number]], stream.drafters)


def unrouted(stream: Stream) -> dict[str, list[float]]:
    """By drafter, the seconds of each request with that drafter alone, starting from the chances of the other half."""
    found, sides = {}, stream.sides()
    for name, one in stream.drafters.items():
        most, halves = one.costs.max_draft_tokens, [half.traces(name) for half in stream.halves()]
        chances = [conditional_chances(half, name, most) for half in halves]
        units = [unit_of(half, name, one.costs) for half in halves]
        found[name] = stream.alone(name, [chances[1 - side] for side in sides], [units[1 - side] for side in sides])
    return found


def choose_routing(
    drafted: Sequence[Drafted], routes: Sequence[RouteAnalysis], vocab: int, bundle: str, made: str
) -> tuple[Routing | None, str]:
    """(what to write, None if there is nothing to choose; the finding in a sentence, empty if there is none)."""
    policies = [one.policy for one in routes if one.policy.verdict != "off"]
    names = list(dict.fromkeys(policy.drafter for policy in policies))
    if len({model_of(name) for name in names}) < 2 or len(drafted[0].records) < 2 * len(routes):
        return None, ""
    stream = _stream(drafted, names)
    alone = {name: sum(seconds) for name, seconds in unrouted(stream).items()}
    best = min(names, key=lambda name: alone[name])
    stream = replace(stream, drafters={name: stream.drafters[name] for name in sorted(names, key=lambda n: alone[n])})
    gain = alone[best] / sum(routed(stream, vocab)[0])
    among = ", ".join(names)
    found = f"Without a route: choosing among {among} by prompt and rounds is {gain:.3f}x as fast as {best} alone"
    if gain < BETTER_BY:
        return None, f"{found}, which is too little; the default drafts."
    return known(stream, vocab, bundle, made), f"{found}; sessions choose."


def _stream(drafted: Sequence[Drafted], names: Sequence[str]) -> Stream:
    of = {name: of_drafter(drafted, name) for name in names}
    traces = {name: one.traces for name, one in of.items()}
    requests = [
        aligned({name: own[number] for name, own in traces.items()}) for number in range(len(drafted[0].records))
    ]
    readings = {name: one.reading if model_of(name) else None for name, one in of.items()}
    return Stream(requests, {name: Priced(one.costs, readings[name]) for name, one in of.items()})


def _part(reading: Reading | None, numbers: Sequence[int]) -> Reading | None:
    return reading and replace(reading, logits=tuple(reading.logits[number] for number in numbers))
