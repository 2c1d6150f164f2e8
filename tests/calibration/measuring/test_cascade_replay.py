"""A replay of one recorded run gives the passes that a cascade really takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.measuring.cascade_replay import UNKNOWN, _SmallerDraft
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import from_row, record, to_row
from specexport.calibration.measuring.replay import replay_fixed
from specexport.calibration.measuring.traces import CascadeSource, Trace, cached
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.calibrated import flat_costs
from support.doubles import FakeDecoder
from support.replays import Periodic, Watched
from support.several import several_session

PROMPT, LIMIT = (5, 9, 5, 9, 7, 5, 9), 40
CASCADES = ("ngram:model", "small:model")


@pytest.fixture(params=[FakeDecoder, Periodic])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    kind = request.param
    small = {"small": kind(seed=3, noise=0.8)}
    return several_session(tmp_path, kind(seed=3), kind(seed=3, noise=0.6), small)


def recorded(session: Session, sampling: SamplingParameters = SamplingParameters()) -> Trace:  # noqa: B008
    request = Request(1, "code", PROMPT, LIMIT)
    one, small = (
        record(session, request, given, plain_first=True).trace
        for given in (sampling, replace(sampling, drafter="small"))
    )
    return replace(one, smaller={"small": CascadeSource(small, cached(flat_costs(0.2)))})


@pytest.mark.parametrize("drafter", CASCADES)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_rounds_are_the_real_ones_and_passes_never_too_few(session: Session, drafter: str, k: int) -> None:
    """Too many where a smaller draft was never asked behind what the draft says."""
    trace, watched = recorded(session), Watched(k)
    session.reset()
    real = session.generate(PROMPT, max_new_tokens=LIMIT, drafter=drafter, schedule=watched).statistics
    found = list(replay_fixed(trace, drafter, k))
    assert [(one.num_drafted, one.num_accepted) for one in found] == watched.rounds
    passes = sum(one.passes - one.saved for one in found)
    most = 1.2 * real.draft_passes if drafter == "small:model" else real.draft_passes
    assert real.draft_passes <= passes <= most
    assert passes <= sum(one.passes for one in found) == real.drafted
    if drafter == "small:model":
        guesses = sum(round(one.guess_seconds / 0.2) for one in found)
        assert guesses >= real.guess_passes
        assert sum(one.guess_rows for one in found) >= real.guess_passes


def test_guesses_save_passes(session: Session) -> None:
    trace = recorded(session)
    saved = {drafter: sum(one.saved for one in replay_fixed(trace, drafter, 4)) for drafter in CASCADES}
    assert saved["small:model"] > 0
    if isinstance(session.engine.target, Periodic):
        assert min(saved.values()) > 5


def test_a_sampled_request_tells_nothing_of_what_was_missed(session: Session) -> None:
    """A smaller draft then wrote another text, and saves nothing that anybody knows."""
    trace = recorded(session, SamplingParameters(temperature=1.0, seed=1))
    assert trace.missed == ()
    trace = recorded(session)
    other = replace(trace.smaller["small"].trace, tokens=(0, *trace.tokens[1:]))
    assert sum(one.saved for one in replay_fixed(trace, "small:model", 4)) > 0
    trace = replace(trace, smaller={"small": replace(trace.smaller["small"], trace=other)})
    assert all(one.saved == 0 for one in replay_fixed(trace, "small:model", 4))


def test_what_a_smaller_draft_says_is_known_behind_the_text_and_its_own_misses() -> None:
    """It is right for two tokens, where it says 90 and 91 then, and 92 one token later."""
    small = Trace(1, "code", 2, (1, 2, 3, 4, 5, 6), (True, True, False, False), 4, ((2, 90, 91), (3, 92)))
    source = CascadeSource(small, cached(flat_costs(0.1)))
    trace = replace(small, agrees=(True,) * 4, missed=(), smaller={"small": source})
    guess = _SmallerDraft(trace, "small")
    assert guess.find((1, 2), 3) == [3, 4, 90]
    assert guess.find((1, 2), 2, [3]) == [4, 90]
    assert guess.find((1, 2), 1, [3, 4, 90]) == [91]
    assert guess.find((1, 2), 1, [3, 4, 5]) == [92]
    assert guess.find((1, 2), 2, [3, 4, 80]) == [UNKNOWN, UNKNOWN]
    assert guess.find((1, 2), 2, [7]) == [UNKNOWN, UNKNOWN]


def test_a_smaller_draft_pays_for_the_rows_that_it_catches_up_on() -> None:
    trace = Trace(1, "code", 2, (1, 2, 3, 4, 5, 6), (True,) * 4, 4)
    costs = cached(flat_costs(0.1, draft_row=0.01))
    guess = _SmallerDraft(replace(trace, smaller={"small": CascadeSource(trace, costs)}), "small")
    for tokens, drafted, count, seconds in (
        ((1, 2), (), 2, 2 * 0.1),
        ((1, 2), (3, 4), 1, 0.1 + 0.01),  # two tokens of the draft's in one pass
        ((1, 2, 3, 4, 5), (), 1, 0.1),
    ):
        before = guess.seconds
        guess.find(tokens, count, drafted)
        assert guess.seconds - before == pytest.approx(seconds)


def test_the_journal_keeps_it(session: Session) -> None:
    row = record(session, Request(1, "code", PROMPT, LIMIT), SamplingParameters(), plain_first=True)
    assert row.missed
    assert from_row(to_row(row)) == row
