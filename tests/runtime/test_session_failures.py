"""A model that gives NaN: an error that names the place, and a session that is as good as new."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.base import Logits
from specexport.errors import EngineError
from specexport.runtime.session import Session
from support.doubles import CONTRACT, FakeDecoder, fake_session, greedy_tokens
from support.refusals import refused

FEW = 5
PROMPT = [1, 2, 3, 4, 0, 2, 1]  # positions 0 to 6; the first token comes from the logits behind position 6


class Breaks(FakeDecoder):
    """From cache row `at` on the logits are `value`, and afterwards all are.

    What is in the cache, dead or alive, poisons the whole until it is overwritten.
    """

    def __init__(self, at: int, value: Any = np.nan, **options: Any) -> None:
        super().__init__(vocab_size=FEW, **options)
        self.at, self.value, self.poisoned = at, value, False
        self.overwritten: list[tuple[int, float]] = []

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        logits = super().step(tokens, position)
        end = position + len(tokens)
        for index, row in enumerate(range(end - len(logits), end)):
            if self.poisoned or row >= self.at:
                logits[index] = self.value
        self.poisoned |= end > self.at
        return logits

    def overwrite_rows(self, start: int, value: float) -> None:
        super().overwrite_rows(start, value)
        self.overwritten.append((start, value))
        self.poisoned &= start > 0


class Healthy(FakeDecoder):
    def __init__(self, **options: Any) -> None:
        super().__init__(vocab_size=FEW, **options)
        self.overwritten: list[tuple[int, float]] = []

    def overwrite_rows(self, start: int, value: float) -> None:
        super().overwrite_rows(start, value)
        self.overwritten.append((start, value))


def expected(session: Session, prompt: list[int], count: int) -> tuple[int, ...]:
    return greedy_tokens(session.engine.target, prompt, count)  # type: ignore[arg-type]


def failure(session: Session, **options: Any) -> tuple[str, int, str]:
    """What a request to the session is said to have failed by: graph, position, value."""
    with pytest.raises(EngineError) as caught:
        session.generate(PROMPT, **options)
    found = re.fullmatch(
        r"(.+) gave a non-finite logit \((\S+)\) after position (\d+); the weights or .+", str(caught.value)
    )
    assert found, caught.value
    return str(Path(found[1]).relative_to(session.bundle.root)), int(found[3]), found[2]


def check_as_good_as_new(session: Session) -> None:
    drafts = [opened.decoder for opened in session.drafts.opened.values()]
    for decoder in (session.engine.target, *drafts):
        if decoder is not None:
            assert decoder.overwritten == [(0, 0.0)]  # type: ignore[attr-defined]
            assert (decoder.rows == -1.0).all()  # type: ignore[attr-defined]
    for prompt in (PROMPT[:4], [1], [1, 2, 3], [3, 1]):
        found = session.generate(prompt, max_new_tokens=2)
        assert found.tokens == expected(session, prompt, 2)
        if prompt == PROMPT[:4]:
            assert found.statistics.reused_tokens == 0


OPTIONS = [
    {},
    {"temperature": 1.0, "seed": 0},
    {"temperature": 1.0, "seed": 0, "top_k": 3, "verification": "token"},
    {"presence_penalty": 0.01},
    {"temperature": 1.0, "seed": 0, "logit_bias": {0: 0.1}, "top_p": 0.9},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("at", [6, 7, 9, 14, 30])
def test_a_target_that_breaks(tmp_path: Path, at: int, options: dict[str, Any]) -> None:
    # The draft agrees with the target, so every row that is verified is looked at.
    for way in ({"speculate": False}, {"num_draft_tokens": 1}, {}):
        session = fake_session(tmp_path, Breaks(at), Healthy())
        graph, position, value = failure(session, **options, **way)
        assert (graph, position, value) == ("graphs/target.ort.onnx", at, "nan")
        check_as_good_as_new(session)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("at", [6, 7, 9, 14, 30])
def test_a_draft_that_breaks(tmp_path: Path, at: int, options: dict[str, Any]) -> None:
    for way in ({"num_draft_tokens": 1}, {}, {"drafter": "ngram+model"}):
        session = fake_session(tmp_path, Healthy(), Breaks(at))
        graph, position, value = failure(session, **options, **way)
        assert (graph, value) == ("graphs/draft.ort.onnx", "nan")
        # A round does not look at the draft's row behind its last token, nor does one in which the text was looked up.
        assert at <= position <= (at + 1 if "drafter" not in way else CONTRACT.capacity)
        check_as_good_as_new(session)
        assert session.generate([2], max_new_tokens=3, speculate=False).tokens == expected(session, [2], 3)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_breaks_in_the_prompt(tmp_path: Path, role: str) -> None:
    decoders = (Breaks(2), Healthy()) if role == "target" else (Healthy(), Breaks(2))
    session = fake_session(tmp_path, *decoders)
    assert failure(session) == (f"graphs/{role}.ort.onnx", len(PROMPT) - 1, "nan")
    for decoder in decoders:
        assert decoder.overwritten == [(0, 0.0)]
    with pytest.raises(EngineError):
        session.generate(PROMPT, drafter="ngram" if role == "target" else "model")
    assert session.generate([1], max_new_tokens=1).tokens == greedy_tokens(decoders[0], [1], 1)


@pytest.mark.parametrize(
    ("value", "named"),
    [(np.inf, "inf"), (-np.inf, "-inf"), ([0, np.inf, 0, 0, 0], "inf"), ([0, 0, np.nan, -np.inf, np.inf], "nan")],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_logits_that_are_no_numbers(tmp_path: Path, value: Any, named: str, temperature: float) -> None:
    session = fake_session(tmp_path, Breaks(9, value), Healthy())
    assert failure(session, temperature=temperature) == ("graphs/target.ort.onnx", 9, named)
    check_as_good_as_new(session)


def test_what_was_streamed_before_stands(tmp_path: Path) -> None:
    session = fake_session(tmp_path, Breaks(20), Healthy())
    tokens: list[int] = []
    with refused(EngineError, "20"):
        tokens.extend(token for chunk in session.stream(PROMPT, num_draft_tokens=2) for token in chunk.tokens)
    assert tuple(tokens) == expected(session, PROMPT, len(tokens))
    assert 9 <= len(tokens) <= 14
    check_as_good_as_new(session)


def test_a_broken_draft_is_no_hindrance_without_it(tmp_path: Path) -> None:
    session = fake_session(tmp_path, Healthy(), Breaks(0))
    for options in ({"speculate": False}, {"drafter": "ngram"}):
        assert session.generate(PROMPT, max_new_tokens=9, **options).tokens == expected(session, PROMPT, 9)


def test_warming_up_that_is_interrupted_leaves_no_wrong_rows(tmp_path: Path) -> None:
    session = fake_session(tmp_path, FakeDecoder(vocab_size=FEW), FakeDecoder(vocab_size=FEW, seed=1))
    wanted = session.generate(PROMPT, max_new_tokens=8).tokens

    def warm_up() -> None:
        session.engine.target.step([0, 0], 0)
        raise KeyboardInterrupt

    session.engine = replace(session.engine, warm_up=warm_up)
    with pytest.raises(KeyboardInterrupt):
        session.prepare()
    assert session.generate(PROMPT, max_new_tokens=8).tokens == wanted
