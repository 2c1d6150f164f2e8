"""A replay of one recorded run gives the rounds that another drafter or number of draft tokens really has."""

from __future__ import annotations

from pathlib import Path

import pytest
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import RecordedRound, agreement, record
from specexport.calibration.measuring.replay import replay, replay_fixed
from specexport.calibration.measuring.traces import Trace, known
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import FakeDecoder, fake_session
from support.replays import Periodic, Watched

DRAFTERS = all_drafters(("model",))


@pytest.fixture(params=["hashed", "periodic"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    kind = Periodic if request.param == "periodic" else FakeDecoder
    return fake_session(tmp_path, kind(seed=3), kind(seed=3, noise=0.6))


PROMPT = (5, 9, 5, 9, 7, 5, 9)


def recorded(session: Session, limit: int = 36) -> Trace:
    return record(session, Request(1, "code", PROMPT, limit), SamplingParameters(), plain_first=True).trace


def real_rounds(session: Session, drafter: str, k: int, limit: int) -> list[tuple[int, int]]:
    watched = Watched(k)
    session.reset()
    session.generate(PROMPT, max_new_tokens=limit, drafter=drafter, schedule=watched)
    return watched.rounds


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_replayed_rounds_are_the_real_ones(session: Session, drafter: str, k: int) -> None:
    for limit in (36, 5):
        trace = recorded(session, limit)
        assert [(one.num_drafted, one.num_accepted) for one in replay_fixed(trace, drafter, k)] == real_rounds(
            session, drafter, k, limit
        )


def test_contexts_and_lookups_are_told(session: Session) -> None:
    trace = recorded(session)
    place = trace.prompt_tokens - 1
    for one in replay_fixed(trace, "ngram", 2):
        assert one.context == place
        assert not one.passes
        place += one.num_accepted + 1
    assert all(one.passes for one in replay_fixed(trace, "model", 2))


class Turns:
    """Two drafters in turn, one token each."""

    needs_host = True

    def __init__(self) -> None:
        self.missing: list[int] = []

    def plan(self, sequence: SequenceState) -> RoundPlan:
        name = "ab"[len(self.missing) % 2]
        self.missing.append(sequence.missing_rows(name))
        return RoundPlan(1, drafter=name)

    def observe(self, outcome: RoundOutcome) -> None:
        pass


def test_a_draft_reads_what_was_written_while_another_drafted() -> None:
    """Every round writes two tokens; the prompt's rows count for the second draft only, which had to read them too."""
    trace, turns = Trace(1, "code", 5, tuple(range(17)), (True,) * 12, 12), Turns()
    rounds = list(replay({"a": trace, "b": trace}, turns))
    assert [name for name, _ in rounds] == ["a", "b"] * 3
    assert [one.missing_rows for _, one in rounds] == [0, 5 + 2, 2, 2, 2, 2]
    assert turns.missing == [6, 8, 3, 3, 3, 3]


def round_of(drafted: int, accepted: int, choice: int | None = None) -> RecordedRound:
    return RecordedRound(drafted, accepted, (), choice)


def test_agreement_goes_to_the_first_rejection_and_takes_guesses_behind_full_acceptance() -> None:
    rounds = [round_of(2, 1), round_of(2, 2, choice=99), round_of(2, 0, choice=16), round_of(1, 1)]
    output = [10, 11, 12, 13, 16, 15, 17, 18]
    # 1 accepted, 1 rejected; 2 accepted and a bonus token, which the next round's guess had right; rejected; accepted,
    # unknown.
    assert agreement(rounds, output, greedy=True) == [True, False, True, True, True, False, True, None]


def test_a_wrong_guess_is_no_agreement_and_sampling_has_no_guesses() -> None:
    rounds = [round_of(1, 1), round_of(1, 0, choice=5)]
    assert agreement(rounds, [1, 6, 7], greedy=True) == [True, False, False]
    assert agreement(rounds, [1, 6, 7], greedy=False) == [True, None, False]


def test_unknown_places_agree_as_often_as_known_ones() -> None:
    agrees = (True,) * 30 + (False,) * 10 + (None,) * 4000
    trace = Trace(7, "code", 2, tuple(range(4042)), agrees, 5000)
    filled = known(trace)
    assert filled[:40] == list(agrees[:40])
    assert 0.72 < sum(filled[40:]) / 4000 < 0.78
    assert filled == known(trace)
