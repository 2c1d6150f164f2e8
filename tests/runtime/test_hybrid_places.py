"""Sessions over hybrids whose prompts part, go back and take turns: states that come back from the host.

`tests/runtime/state/test_state_checkpoints.py` has the same with doubles, and says which places are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.engines.base import SavedStates
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.engines.onnxruntime.states import OrtStates
from specexport.runtime.session import Session
from support.hybrids import KINDS, Exports, decoder, make_exports, session_of
from support.tiny import CONTRACT, VOCAB

pytestmark = pytest.mark.slow

NEAR = 0.03  # see test_hybrid_sessions.py
PAIRS: dict[str, tuple[tuple[str, float], tuple[str, float] | None]] = {
    "a hybrid and one like it": (("delta rule", 0.0), ("delta rule", NEAR)),
    "a hybrid target": (("scan", 0.0), ("llama", 0.0)),
    "a hybrid draft": (("llama", 0.0), ("convolution", 0.0)),
}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return make_exports(tmp_path_factory)


Open = Callable[[str], tuple[Session, Session]]


@pytest.fixture
def pair(exports: Exports, tmp_path: Path) -> Iterator[Open]:
    """One session that keeps places, and one that is reset before every request."""
    opened: list[Session] = []

    def sessions(name: str) -> tuple[Session, Session]:
        target, draft = (exports(*made) if made else None for made in PAIRS[name])
        assert target is not None
        opened.extend(session_of(tmp_path / str(room), target, draft, room) for room in (1 << 24, 0))
        return opened[0], opened[1]

    yield sessions
    for session in opened:
        session.close()


def began(session: Session, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """The answer, and the first position that target and draft were fed."""
    decoders, first = [session.engine.target, session.engine.draft.decoder], [len(prompt)] * 2
    own = OrtDecoder._run

    def noted(self: OrtDecoder, tokens: list[int], position: int, asked: bool) -> Any:
        which = decoders.index(self)
        first[which] = min(first[which], position)
        return own(self, tokens, position, asked)

    with monkeypatch.context() as patched:
        patched.setattr(OrtDecoder, "_run", noted)
        given = session.generate(prompt, max_new_tokens=4, stop_token_ids=())
    return list(given.tokens), first


@pytest.mark.parametrize("dropped", [0, 2])
@pytest.mark.parametrize("name", PAIRS)
def test_chats_in_turn_prefill_what_is_new_and_say_what_they_say_alone(
    name: str, dropped: int, pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dropped: tokens at a prompt's end that its template leaves out later, with the beginning of the answer."""
    session, fresh = pair(name)
    draw = np.random.default_rng(dropped)
    talks, shared, prompts = [list[int](), list[int]()], [0, 0], [0, 0]
    for turn in range(8):
        which = turn % 2 if turn < 4 else int(draw.integers(2))
        prompt = talks[which] + draw.integers(0, VOCAB, 6).tolist()
        if len(prompt) + 4 > CONTRACT.capacity:
            break
        fresh.reset()
        answer, first = began(session, prompt, monkeypatch)
        assert answer == list(fresh.generate(prompt, max_new_tokens=4, stop_token_ids=()).tokens)
        assert first[0] >= shared[which] - 1
        assert first[1] >= min(shared[which], prompts[which]) - 2
        talks[which] = [*prompt[:-dropped], *answer[1:]] if dropped else [*prompt, *answer]
        shared[which] = len(prompt) - dropped if dropped else len(talks[which])
        prompts[which] = len(prompt)
    assert min(prompts) >= 20


def saved_and_gone_on(ours: OrtDecoder, place: int) -> tuple[Any, Any]:
    """Logits behind a place, at once and after other sequences have been there, from what was saved."""
    draw = np.random.default_rng(place)
    tokens = draw.integers(0, VOCAB, 20).tolist()
    ours.feed(tokens[:12], 0)
    ours.step(tokens[12:17], 12)
    end = 12 + place  # the rest is rejected
    saved, rows = ours.read_recurrent_states(end), ours.read_rows(end)
    behind = draw.integers(0, VOCAB, 5).tolist()
    expected = ours.step(behind, end).copy()
    ours.feed(draw.integers(0, VOCAB, 16).tolist(), 0)
    ours.step([1, 2, 3], 16)
    ours.write_rows(rows, 0, end)
    ours.write_recurrent_states(saved)
    assert ours.resumable(end) == end
    return expected, ours.step(behind, end)


@pytest.mark.parametrize("place", range(1, 6))
@pytest.mark.parametrize("keeps_open", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_states_come_back_bit_for_bit(kind: str, keeps_open: bool, place: int, exports: Exports) -> None:
    expected, found = saved_and_gone_on(decoder(exports(kind, 0.0), keeps_open), place)
    assert (expected == found).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_is_gone_on_behind_before_its_end(kind: str, exports: Exports) -> None:
    """Prompts whose last tokens another one lacks; the last chunk was shorter than that."""
    ours, tokens = decoder(exports(kind, 0.0)), list(range(1, 19))
    ours.feed(tokens[:16], 0)
    ours.feed(tokens[16:], 16)
    saved, rows = ours.read_recurrent_states(18), ours.read_rows(18)
    assert saved.start == 18 - CONTRACT.widest_step
    for end in range(saved.start, 19):
        ours.feed(tokens[:end], 0)
        expected = ours.step([7, 8], end).copy()
        ours.feed([9] * 16, 0)
        ours.write_rows(rows, 0, 18)
        ours.write_recurrent_states(saved)
        assert np.allclose(ours.step([7, 8], end), expected, atol=1e-5)  # a prompt of another width before


OWN_READ = OrtStates.read


def _off_by(rows: int) -> Callable[[OrtStates, int], SavedStates]:
    return lambda self, end: replace(OWN_READ(self, end), start=self._rows.start + rows)


def _rejected_are_kept(self: OrtStates, end: int) -> SavedStates:
    """As if all rows of the last pass stood in front of the place."""
    return replace(OWN_READ(self, end), start=self._rows.start + end - self._rows.end)


WRONG = {"a row early": _off_by(1), "a row late": _off_by(-1), "rejected rows are kept": _rejected_are_kept}
