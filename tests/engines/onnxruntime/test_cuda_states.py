"""Models whose layers keep states, on the decoder for CUDA: the CPU provider runs them, a double captures them.

The decoder of the CPU engine is what they are compared with, bit for bit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specexport.engines.base import Decoder, Engine, OpenedDraft
from specexport.engines.onnxruntime.cuda_decoder import OrtCudaDecoder, OrtDevice
from specexport.errors import EngineError
from specexport.runtime.proofs.parity import POISON
from specexport.runtime.session import Session
from support.capturing_onnxruntime import Capturing
from support.hybrids import KINDS, Exports, decoder, make_exports, session_of
from support.refusals import refused
from support.tiny import CONTRACT, VOCAB, Exported

WIDEST, CHUNK = CONTRACT.widest_step, CONTRACT.prompt_chunk
TOKENS = np.random.default_rng(0).integers(0, VOCAB, CONTRACT.capacity).tolist()
BOTH = pytest.mark.parametrize("keeps_open", [False, True], ids=["target", "draft"])
Make = Callable[[str, bool], tuple[OrtCudaDecoder, Capturing]]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return make_exports(tmp_path_factory)


def on_cuda(exported: Exported, keeps_open: bool = False, runtime: Capturing | None = None) -> OrtCudaDecoder:
    runtime, path = runtime or Capturing(), exported.folder / exported.spec.graphs["ort"]
    decoder = OrtCudaDecoder(
        runtime, runtime.session(path), OrtDevice("cpu", 0), path, exported.spec, exported.contract, keeps_open
    )
    decoder.warm_up()
    return decoder


@pytest.fixture
def make(exports: Exports) -> Make:
    def made(kind: str, keeps_open: bool = False) -> tuple[OrtCudaDecoder, Capturing]:
        runtime = Capturing()
        ours = on_cuda(exports(kind, 0.0), keeps_open, runtime)
        runtime.runs.clear()
        return ours, runtime

    return made


def feed(decoder: Decoder, tokens: list[int], position: int) -> None:
    """As the runtime does: a chunk at a time."""
    for start in range(0, len(tokens), CHUNK):
        decoder.feed(tokens[start : start + CHUNK], position + start)


def same_states(ours: Decoder, theirs: Decoder, end: int) -> bool:
    one, other = ours.read_recurrent_states(end), theirs.read_recurrent_states(end)
    return (one.start, one.end) == (other.start, other.end) and all(
        np.array_equal(*pair) for pair in zip(one.arrays, other.arrays, strict=True)
    )


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_with_rejected_drafts_are_the_cpu_engines_bit_for_bit(
    kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    draw = random.Random(0)
    (ours, runtime), theirs = make(kind, keeps_open), decoder(exports(kind, 0.0), keeps_open)
    for _ in range(4):
        rows = draw.randint(1, 20)
        for part in (ours, theirs):
            feed(part, TOKENS[:rows], 0)
        runtime.runs.clear()
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
        assert {what for what, _ in runtime.runs} == {"replayed"}


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, WIDEST, WIDEST + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 2])
def test_nothing_but_its_tokens_enters_the_states_of_a_prompt(
    count: int, kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    ours, theirs = make(kind, keeps_open)[0], decoder(exports(kind, 0.0), keeps_open)
    for part in (ours, theirs):
        feed(part, TOKENS[:count], 0)
    assert same_states(ours, theirs, count)
    assert [part.resumable(rows) for part in (ours, theirs) for rows in range(count + 2)] == 2 * [
        rows if max(0, count - WIDEST) <= rows <= count else 0 for rows in range(count + 2)
    ]
    assert np.array_equal(*(part.step(TOKENS[count : count + 3], count).copy() for part in (ours, theirs)))


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_places_come_back_bit_for_bit_and_are_those_of_the_cpu_engine(
    kind: str, keeps_open: bool, make: Make, exports: Exports
) -> None:
    ours, theirs = make(kind, keeps_open)[0], decoder(exports(kind, 0.0), keeps_open)
    feed(ours, TOKENS[:20], 0)
    states, rows = ours.read_recurrent_states(20), ours.read_rows(20)
    expected = ours.step(TOKENS[20:23], 20).copy()
    for part in (ours, theirs):
        feed(part, TOKENS[30:60], 0)
        part.overwrite_rows(0, POISON)
        assert part.resumable(20) == 0
        part.write_rows(rows, 0, 20)
        part.write_recurrent_states(states)
        assert part.resumable(20) == 20
        assert np.array_equal(part.step(TOKENS[20:23], 20), expected)


@BOTH
def test_rounds_and_whole_chunks_are_captured_before_and_ends_of_prompts_never(keeps_open: bool, make: Make) -> None:
    ours, runtime = make("delta rule", keeps_open)
    ours.feed(TOKENS[: 2 * CHUNK + 3], 0)
    assert runtime.runs == [
        ("replayed", (CHUNK, 0, CHUNK - WIDEST)),
        ("replayed", (CHUNK, WIDEST, CHUNK)),
        ("ran", (3, WIDEST, 3)) if not keeps_open else ("replayed", (3, WIDEST, 3)),
    ]
    runtime.runs.clear()
    ours.feed(TOKENS[: CHUNK - 1], 0)
    assert runtime.runs == [("ran", (CHUNK - 1, 0, CHUNK - 1 - WIDEST))]
    ours.feed(TOKENS[: 2 * CHUNK + 3], 0)
    runtime.runs.clear()
    position = 2 * CHUNK + 3
    ours.step(TOKENS[:2], position)
    for accepted in range(1, WIDEST):
        ours.step(TOKENS[:WIDEST], position + 1)
        position += accepted
    assert {what for what, _ in runtime.runs} == {"replayed"}


def test_each_kind_of_pass_is_a_graph_of_its_own(exports: Exports) -> None:
    runtime = Capturing()
    on_cuda(exports("delta rule", 0.0), runtime=runtime)
    assert len(runtime.runs) == len(runtime.frozen) == len(set(runtime.frozen.values())) == WIDEST**2 + 2
    assert {what for what, _ in runtime.runs} == {"captured"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_thread_captures_leaves_the_same_states(kind: str, make: Make, exports: Exports) -> None:
    (ours, runtime), theirs = make(kind, False), decoder(exports(kind, 0.0))
    found: list[np.ndarray] = []

    def rounds() -> None:
        feed(ours, TOKENS[:20], 0)
        found.extend(ours.step(TOKENS[20:25], position).copy() for position in (20, 22, 23, 25))

    thread = threading.Thread(target=rounds)
    thread.start()
    thread.join()
    feed(theirs, TOKENS[:20], 0)
    expected = [theirs.step(TOKENS[20:25], position).copy() for position in (20, 22, 23, 25)]
    assert len(found) == len(expected)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert same_states(ours, theirs, 30)
    assert "captured" in {what for what, _ in runtime.runs}
    runtime.runs.clear()
    ours.step(TOKENS[20:25], 27)
    assert [what for what, _ in runtime.runs] == ["replayed"]  # in the thread that warmed up


def test_a_pass_that_fails_leaves_states_that_count_as_none(make: Make, exports: Exports) -> None:
    (ours, runtime), theirs = make("delta rule", False), decoder(exports("delta rule", 0.0))
    feed(ours, TOKENS[:20], 0)
    runtime.fails = True
    with refused(EngineError, "20"):
        ours.step(TOKENS[:2], 20)
    runtime.fails = False
    assert ours.resumable(20) == 0
    with refused(EngineError, "20"):
        ours.step(TOKENS[:2], 20)
    for part in (ours, theirs):
        feed(part, TOKENS[:20], 0)
    assert same_states(ours, theirs, 20)


@pytest.mark.slow
def test_sessions_say_what_those_of_the_cpu_engine_say(tmp_path: Path, exports: Exports) -> None:
    target, draft = exports("delta rule", 0.0), exports("delta rule", 0.05)
    with session_of(tmp_path / "cpu", target, draft, 1 << 20) as theirs:
        engine = Engine("onnxruntime-cuda", "ort", on_cuda(target), OpenedDraft(on_cuda(draft, keeps_open=True)))
        with Session(theirs.bundle, engine, policy=False, prompt_cache_bytes=1 << 20) as ours:
            for prompt in (TOKENS[:9], TOKENS[:12], TOKENS[5:30], TOKENS[:9]):
                for options in (dict(num_draft_tokens=4), dict(num_draft_tokens=0)):
                    said = [part.generate(prompt, max_new_tokens=20, **options).tokens for part in (ours, theirs)]
                    assert said[0] == said[1]
