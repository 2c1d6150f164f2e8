"""Costs are measured right: by a clock that only passes move, so that every number is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.engines.base import Logits
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.drafting.ngram_cache import NgramCache
from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan
from specexport.runtime.loop.chunks import Decoding
from specexport.runtime.loop.speculate import Round
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.request import Request
from specexport.runtime.session import Session
from specexport.runtime.state.statistics import Statistics
from support.clock import CONTRACT, DRAFT, Clock, Timed
from support.doubles import FakeDecoder, fake_session


def measured(session: Session, contexts: list[int]) -> Costs:
    meter = CostMeter(session, contexts)
    meter.measure(1)
    meter.measure(2)
    return meter.costs()


def test_passes_and_rounds(clock: Clock, tmp_path: Path) -> None:
    draft = Timed(clock, DRAFT, 0.0, seed=1, noise=0.3)
    costs = measured(fake_session(tmp_path, Timed(clock, 1.0, 0.001, seed=1), draft), [10, 100])
    assert [point.context for point in costs.points] == [10, 100]
    assert costs.max_draft_tokens == 3
    for point in costs.points:
        for k in range(4):
            # Rounds are timed while the sequence grows by up to 9 rounds of 4 tokens.
            assert point.verify[k].median == pytest.approx(1 + 0.1 * k + 0.001 * (point.context + 12), abs=0.02)
            parts = k * point.draft.median + point.verify[k].median + point.host[k].median
            assert point.rounds[k].median == pytest.approx(parts, abs=0.02)
            assert 0 < point.host[k].median < 0.02
        assert point.draft.median == pytest.approx(DRAFT * 1.05, rel=0.06)  # the first pass of a round feeds two tokens
    assert costs.points[1].rounds[0].median - costs.points[0].rounds[0].median == pytest.approx(0.09, abs=0.01)


def test_prefill_is_by_token_and_model(clock: Clock, tmp_path: Path) -> None:
    costs = measured(fake_session(tmp_path, Timed(clock, 1.0, 0.0), Timed(clock, DRAFT, 0.0)), [100])
    assert costs.target_prefill == pytest.approx(0.002, rel=0.05)
    assert costs.draft_prefill == pytest.approx(0.002 * DRAFT, rel=0.05)


def test_of_a_block_the_first_token_and_a_further_one(clock: Clock, tmp_path: Path) -> None:
    """As of a draft whose first pass of a round takes two rows."""
    meter = CostMeter(fake_session(tmp_path, Timed(clock, 1.0, 0.0), Timed(clock, DRAFT, 0.0)), [50])
    meter._slots = 3
    meter.measure(3)
    costs = meter.costs()
    assert costs.at(50).draft == pytest.approx(DRAFT, rel=0.02)
    assert costs.at(50).rounds[3] == pytest.approx(1.0 + 0.3 + 3.1 * DRAFT, abs=0.02)


@pytest.mark.parametrize("draft", [True, False])
def test_turns_that_the_host_slowed_count_like_others(draft: bool, clock: Clock, tmp_path: Path) -> None:
    session = fake_session(tmp_path, Timed(clock, 1.0, 0.0), Timed(clock, DRAFT, 0.0) if draft else None)
    meter = CostMeter(session, [50], longest=1000.0)
    meter.measure(3)
    quiet = meter.costs().points[0]
    for turn, factor in ((0, 3.0), (2, 5.0)):
        times = meter._times[turn]
        slowed = tuple(tuple((factor * a, factor * b, factor * c) for a, b, c in rows) for rows in times.rounds)
        meter._times[turn] = replace(times, rounds=slowed)
    # and in the third turn two rounds alone
    times = meter._times[1]
    rows = list(times.rounds[2])
    rows[:2] = [(9.0, 3.0, 6.0)] * 2
    meter._times[1] = replace(times, rounds=(*times.rounds[:2], tuple(rows), *times.rounds[3:]))
    slow = meter.costs().points[0]
    for k in range(4):
        ratio = quiet.rounds[k].median / quiet.rounds[0].median
        assert slow.rounds[k].median / slow.rounds[0].median == pytest.approx(ratio, rel=0.01)
        assert slow.verify[k].median / slow.verify[0].median == pytest.approx(
            quiet.verify[k].median / quiet.verify[0].median, rel=0.01
        )
    assert slow.draft.median / slow.rounds[0].median == pytest.approx(
        quiet.draft.median / quiet.rounds[0].median, rel=0.01
    )


def test_a_slow_model_is_timed_once_in_a_visit(clock: Clock, tmp_path: Path) -> None:
    session = fake_session(tmp_path, Timed(clock, 1.0, 0.0), Timed(clock, DRAFT, 0.0))
    for longest, bursts in ((1.0, 2), (250.0, 6), (1000.0, 6)):
        meter = CostMeter(session, [10, 100], longest=longest)
        meter.measure(3)
        found = [times.context for times in meter._times if times.target_prefill is not None]
        assert found == [10, 100]
        assert len(meter._times) == bursts
        assert (meter.work(100, 2) > 0) == (bursts == 6)  # as it knows by now
        assert all((times.target_prefill is None) == (times.draft_prefill is None) for times in meter._times)


@pytest.mark.parametrize("draft", [True, False])
def test_a_burst_of_a_resumed_visit_reads_its_prompt_first(draft: bool, clock: Clock, tmp_path: Path) -> None:
    target = Timed(clock, 1.0, 0.0)
    session = fake_session(tmp_path, target, Timed(clock, DRAFT, 0.0) if draft else None)
    for seed in range(8):  # whatever number of draft tokens comes first
        session.reset()
        target.steps.clear()
        meter = CostMeter(session, [100])
        meter._order.seed(seed)
        times = meter.time(100, first=False)
        assert target.steps[0][1] == 0
        assert (times.target_prefill, times.draft_prefill) == (None, None)


class Cold(Timed):
    """The first pass of another width finds the caches of the CPU as the last one left them."""

    last = 0

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        self.clock.now += 5.0 * (len(tokens) != self.last)
        self.last = len(tokens)
        return super().step(tokens, position)


def test_without_a_model_wide_passes_are_timed_alone(clock: Clock, tmp_path: Path) -> None:
    costs = measured(fake_session(tmp_path, Cold(clock, 1.0, 0.0), None), [50])
    (point,) = costs.points
    assert max(time.p90 for time in point.verify) < 2.0
    assert [time.median for time in point.verify] == pytest.approx([1.0, 1.1, 1.2, 1.3], abs=0.01)
    assert point.draft.median == 0.0
    assert costs.draft_prefill == 0.0
    for k in range(4):
        assert costs.at(50).looked_up(k) == pytest.approx(1 + 0.1 * k, abs=0.02)
        assert point.rounds[k].median == pytest.approx(costs.at(50).looked_up(k), abs=0.005)


def test_rounds_of_the_device_are_whole(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees their parts, so what they differ by is charged to the verify pass."""
    made = fake_session(tmp_path, FakeDecoder(CONTRACT, seed=1), FakeDecoder(CONTRACT, seed=1))

    make_round = Decoding._round

    def whole(self: Decoding, request: Request, answers: NgramCache, statistics: Statistics) -> Round:
        round = make_round(self, request, answers, statistics)
        run = round.run

        def timed(tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
            found = run(tokens, plan)
            clock.now += 1 + 0.3 * plan.num_draft_tokens
            statistics.draft_seconds = statistics.target_seconds = 0.0
            return found

        round.run = timed  # type: ignore[method-assign]
        return round

    monkeypatch.setattr(Decoding, "_round", whole)
    costs = measured(made, [50])
    (point,) = costs.points
    assert [time.median for time in point.rounds] == pytest.approx([1.0, 1.3, 1.6, 1.9], abs=0.02)
    assert point.verify == point.rounds
    assert (point.draft.median, [time.median for time in point.host]) == (0.0, [0.0] * 4)
