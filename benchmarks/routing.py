"""Choosing among drafts round by round, for requests that name no route: replayed on recorded text at given costs.

    python benchmarks/routing.py BUNDLE [--routes code prose] [--keeps 0.6] [--limit N]

Two drafts that know one route each are made of one recorded draft: of the tokens that it has right, each keeps the part
`--keeps` on the other's route. A request without a route is taken for one of those that were recorded, whose rates and
chances are known of the other half of the requests. Where it starts from is even odds, or what the prompt's tokens say
(naive Bayes over those of the other half, no surer than e^3 to 1). What rounds accept says which one it is (Bayes), and
the next round is drafted by whoever promises most, less what its cache must catch up with. Nothing behind a round is
looked at.

Against it: each draft alone, adapting; and routes that are named. d and v(5) are in plain rounds. No clock is asked.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from extended_replay import costs, record
from specexport import load
from specexport.calibration.measuring.adaptive_replay import adapt
from specexport.calibration.measuring.trace_replay import CostsAt, Replayer, Trace, cached, plain_seconds, round_seconds
from specexport.calibration.verdicts.verdict import conditional_chances
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.lookup_schedule import adaptive_schedule
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.policy.schedule import AdaptiveSchedule, RouteState

HOSTS = ((0.12, 1.4), (0.3, 1.4), (0.15, 1.05))  # d and v(5)
MOST = 4
# Of the evidence of a round, what is kept; how much of the belief goes back to where it started each round; over how
# many plain rounds the time to catch up is spread; and the log-odds that a prompt can give. Chosen on the files' last
# prompts, where others moved the results by less than 2 %; the first ones are replayed.
TEMPER, LEAK, HORIZON, SUREST = 0.6, 0.02, 24, 3.0
LEAST = 1e-6

Drafts = Mapping[str, Trace]  # one request, by the draft that it was recorded with


@dataclass(frozen=True)
class Known:
    """Of recorded requests, by route and draft: tokens a second, adapting, and the chances of draft tokens.

    words: by route, how often each token came.
    """

    rates: Mapping[tuple[str, str], float]
    chances: Mapping[tuple[str, str], tuple[float, ...]]
    words: Mapping[str, Counter[int]] = field(default_factory=dict)

    def of_prompt(self, prompt: Sequence[int], vocab: int) -> dict[str, float]:
        """How probable each route is, by the tokens of the prompt."""
        logs = {}
        for route, counts in self.words.items():
            whole = math.log(counts.total() + vocab)
            logs[route] = sum(math.log(counts[token] + 1) - whole for token in prompt)
        odds = {route: math.exp(max(log - max(logs.values()), -SUREST)) for route, log in logs.items()}
        return {route: share / sum(odds.values()) for route, share in odds.items()}


def specialists(trace: Trace, routes: Sequence[str], keeps: float, draw: random.Random) -> dict[str, Trace]:
    """Drafts that know one of the routes each, by its name."""

    def agrees(right: bool | None, own: bool) -> bool | None:
        return right if own or not right else draw.random() < keeps

    own = {route: tuple(agrees(right, route == trace.route) for right in trace.agrees) for route in routes}
    return {route: replace(trace, agrees=found) for route, found in own.items()}


def schedule(drafter: str, prices: Costs, state: RouteState, chances: tuple[float, ...]) -> AdaptiveSchedule:
    return adaptive_schedule(RoutePolicy("undecided", drafter, 0, "adaptive", chances, None), prices, None, state, MOST)


def alone(stream: Sequence[Drafts], draft: str, lookup: str, prices: Costs, at: CostsAt) -> list[float]:
    """Seconds of each request with one draft."""
    state, seconds = RouteState(), []
    for request in stream:
        drafter = lookup + "model"
        rounds = adapt(request[draft], drafter, schedule(drafter, prices, state, (0.6,) * MOST))
        seconds.append(sum(round_seconds(one, at) for one in rounds))
    return seconds


def known(stream: Sequence[Drafts], routes: Sequence[str], lookup: str, prices: Costs, at: CostsAt) -> Known:
    rates, chances, words = {}, {}, {}
    for route in routes:
        own = [request for request in stream if request[route].route == route]
        words[route] = Counter(token for request in own for token in request[route].tokens)
        tokens = sum(request[route].output_tokens for request in own)
        for draft in routes:
            rates[route, draft] = tokens / sum(alone(own, draft, lookup, prices, at))
            chances[route, draft] = conditional_chances([request[draft] for request in own], lookup + "model", MOST)
    return Known(rates, chances, words)


class Router:
    """Of one request. start: what is believed of its route before the first round."""

    def __init__(self, start: Mapping[str, float], found: Known, prices: Costs, plain: float) -> None:
        self.belief, self._start = dict(start), start
        self._found, self._prefill = found, prices.draft_prefill / (HORIZON * plain)

    def choose(self, behind: Mapping[str, int]) -> str:
        """behind: rows that each draft's cache lacks."""

        def promise(draft: str) -> float:
            rate = sum(share * self._found.rates[route, draft] for route, share in self.belief.items())
            return rate / (1.0 + self._prefill * behind[draft])

        return max(behind, key=promise)

    def observe(self, draft: str, drafted: int, accepted: int) -> None:
        for route in self.belief:
            chances, chance = self._found.chances[route, draft], 1.0
            for index in range(accepted):
                chance *= chances[index]
            chance *= 1.0 - chances[accepted] if accepted < drafted else 1.0
            self.belief[route] *= max(chance, LEAST) ** TEMPER
        whole = sum(self.belief.values())
        self.belief = {
            route: (1.0 - LEAK) * share / whole + LEAK * self._start[route] for route, share in self.belief.items()
        }


def routed(
    stream: Sequence[Drafts], halves: tuple[Known, Known], lookup: str, prices: Costs, vocab: int = 0
) -> tuple[list[float], list[list[str]]]:
    """(seconds of each request, who drafted its rounds). halves: what is known of every other request. vocab: of the
    prompts' tokens, 0 for even odds.
    """
    at, drafter, drafts = cached(prices), lookup + "model", list(stream[0])
    states, seconds, choices = {draft: RouteState() for draft in drafts}, [], []
    for number, request in enumerate(stream):
        found, first = halves[1 - number % 2], request[drafts[0]]
        starts = {draft: tuple(sum(found.chances[r, draft][i] for r in drafts) / len(drafts) for i in range(MOST))
                  for draft in drafts}  # fmt: skip
        schedules = {draft: schedule(drafter, prices, states[draft], starts[draft]) for draft in drafts}
        replayers = {draft: Replayer(request[draft], drafter) for draft in drafts}
        place, spent, chosen = first.prompt_tokens, 0.0, []
        start = found.of_prompt(first.tokens[:place], vocab) if vocab else dict.fromkeys(drafts, 1.0 / len(drafts))
        router, missed = Router(start, found, prices, at(place).plain), dict.fromkeys(drafts, 0)
        while place < len(first.tokens):
            behind = {draft: missed[draft] + replayers[draft].behind for draft in drafts}
            draft = router.choose(behind)
            count = schedules[draft].next(place, behind[draft] + 1)
            one = replayers[draft].round(place, count, schedules[draft].guide)
            schedules[draft].observe(one.num_drafted, one.num_accepted)
            spent += round_seconds(one, at)
            if one.passes:
                spent += missed[draft] * prices.draft_prefill
                missed[draft] = 0
                own = min(one.passes, one.num_drafted)
                router.observe(draft, own, min(one.num_accepted, own))
            for other in drafts:
                missed[other] += (one.num_accepted + 1) * (other != draft)
            chosen.append(draft)
            place += one.num_accepted + 1
        seconds.append(spent)
        choices.append(chosen)
    return seconds, choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--routes", nargs=2, default=["code", "prose"])
    parser.add_argument("--keeps", type=float, default=0.6)
    parser.add_argument("--limit", type=int, default=36)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    given = parser.parse_args()
    routes, draw = given.routes, random.Random(1)
    session = load(given.bundle, policy=False)
    traces = [one for route in routes for one in record(session, route, slice(given.limit), given.max_new_tokens)]
    stream = [specialists(trace, routes, given.keeps, draw) for trace in traces]
    draw.shuffle(stream)
    vocab = session.bundle.manifest.target.vocab_size
    for (d, v5), lookup in product(HOSTS, ("", "ngram+")):
        prices = costs(d, v5, MOST)
        at = cached(prices)
        halves = known(stream[::2], routes, lookup, prices, at), known(stream[1::2], routes, lookup, prices, at)
        plain = sum(plain_seconds(request[routes[0]], at) for request in stream)
        best = min(sum(alone(stream, draft, lookup, prices, at)) for draft in routes)
        own = {route: [request for request in stream if request[route].route == route] for route in routes}
        named = {r: min(sum(alone(own[r], draft, lookup, prices, at)) for draft in routes) for r in routes}
        gain = best / sum(named.values())
        print(f"d {d}, v(5) {v5}, {lookup}DRAFT: one draft {plain / best:.3f}x, routes named {gain:.3f} of that")
        for way, size in (("rounds alone", 0), ("prompt and rounds", vocab)):
            found, _ = routed(stream, halves, lookup, prices, size)
            of_route = {r: sum(s for s, q in zip(found, stream, strict=True) if q[r].route == r) for r in routes}
            shares = ", ".join(f"{route} {named[route] / of_route[route]:.3f}" for route in routes)
            print(f"    by {way:18} {best / sum(found):.3f} of one draft; of each route's best {shares}")


if __name__ == "__main__":
    main()
