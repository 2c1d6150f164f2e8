"""A record: which run goes first, what is learnt from it, and its times."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import Record, Timing, judged_tokens, record
from specexport.engines.base import OpenedDraft
from specexport.runtime.sampling.parameters import SamplingParameters
from support.doubles import FakeDecoder, fake_session


def test_the_confidence_of_what_the_target_judged(tmp_path: Path) -> None:
    draft = FakeDecoder(noise=0.4)
    session = fake_session(tmp_path, FakeDecoder(), draft)
    given = iter(range(1000))
    session.drafts.opened["draft"] = OpenedDraft(draft, lambda: float(next(given)))
    row = record(session, Request(1, "code", (5, 6, 7), 20), SamplingParameters(), True)
    assert [len(told) for told in row.confidence] == [min(right + 1, drafted) for drafted, right in row.rounds]
    passes = 0
    for (drafted, _), told in zip(row.rounds, row.confidence, strict=True):
        assert told == tuple(range(passes, passes + len(told)))
        passes += drafted
    tokens = judged_tokens([row])
    assert set(tokens.accepted.tolist()) == {True, False}
    assert tokens.confidence.tolist() == [one for told in row.confidence for one in told]


def test_what_is_learnt_from_judged_tokens() -> None:
    time = Timing(0.0, 1.0, 4)
    usual = Record(1, "code", 2, 9, (), (), ((3, 1), (2, 2), (2, 0)), ((1.0, 2.0), (3.0, 4.0), (5.0,)), time, time)
    broken = replace(usual, confidence=((1.0, math.nan), (3.0, 4.0), (math.inf,)))
    tokens = judged_tokens([usual, broken])
    assert tokens.request.tolist() == [0] * 5 + [1] * 2
    assert tokens.index.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert tokens.confidence.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 4.0]
    assert tokens.accepted.tolist() == [True, False, True, True, False, True, True]
    assert not len(judged_tokens([]))


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_record(plain_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, ran = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4)), list[bool]()
    real = session.generate

    def noted(tokens: Any, params: SamplingParameters, **options: Any) -> Any:
        ran.append(params.speculate)
        return real(tokens, params, **options)

    monkeypatch.setattr(session, "generate", noted)
    row = record(session, Request(1, "code", (5, 6, 7), 20), SamplingParameters(), plain_first)
    assert ran == [not plain_first, plain_first, True]  # the last one is recorded, and not timed
    assert not any(row.confidence)  # this draft tells none
    assert Timing(0.1, 2.0, 4).latency == 0.5
