"""What a request may ask for: penalties, bans, bias, a minimum length, a way to draft and a way to verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.errors import ParameterError
from specexport.runtime.drafting.names import all_drafters
from specexport.runtime.session import Session
from support.doubles import CONTRACT, FakeDecoder, check_invariant, fake_session, greedy_tokens
from support.refusals import refused

DRAFTERS = all_drafters(("model",))
MakeSession = Callable[..., Session]
# Few ids, so that the text repeats itself and every drafter has something to say.
FEW = 5
PROMPT = [1, 2, 3, 1, 2, 3, 4, 1, 2]
WAYS = [{"speculate": False}, *({"drafter": drafter} for drafter in DRAFTERS)]


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    def make(
        seed: int = 0,
        noise: float = 0.4,
        vocab: int = FEW,
        draft_vocab: int | None = None,
        has_draft: bool = True,
        **options: Any,
    ) -> Session:
        draft = FakeDecoder(vocab_size=draft_vocab or vocab, seed=seed, noise=noise) if has_draft else None
        return fake_session(tmp_path, FakeDecoder(vocab_size=vocab, seed=seed), draft, **options)

    return make


def expected(session: Session, prompt: list[int], count: int) -> tuple[int, ...]:
    return greedy_tokens(session.engine.target, prompt, count)  # type: ignore[arg-type]


def by_hand(
    session: Session, prompt: list[int], count: int, change: Callable[[np.ndarray, list[int], list[int]], None]
) -> tuple[int, ...]:
    """Greedy decoding without a cache. change: of the logits, from prompt and output."""
    output: list[int] = []
    for _ in range(count):
        logits = session.engine.target.logits_after([*prompt, *output]).copy()  # type: ignore[attr-defined]
        change(logits, prompt, output)
        output.append(int(logits.argmax()))
    return tuple(output)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", [1, 2, 9, 30])
def test_every_drafter_gives_what_the_target_gives(make_session: MakeSession, drafter: str, length: int) -> None:
    drafted = 0
    for seed in range(3):
        session = make_session(seed)
        prompt = np.random.default_rng([seed, length]).integers(0, FEW, length).tolist()
        found = session.generate(prompt, max_new_tokens=18, drafter=drafter)
        assert found.tokens == expected(session, prompt, 18)
        drafted += found.statistics.drafted
        assert ("model" not in drafter) == (session.engine.draft.decoder.steps == [])  # type: ignore[union-attr]
    assert drafted > 0


def test_requests_with_different_drafters_share_one_context(make_session: MakeSession) -> None:
    session = make_session(seed=5)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, FEW, 6).tolist()
    for turn in range(60):
        if len(prompt) > 34:
            prompt = prompt[: rng.integers(1, 8)]
        prompt = [*prompt, *rng.integers(0, FEW, rng.integers(0, 4)).tolist()]
        drafter, count = DRAFTERS[rng.integers(len(DRAFTERS))], int(rng.integers(1, 9))
        temperature = float(rng.integers(2))
        found = session.generate(
            prompt,
            max_new_tokens=count,
            drafter=drafter,
            temperature=temperature,
            num_draft_tokens=int(rng.integers(5)),
        )
        check_invariant(session._context)
        if not temperature:
            assert found.tokens == expected(session, prompt, count), turn
        prompt = [*prompt, *found.tokens[: rng.integers(0, count + 1)]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 3.0])
@pytest.mark.parametrize("minimum", [1, 3, 7, 20])
def test_a_stop_token_comes_no_sooner_than_the_minimum(
    make_session: MakeSession, way: dict[str, Any], temperature: float, minimum: int
) -> None:
    counts = set()
    for seed in range(6):
        session = make_session(seed, stop_token_ids=(0, 3))
        found = session.generate(
            PROMPT, max_new_tokens=30, temperature=temperature, seed=seed, min_new_tokens=minimum, **way
        )
        ends = [place for place, token in enumerate(found.tokens) if token in (0, 3)]
        assert ends in ([], [len(found.tokens) - 1])
        counts.add(len(found.tokens))
        if temperature == 0.0:

            def change(logits: np.ndarray, prompt: list[int], output: list[int]) -> None:
                if len(output) < minimum:
                    logits[[0, 3]] = -np.inf

            whole = by_hand(session, PROMPT, 30, change)
            end = next(place for place, token in enumerate(whole) if token in (0, 3))
            assert found.tokens == whole[: end + 1]
    assert min(counts) > minimum  # that many tokens, and then the stop token


@pytest.mark.parametrize("drafter", ["model", "ngram+model", None])
@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_a_draft_that_knows_none_of_the_tokens_left(
    make_session: MakeSession, drafter: str | None, temperature: float
) -> None:
    """An allow-list, such as special tokens at the end of a padded vocabulary, that a smaller draft lacks."""
    session = make_session(vocab=FEW, draft_vocab=3)

    def change(logits: np.ndarray, prompt: list[int], output: list[int]) -> None:
        logits[:3] = -np.inf

    found = session.generate(
        PROMPT, max_new_tokens=20, temperature=temperature, banned_tokens=[0, 1, 2], drafter=drafter
    )
    assert found.tokens == by_hand(session, PROMPT, 20, change)


def test_without_a_draft_model_the_text_is_looked_up(make_session: MakeSession) -> None:
    session = make_session(has_draft=False)
    default = session.generate(PROMPT, max_new_tokens=25)
    session.reset()
    ngram = session.generate(PROMPT, max_new_tokens=25, drafter="ngram")
    assert default.tokens == ngram.tokens == expected(session, PROMPT, 25)
    assert default.statistics.looked_up == default.statistics.drafted == ngram.statistics.drafted > 0
    assert default.statistics.drafted_by_position == ngram.statistics.drafted_by_position
    session.reset()
    assert session.generate(PROMPT, max_new_tokens=25, speculate=False).tokens == default.tokens


@pytest.mark.parametrize("drafter", ["model", "ngram+model"])
def test_without_a_draft_model_none_can_be_asked_for(make_session: MakeSession, drafter: str) -> None:
    session = make_session(has_draft=False)
    with refused(ParameterError, drafter, "--draft", field="drafter"):
        session.stream(PROMPT, drafter=drafter)
    with pytest.raises(ParameterError):  # also where it would not be used
        session.stream(PROMPT, drafter=drafter, speculate=False)
    assert session.generate(PROMPT, max_new_tokens=5).tokens == expected(session, PROMPT, 5)


def test_statistics_tell_what_was_looked_up(make_session: MakeSession) -> None:
    session = make_session()
    prompt = [*PROMPT, 3, 1, 2, 3]  # the last four came before: long enough beside a model
    rows = {}
    for drafter in DRAFTERS:
        session.reset()
        rows[drafter] = session.generate(prompt, max_new_tokens=25, drafter=drafter).statistics.as_dict()
    assert rows["model"]["looked_up"] == 0
    assert rows["ngram"]["looked_up"] == rows["ngram"]["drafted"] > 0
    assert 0 < rows["ngram+model"]["looked_up"] < rows["ngram+model"]["drafted"]


@pytest.mark.parametrize(
    ("rows", "has_draft", "advice"), [(6, True, "'spectr', which"), (0, True, "--tree-rows 2"), (6, False, "--draft")]
)
def test_candidates_without_spectr(tmp_path: Path, rows: int, has_draft: bool, advice: str) -> None:
    """What is advised is possible for the bundle."""
    contract = replace(CONTRACT, tree_rows=rows)
    session = fake_session(tmp_path, FakeDecoder(contract), FakeDecoder(contract) if has_draft else None)
    with refused(ParameterError, advice, field="num_candidates"):
        session.stream(PROMPT, num_candidates=2, temperature=1.0)
