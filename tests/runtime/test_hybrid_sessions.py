"""Sessions over models that keep states: hybrids as targets, as drafts, and beside models that keep none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.runtime.proofs.equality import check_equality
from specexport.runtime.session import Session
from support.hybrids import Exports, make_exports, session_of
from support.quantized import quantized_hybrid
from support.tiny import VOCAB, Exported

NEAR = 0.03  # so far is a draft's every weight from its target's: some of its tokens are accepted, some are not
PAIRS: dict[str, tuple[tuple[str, float], tuple[str, float] | None]] = {
    "a hybrid and one like it": (("delta rule", 0.0), ("delta rule", NEAR)),
    "hybrids of two kinds": (("scan", 0.0), ("convolution", 0.0)),
    "a hybrid target": (("scan", 0.0), ("llama", 0.0)),
    "a hybrid draft": (("llama", 0.0), ("convolution", 0.0)),
    "a hybrid alone": (("convolution", 0.0), None),
    "hybrids in int8 and int4": (("delta rule in int8", 0.0), ("delta rule in int4", NEAR)),
}
SLOW_PAIRS: dict[str, tuple[tuple[str, float], tuple[str, float] | None]] = {
    "hybrids in int4 and int8": (("scan in int4", 0.0), ("scan in int8", NEAR)),
    "a hybrid in int4 alone": (("convolution in int4", 0.0), None),
}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    plain, quantized = make_exports(tmp_path_factory), dict[tuple[str, float], Exported]()

    def exported(kind: str, noise: float) -> Exported:
        kind_of_state, _, form = kind.partition(" in ")
        if form not in ("int8", "int4"):
            return plain(kind, noise)
        if (kind, noise) not in quantized:
            folder = tmp_path_factory.mktemp("quantized")
            quantized[kind, noise] = quantized_hybrid(folder, kind_of_state, form, noise).exported()
        return quantized[kind, noise]

    return exported


Open = Callable[[str], Session]


@pytest.fixture
def pair(exports: Exports, tmp_path: Path) -> Iterator[Open]:
    opened: list[Session] = []

    def session(name: str) -> Session:
        target, draft = (PAIRS | SLOW_PAIRS)[name]
        opened.append(session_of(tmp_path, exports(*target), exports(*draft) if draft else None))
        return opened[-1]

    yield session
    for session in opened:
        session.close()


def prompts(count: int, seed: int = 0) -> Iterator[list[int]]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield draw.integers(0, VOCAB, int(draw.integers(1, 40))).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("number", [6, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [*PAIRS, *(pytest.param(name, marks=pytest.mark.nightly) for name in SLOW_PAIRS)])
def test_speculative_output_is_the_targets_own(name: str, number: int, pair: Open) -> None:
    session, drafted, accepted = pair(name), 0, 0
    for prompt in prompts(number):
        found = check_equality(session, prompt, 20)
        assert found.passed
        drafted += found.drafted
        answer = session.generate(prompt, max_new_tokens=20, stop_token_ids=())
        accepted += answer.statistics.accepted
        if " in " in name:  # rows have the same bits in passes of any width
            plain = session.generate(prompt, max_new_tokens=20, stop_token_ids=(), speculate=False)
            assert plain.tokens == answer.tokens
    if "alone" not in name:
        assert drafted > accepted
    if name in ("a hybrid and one like it", "hybrids in int8 and int4"):
        assert accepted


@pytest.mark.parametrize("name", ["a hybrid and one like it", "a hybrid draft"])
def test_prompts_that_go_on_and_others_give_what_a_fresh_session_gives(name: str, pair: Open) -> None:
    """States are kept where the whole sequence goes on, and made anew behind a shorter prefix."""
    session = pair(name)
    first = next(prompts(1, seed=3))[:12] + [5] * 8

    def fresh(prompt: list[int]) -> tuple[int, ...]:
        session.reset()
        return tuple(session.generate(prompt, max_new_tokens=6, stop_token_ids=()).tokens)

    def going_on(prompt: list[int]) -> tuple[tuple[int, ...], int]:
        answer = session.generate(prompt, max_new_tokens=6, stop_token_ids=())
        return tuple(answer.tokens), answer.statistics.reused_tokens

    answer = fresh(first)
    for prompt in ([*first, *answer, 7, 8, 9], [*first, *answer], first[:7], [*first[:10], 9, 9], first[:1]):
        expected = fresh(prompt)
        session.reset()
        session.generate(first, max_new_tokens=6, stop_token_ids=())
        assert going_on(prompt)[0] == expected
    session.reset()
    session.generate(first, max_new_tokens=6, stop_token_ids=())
    kept = going_on([*first, *answer, 7, 8, 9])[1]
    assert kept >= len(first)


def test_a_cancelled_stream_and_a_pass_that_fails_leave_a_sound_session(
    pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, prompt = pair("a hybrid and one like it"), next(prompts(1, seed=5))
    expected = session.generate(prompt, max_new_tokens=12, stop_token_ids=()).tokens
    session.reset()
    with session.stream(prompt, max_new_tokens=12, stop_token_ids=()) as stream:
        next(stream)
        session.cancel()
        list(stream)
    assert session.generate(prompt, max_new_tokens=12, stop_token_ids=()).tokens == expected

    def interrupted(self: OrtDecoder, tokens: list[int], position: int) -> None:
        OWN_STEP(self, tokens, position)
        raise KeyboardInterrupt

    session.reset()
    stream = session.stream(prompt, max_new_tokens=12, stop_token_ids=())
    next(stream)
    with monkeypatch.context() as patched:
        patched.setattr(OrtDecoder, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert session.generate(prompt, max_new_tokens=12, stop_token_ids=()).tokens == expected


OWN_STEP = OrtDecoder.step


def test_a_hybrid_draft_is_fed_no_row_twice_but_those_that_were_rejected(
    pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it drafts could be right although every round began at the first token."""
    session, passes = pair("a hybrid and one like it"), list[tuple[int, int]]()
    own = OrtDecoder._run

    def noted(self: OrtDecoder, tokens: list[int], position: int, prompt: bool) -> object:
        if self is session.engine.draft.decoder:
            passes.append((position, len(tokens)))
        return own(self, tokens, position, prompt)

    monkeypatch.setattr(OrtDecoder, "_run", noted)
    session.generate(list(range(1, 31)), max_new_tokens=20, stop_token_ids=())
    reached = 0
    for position, count in passes:
        assert position >= reached - session.max_draft_tokens - 1
        reached = position + count
    assert reached > 30
