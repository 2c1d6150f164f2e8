"""Models whose layers keep states, on a simulated GPU: the CPU provider runs their passes.

The decoder of the CPU engine is what they are compared with, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specexport.engines.base import Decoder, Engine, OpenedDraft
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.errors import EngineError
from specexport.runtime.proofs.parity import POISON
from specexport.runtime.session import Session
from support.hybrids import KINDS, Exports, decoder, make_exports, session_of
from support.refusals import refused
from support.stream_onnxruntime import device_decoder
from support.tiny import CONTRACT, VOCAB, Exported

WIDEST, CHUNK = CONTRACT.widest_step, CONTRACT.prompt_chunk
TOKENS = np.random.default_rng(0).integers(0, VOCAB, CONTRACT.capacity).tolist()
BOTH = pytest.mark.parametrize("keeps_open", [False, True], ids=["target", "draft"])
Make = Callable[[str, bool], DeviceDecoder]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return make_exports(tmp_path_factory)


def on_device(exported: Exported, keeps_open: bool = False) -> DeviceDecoder:
    path = exported.folder / exported.spec.graphs["ort"]
    return device_decoder(path, exported.spec, exported.contract, "draft" if keeps_open else "target")


@pytest.fixture
def make(exports: Exports) -> Make:
    def made(kind: str, keeps_open: bool = False) -> DeviceDecoder:
        return on_device(exports(kind, 0.0), keeps_open)

    return made


def feed(decoder: Decoder, tokens: list[int], position: int) -> None:
    """As the runtime does: a chunk at a time."""
    for start in range(0, len(tokens), CHUNK):
        decoder.feed(tokens[start : start + CHUNK], position + start)


def same_states(ours: DeviceDecoder, theirs: Decoder, end: int) -> bool:
    one, other = ours.read_recurrent_states(end), theirs.read_recurrent_states(end)
    assert ours.states is not None
    (block,) = one.arrays  # all of them, one after another
    places = [start for _, _, start in ours.states._places]
    return (one.start, one.end) == (other.start, other.end) and all(
        np.array_equal(block[start : start + array.nbytes], array.reshape(-1).view(np.uint8))
        for start, array in zip(places, other.arrays, strict=True)
    )


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_with_rejected_drafts_are_the_cpu_engines_bit_for_bit(
    kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    draw = random.Random(0)
    ours, theirs = make(kind, keeps_open), decoder(exports(kind, 0.0), keeps_open)
    for _ in range(4):
        rows = draw.randint(1, 20)
        for part in (ours, theirs):
            feed(part, TOKENS[:rows], 0)
        while rows + WIDEST <= CONTRACT.capacity:
            count, accepted = draw.randint(1, WIDEST), 1
            given = [draw.randrange(VOCAB) for _ in range(count)]
            one, other = (part.step(given, rows).copy() for part in (ours, theirs))
            assert np.array_equal(one, other)
            accepted = draw.randint(1, count)
            rows += accepted
            for part in (ours, theirs):
                part.overwrite_rows(rows, POISON)
                assert part.resumable(rows) == rows
        assert same_states(ours, theirs, rows)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, WIDEST, WIDEST + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 2])
def test_nothing_but_its_tokens_enters_the_states_of_a_prompt(
    count: int, kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    ours, theirs = make(kind, keeps_open), decoder(exports(kind, 0.0), keeps_open)
    for part in (ours, theirs):
        feed(part, TOKENS[:count], 0)
    assert [part.resumable(rows) for part in (ours, theirs) for rows in range(count + 2)] == 2 * [
        rows if max(0, count - WIDEST) <= rows <= count else 0 for rows in range(count + 2)
    ]
    found = (part.step(TOKENS[count : count + 3], count).copy() for part in (ours, theirs))
    np.testing.assert_allclose(*found, atol=1e-5)  # the last chunk is padded


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_places_come_back_and_are_those_of_the_cpu_engine(
    kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    ours, theirs = make(kind, keeps_open), decoder(exports(kind, 0.0), keeps_open)
    for part in (ours, theirs):
        feed(part, TOKENS[:20], 0)
    saved = [(part.read_recurrent_states(20), part.read_rows(20)) for part in (ours, theirs)]
    expected = theirs.step(TOKENS[20:23], 20).copy()
    for part, (states, rows) in zip((ours, theirs), saved, strict=True):
        feed(part, TOKENS[30:60], 0)
        part.overwrite_rows(0, POISON)
        assert part.resumable(20) == 0
        part.write_rows(rows, 0, 20)
        part.write_recurrent_states(states)
        assert part.resumable(20) == 20
        np.testing.assert_allclose(part.step(TOKENS[20:23], 20), expected, atol=1e-5)


def test_rounds_are_replayed_by_their_counts_and_prompts_never(make: Make) -> None:
    ours = make("delta rule", False)
    log = ours._device.log  # type: ignore[attr-defined]
    for _ in range(2):
        log.clear()
        position = CHUNK + 3
        ours.feed(TOKENS[:position], 0)
        assert "launch" not in log
        for accepted in range(1, WIDEST + 1):
            ours.step(TOKENS[:WIDEST], position)
            position += accepted
    assert log.count("launch") == WIDEST
    assert "capture" not in log


def test_a_pass_that_fails_leaves_states_that_count_as_none(make: Make, exports: Exports) -> None:
    ours, theirs = make("delta rule", False), decoder(exports("delta rule", 0.0))
    feed(ours, TOKENS[:20], 0)
    session = ours._graph._session  # type: ignore[attr-defined]
    session.fails = True
    with refused(EngineError, "launch"):
        ours.step(TOKENS[:2], 20)
    session.fails = False
    assert ours.resumable(20) == 0
    with refused(EngineError, "20"):
        ours.step(TOKENS[:2], 20)
    for part in (ours, theirs):
        feed(part, TOKENS[:20], 0)
    np.testing.assert_allclose(*(part.step(TOKENS[20:23], 20) for part in (ours, theirs)), atol=1e-5)


@pytest.mark.slow
def test_sessions_say_what_those_of_the_cpu_engine_say(tmp_path: Path, exports: Exports) -> None:
    target, draft = exports("delta rule", 0.0), exports("delta rule", 0.05)
    with session_of(tmp_path / "cpu", target, draft, 1 << 20) as theirs:
        engine = Engine("onnxruntime-cuda", "ort", on_device(target), OpenedDraft(on_device(draft, keeps_open=True)))
        with Session(theirs.bundle, engine, policy=False, prompt_cache_bytes=1 << 20) as ours:
            for prompt in (TOKENS[:9], TOKENS[:12], TOKENS[5:30], TOKENS[:9]):
                for options in (dict(num_draft_tokens=4), dict(num_draft_tokens=0)):
                    said = [part.generate(prompt, max_new_tokens=20, **options).tokens for part in (ours, theirs)]
                    assert said[0] == said[1]
