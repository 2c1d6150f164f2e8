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
from ..measuring.replay import Runs, plain_seconds
from ..measuring.session_replay import Priced, adaptive_seconds, aligned, routed_seconds, start_of
from ..measuring.traces import Trace, cached
from ..statistics.results import RouteAnalysis
from .verdict import BETTER_BY, sides_of

# How many token ids of a route's prompts are kept, the most common ones.
MAX_TOKENS = 1024


@dataclass(frozen=True)
class Stream:
    """Requests, from `aligned`, and the drafters to choose from, the one that is best for all requests first."""

    requests: Sequence[Runs]
    drafters: Mapping[str, Priced]

    def only(self, numbers: Sequence[int]) -> Stream:
        drafters = {
            name: replace(one, reading=one.reading and one.reading.only(numbers)) for name, one in self.drafters.items()
        }
        return Stream([self.requests[number] for number in numbers], drafters)

    @property
    def routes(self) -> list[str]:
        return [next(iter(runs.values())).route for runs in self.requests]

    def halves(self) -> tuple[list[int], tuple[Stream, Stream]]:
        """(the half of each request, see `sides_of`; the halves)."""
        sides = sides_of(self.routes)
        one, other = ([number for number, side in enumerate(sides) if side == half] for half in (0, 1))
        return sides, (self.only(one), self.only(other))

    def traces(self, drafter: str) -> list[Trace]:
        return [runs[drafter] for runs in self.requests]

    def start(self, drafter: str) -> tuple[float, ...]:
        return start_of(self.traces(drafter), drafter, self.drafters[drafter].costs)

    def alone(self, drafter: str, starts: Sequence[tuple[float, ...]]) -> list[float]:
        """Seconds of each request with one drafter, adapting. starts: what each starts from."""
        return adaptive_seconds(self.traces(drafter), drafter, self.drafters[drafter], starts)[0]


def known(stream: Stream, vocab: int, bundle: str = "", made: str = "") -> Routing:
    """What a session must know to route requests like these. vocab: size of the vocabulary of the prompts, 0 to leave
    the prompts out.
    """
    routes = {}
    for route in sorted(set(stream.routes)):
        of_route = stream.only([number for number, name in enumerate(stream.routes) if name == route])
        prompts = [trace.tokens[: trace.prompt_tokens] for trace in of_route.traces(next(iter(stream.drafters)))]
        counts = Counter(token for prompt in prompts for token in prompt) if vocab else Counter[int]()
        tokens = {str(token): count for token, count in sorted(counts.most_common(MAX_TOKENS))}
        routes[route] = KnownRoute(
            {name: _known_draft(of_route, name) for name in stream.drafters}, tokens, counts.total()
        )
    return Routing(ROUTING_VERSION, bundle, made, vocab, tuple(stream.drafters), routes)


def _known_draft(stream: Stream, drafter: str) -> KnownDraft:
    traces, at, start = stream.traces(drafter), cached(stream.drafters[drafter].costs), stream.start(drafter)
    plain = sum(plain_seconds(trace, at) for trace in traces)
    spent = sum(stream.alone(drafter, [start] * len(traces)))
    return KnownDraft(round(plain / spent, 4), start)


def routed(stream: Stream, vocab: int) -> tuple[list[float], list[list[str]]]:
    """Like `routed_seconds`, with each half of the requests routed by what is known about the other half."""
    sides, halves = stream.halves()
    routings = [known(half, vocab) for half in halves]
    return routed_seconds(stream.requests, lambda number: routings[1 - sides[number]], stream.drafters)


def unrouted(stream: Stream) -> dict[str, list[float]]:
    """By drafter, the seconds of each request with that drafter alone, starting from the chances of the other half."""
    sides, halves = stream.halves()
    seconds = {}
    for name in stream.drafters:
        starts = [half.start(name) for half in halves]
        seconds[name] = stream.alone(name, [starts[1 - side] for side in sides])
    return seconds


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
    names.sort(key=alone.__getitem__)
    stream = replace(stream, drafters={name: stream.drafters[name] for name in names})
    gain, among = alone[names[0]] / sum(routed(stream, vocab)[0]), ", ".join(stream.drafters)
    finding = f"Without a route: choosing among {among} by prompt and rounds is {gain:.3f}x as fast as {names[0]} alone"
    if gain < BETTER_BY:
        return None, f"{finding}, too little to be worth it; the default drafter drafts."
    return known(stream, vocab, bundle, made), f"{finding}; sessions choose."


def _stream(drafted: Sequence[Drafted], names: Sequence[str]) -> Stream:
    of = {name: of_drafter(drafted, name) for name in names}
    traces, count = {name: one.traces for name, one in of.items()}, len(drafted[0].records)
    requests = [aligned({name: of_draft[number] for name, of_draft in traces.items()}) for number in range(count)]
    priced = {name: Priced(one.costs, one.reading if model_of(name) else None) for name, one in of.items()}
    return Stream(requests, priced)
