"""A record: which run goes first, what is learnt from it, and its times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.measuring.record import Timing, record
from specexport.runtime.sampling.parameters import SamplingParameters
from support.doubles import FakeDecoder, fake_session


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
    assert {one.accepted for one in row.judged} == {True, False}
    assert Timing(0.1, 2.0, 4).latency == 0.5
