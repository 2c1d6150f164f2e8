"""Which drafters `calibrate` may choose from, by what the bundle has and the engine runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.options import CalibrateOptions, drafters_of, models_of, possible_drafters
from specexport.errors import ParameterError
from specexport.runtime.session import Session
from support.doubles import FakeDecoder
from support.several import several_session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return several_session(tmp_path, FakeDecoder(), FakeDecoder(), {"small": FakeDecoder()})


def test_the_first_draft_goes_by_its_own_name_too(session: Session) -> None:
    first = session.bundle.manifest.first_draft
    options = CalibrateOptions(drafters=(first, "ngram+small", f"ngram+{first}", "model"))
    assert drafters_of(session, options) == ("draft", "ngram+small", "ngram+draft")
    with pytest.raises(ParameterError, match="--drafter is ngram:model; with this bundle and engine"):
        drafters_of(session, CalibrateOptions(drafters=("ngram:model",)))


def test_the_first_draft_is_recorded_too(session: Session) -> None:
    assert models_of(session, CalibrateOptions(drafters=("ngram+small",))) == ["draft", "small"]
    assert models_of(session, CalibrateOptions(drafters=("ngram",))) == ["draft"]


def test_nothing_is_offered_that_the_engine_cannot_run(session: Session) -> None:
    assert possible_drafters(session) == ("ngram+draft", "draft", "ngram", "small", "ngram+small")
    alone = Session(session.bundle, replace(session.engine, open_draft=None))
    assert possible_drafters(alone) == ("ngram+draft", "draft", "ngram")
    whole = Session(session.bundle, replace(session.engine, rounds=object()))  # type: ignore[arg-type]
    assert possible_drafters(whole) == ("draft",)
