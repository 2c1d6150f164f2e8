"""A prediction of the output: drafts come from it, and the output stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specexport.errors import ParameterError, PromptError
from specexport.runtime.drafting.lookup import PredictionLookup
from specexport.runtime.session import Session
from support.doubles import VOCAB, FakeDecoder, fake_session
from support.refusals import refused

PROMPT = "A prompt of 22 bytes.."


def session_of(folder: Path, draft: bool = True) -> Session:
    return fake_session(folder, FakeDecoder(), FakeDecoder(noise=0.5) if draft else None)


def test_the_way_back_is_found_behind_what_was_read() -> None:
    lookup = PredictionLookup([1], [5, 6, 7, 8, 5, 6, 9])
    assert lookup.find([1], 2) == [5, 6]
    assert lookup.find([1, 5, 6], 2) == [7, 8]
    assert lookup.find([1, 5, 6, 0], 2) == []  # the output left it
    assert lookup.find([1, 5, 6, 0, 5, 6], 2) == [9]  # and is back, at the second place
    assert lookup.find([1, 5, 6, 0, 5, 6, 3, 5, 6], 2) == [9]  # behind the last place there is none


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}, {"presence_penalty": 1.0}])
def test_what_was_predicted_is_accepted(tmp_path: Path, draft: bool, options: dict[str, Any]) -> None:
    plain = session_of(tmp_path / "plain", draft).generate(PROMPT, max_new_tokens=20, speculate=False, **options)
    session = session_of(tmp_path / "told", draft)
    found = session.generate(PROMPT, max_new_tokens=20, prediction=plain.tokens, **options)
    row = found.statistics
    if "temperature" not in options:
        assert found.tokens == plain.tokens
        assert row.predicted_accepted == row.predicted == row.looked_up == 16  # four rounds of five tokens
        assert row.rounds == 4
    assert row.predicted_accepted <= row.predicted
    assert row.predicted >= 4


@pytest.mark.parametrize("prediction", ["", "nothing of this comes", [0] * 10_000])
def test_a_wrong_one_changes_nothing(tmp_path: Path, prediction: Any) -> None:
    plain = session_of(tmp_path / "plain").generate(PROMPT, max_new_tokens=20, speculate=False)
    found = session_of(tmp_path / "told").generate(PROMPT, max_new_tokens=20, prediction=prediction)
    assert found.tokens == plain.tokens
    assert found.statistics.predicted_accepted <= found.statistics.predicted <= 4


def test_chunks_say_where_their_drafts_came_from(tmp_path: Path) -> None:
    plain = session_of(tmp_path / "plain").generate(PROMPT, max_new_tokens=20, speculate=False)
    prediction = [*plain.tokens[:7], 300 % VOCAB, *plain.tokens[8:12]]
    chunks = list(session_of(tmp_path / "told").stream(PROMPT, max_new_tokens=20, prediction=prediction))
    assert chunks[0].sources == ("prediction",) * 4
    assert chunks[0].draft_tokens == tuple(prediction[:4])
    assert {source for chunk in chunks for source in chunk.sources} == {"prediction", "model"}
    for chunk in chunks:
        assert len(chunk.sources) == len(chunk.draft_tokens)
        assert chunk.draft_tokens[: chunk.accepted] == chunk.tokens[: chunk.accepted]
        assert chunk.accepted == len(chunk.draft_tokens) or chunk.draft_tokens[chunk.accepted] != chunk.tokens[-1]
    last = chunks[-1].statistics
    assert sum(len(chunk.draft_tokens) for chunk in chunks) == last.drafted
    assert sum(chunk.accepted for chunk in chunks) == last.accepted


def test_what_is_no_prediction(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    for wrong in (3, b"bytes", {"a": 1}, [1.5]):
        with refused(ParameterError, field="prediction"):
            session.generate(PROMPT, prediction=wrong)
    with refused(PromptError, "Unicode", field="prediction"):
        session.generate(PROMPT, prediction="\ud800")
    for wrong_id in (VOCAB, -1):
        with refused(PromptError, wrong_id, field="prediction"):
            session.generate(PROMPT, prediction=[1, 2, wrong_id, 3])


def test_behind_the_models_tokens_it_is_read_on(tmp_path: Path) -> None:
    """The output left the prediction; the model brings it back, and the rest of the round is predicted again."""
    plain = session_of(tmp_path / "plain").generate(PROMPT, max_new_tokens=24, speculate=False)
    prediction = [*plain.tokens[:7], 300 % VOCAB, *plain.tokens[8:]]
    session = fake_session(tmp_path / "told", FakeDecoder(), FakeDecoder())
    chunks = list(session.stream(PROMPT, max_new_tokens=24, prediction=prediction))
    mixed = [chunk for chunk in chunks if set(chunk.sources) == {"model", "prediction"}]
    assert mixed
    assert all(list(chunk.sources) == sorted(chunk.sources) for chunk in mixed)  # the model's come first
    assert tuple(token for chunk in chunks for token in chunk.tokens) == plain.tokens
