"""A replay of one recorded run gives the rounds that an adaptive session really has, and what listening is worth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from specexport.calibration.measuring.confidence import Reading, read_confidence
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import Record, Timing, record
from specexport.calibration.measuring.replay import replay
from specexport.calibration.measuring.session_replay import Priced, adaptive_seconds, start_of
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.verdicts.verdict import Criteria, decide, replay_adaptive, replay_candidates, worth_reading
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from specexport.runtime.policy.confidence import AcceptancePredictor, ConfidentSchedule, adaptive_schedule
from specexport.runtime.policy.controller import AdaptiveSchedule, RouteState
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.policy.survival import SURVIVAL_VERSION, Curve, Survival
from specexport.runtime.sampling.parameters import SamplingParameters
from support.calibrated import flat_costs
from support.doubles import FakeDecoder, fake_session
from support.replays import Periodic

DRAFTERS = all_drafters(("model",))
PROMPT = (5, 9, 5, 9, 7, 5, 9)
# what the draft says is what happens, or the contrary
SURE = Survival(SURVIVAL_VERSION, "b", (Curve((-4.0, 4.0), (0.02, 0.98)),))
WRONG = Survival(SURVIVAL_VERSION, "b", (Curve((-4.0, 4.0), (0.98, 0.02)),))


def costs(draft: float = 0.2, row: float = 0.1) -> Costs:
    return flat_costs(draft, row)


def schedule(drafter: str, chance: AcceptancePredictor | None) -> AdaptiveSchedule:
    entry = RoutePolicy("undecided", drafter, 0, "adaptive", (0.6,), None)
    return adaptive_schedule(entry, costs(), chance, RouteState(), 4)


class Watched:
    """An adaptive schedule that remembers the rounds."""

    needs_host = True

    def __init__(self, inner: AdaptiveSchedule) -> None:
        self.inner = inner
        self.rounds: list[tuple[int, int]] = []

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return self.inner.plan(replace(sequence, missing_rows=lambda _: 0))

    def observe(self, outcome: RoundOutcome) -> None:
        self.inner.observe(outcome)
        self.rounds.append((outcome.num_drafted, outcome.num_accepted))


@pytest.mark.parametrize("kind", [FakeDecoder, Periodic])
@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_replayed_rounds_are_the_real_ones(kind: type[FakeDecoder], read: bool, drafter: str, tmp_path: Path) -> None:
    session = fake_session(tmp_path, kind(seed=3), kind(seed=3, noise=0.6))
    trace = record(session, Request(1, "code", PROMPT, 40), SamplingParameters(), plain_first=True).trace
    watched = Watched(schedule(drafter, (lambda index, logits: 0.7) if read else None))
    session.reset()
    session.generate(PROMPT, max_new_tokens=40, drafter=drafter, schedule=watched)
    replayed = replay({drafter: trace}, schedule(drafter, (lambda *_: 0.7) if read else None), {drafter: (0.0,) * 40})
    assert [(one.num_drafted, one.num_accepted) for _, one in replayed] == watched.rounds
    assert len({drafted for drafted, _ in watched.rounds}) > 1


def test_replayed_sessions_look_up_in_earlier_answers(tmp_path: Path) -> None:
    """The same request again: only an earlier answer tells what follows."""
    made = fake_session(tmp_path, FakeDecoder(vocab_size=60), None)
    tokens = (*PROMPT, *made.generate(PROMPT, max_new_tokens=40, speculate=False).tokens)
    one = Trace(1, "r", len(PROMPT), tokens, (None,) * 40, 40)
    first, second = adaptive_seconds([one, one], "ngram", Priced(costs()), [(0.6,)] * 2)[0]
    alone = adaptive_seconds([one], "ngram", Priced(costs()), [(0.6,)])[0]
    assert [first] == alone
    assert second < 0.7 * first
    apart = adaptive_seconds([one, one], "ngram", Priced(costs()), [(0.6,), (0.5,)])[0]
    assert apart[1] == pytest.approx(first)


def test_passes_whose_token_is_left_out_are_charged() -> None:
    """The draft is right at every third place and says so; a round that leaves its second token out has two passes."""
    trace = word("+--" * 8)
    logits = tuple(4.0 if sign == "+" else -4.0 for sign in "+--" * 8)
    entry = RoutePolicy("undecided", "model", 0, "adaptive", (0.9, 0.9), None)
    chance = lambda index, row: SURE.chance(index, float(row[0, 0]))  # noqa: E731
    confident = ConfidentSchedule(entry, costs(0.05), RouteState(), 4, chance)
    rounds = [one for _, one in replay({"model": trace}, confident, {"model": logits})]
    assert (rounds[0].num_drafted, rounds[0].num_accepted, rounds[0].passes) == (1, 1, 2)
    at = cached(costs(0.05))
    assert rounds[0].seconds(at) - replace(rounds[0], passes=1).seconds(at) == pytest.approx(0.05)
    seconds, count = adaptive_seconds([trace], "model", Priced(costs(0.05), Reading(SURE, (logits,))), [(0.9, 0.9)])
    assert seconds == [pytest.approx(sum(one.seconds(at) for one in rounds))]
    assert count == len(rounds)


def word(agrees: str, line: int = 1) -> Trace:
    return Trace(line, "code", 2, tuple(range(2 + len(agrees))), tuple(sign == "+" for sign in agrees), len(agrees))


def test_the_confidence_stands_where_its_tokens_do() -> None:
    trace, time = word("+-+-+"), Timing(0.0, 1.0, 5)
    rounds, told = ((2, 1), (1, 1), (2, 2)), ((1.0, 2.0), (3.0,), (5.0, 6.0))  # the last token was cut off
    one = Record(1, "code", 2, trace.limit, trace.tokens, trace.agrees, rounds, told, time, time)
    assert read_confidence(one) == (1.0, 2.0, 3.0, 2.0, 5.0)  # nobody was asked at the fourth; of a miss, 2 is known


def mixed(count: int) -> tuple[list[Trace], tuple[tuple[float, ...], ...]]:
    """Texts of easy and hard places by chance, and a draft that knows which."""
    signs = "".join(np.random.default_rng(5).choice(["+", "-"], 60, p=[0.6, 0.4]))
    logits = tuple(4.0 if sign == "+" else -4.0 for sign in signs)
    return [word(signs, line) for line in range(count)], (logits,) * count


def test_listening_is_worth_it_where_what_is_said_happens() -> None:
    traces, logits = mixed(6)
    prices = costs(0.05, 0.3)
    assert worth_reading(traces, prices, Reading(SURE, logits), "model")
    assert not worth_reading(traces, prices, Reading(WRONG, logits), "model")


def test_a_route_that_only_adapting_makes_pay_is_on() -> None:
    """Half of the requests are guessed all along and half never: every fixed number loses."""
    traces = [word(("+" if line % 2 else "-") * 160, line) for line in range(40)]
    prices, criteria = costs(0.4, 0.1), Criteria(("model",), 0.8, "adaptive")
    replayed, adaptive = (
        replay_candidates(traces, prices, ("model",)),
        replay_adaptive(traces, prices, ("model",), None),
    )
    start = partial(start_of, traces, costs=prices)
    assert decide(replayed, Criteria(("model",), 0.8, "fixed"), start)[0].verdict != "on"
    policy, chosen = decide(replayed, criteria, start, adaptive)
    assert chosen.candidate.adapts
    assert (policy.verdict, policy.mode) == ("on", "adaptive")
    assert policy.evidence is not None
    assert policy.evidence.p10 == pytest.approx(chosen.candidate.p10, abs=1e-4)


def test_drafts_that_lose_are_off_although_adapting_loses_nothing_that_shows() -> None:
    traces = [word(("-" * 9 + "+") * 5, line) for line in range(40)]
    replayed, adaptive = (
        replay_candidates(traces, costs(), ("model",)),
        replay_adaptive(traces, costs(), ("model",), None),
    )
    start = partial(start_of, traces, costs=costs())
    policy, chosen = decide(replayed, Criteria(("model",), 0.9, "adaptive"), start, adaptive)
    assert chosen.candidate.speedup.value > 0.97
    assert (policy.verdict, policy.num_draft_tokens) == ("off", 0)
