"""Hybrids on TensorRT: sessions on a device that is a double, whose states lie where a real one's would, and what
TensorRT-RTX's own builder says of their graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from specexport.bundle import ModelSpec
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.tensorrt.api import library
from specexport.engines.tensorrt.compile import CompileJob, CompileOptions, compile_graph, model_profiles
from specexport.engines.tensorrt.network_checks import check_model
from specexport.errors import EngineError
from specexport.runtime.session import Session
from support.fake_device import FakeDevice
from support.fake_engine import load_fake
from support.hybrids import Exports, bundle_for_tensorrt, make_exports, session_of
from support.refusals import refused
from support.tiny import CONTRACT, VOCAB

pytestmark = pytest.mark.slow

NEAR = 0.03  # so far is a draft's every weight from its target's: some of its tokens are accepted, some are not
PAIRS: dict[str, tuple[tuple[str, float], tuple[str, float] | None]] = {
    "scans": (("scan", 0.0), ("scan", NEAR)),
    "a hybrid draft": (("llama", 0.0), ("convolution", 0.0)),
    "alone": (("delta rule", 0.0), None),
}


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return make_exports(tmp_path_factory, ("onnx", "ort"))


class Made:
    """The same models on the device and on ONNX Runtime's own operators."""

    def __init__(self, root: Path, name: str, exports: Exports, prompt_cache_bytes: int = 0) -> None:
        target, draft = (exports(*model) if model else None for model in PAIRS[name])
        assert target is not None
        self.device = FakeDevice()
        bundle, self.engine = load_fake(bundle_for_tensorrt(root / "device", target, draft), self.device)
        self.session = Session(bundle, self.engine, policy=False, prompt_cache_bytes=prompt_cache_bytes)
        self.host = session_of(root / "host", target, draft)

    def close(self) -> None:
        self.session.close()
        self.host.close()


Make = Callable[..., Made]


@pytest.fixture
def make(exports: Exports, tmp_path: Path) -> Iterator[Make]:
    made: list[Made] = []

    def one(name: str, prompt_cache_bytes: int = 0) -> Made:
        made.append(Made(tmp_path, name, exports, prompt_cache_bytes))
        return made[-1]

    yield one
    for part in made:
        part.close()


def prompts(count: int, seed: int = 0) -> Iterator[list[int]]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield draw.integers(0, VOCAB, int(draw.integers(1, 40))).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "a hybrid draft",
        pytest.param("alone", marks=pytest.mark.slow),
        pytest.param("scans", marks=pytest.mark.nightly),
    ],
)
def test_sessions_give_what_onnx_runtimes_operators_give(name: str, make: Make) -> None:
    """Rounds that run whole on the device, and rounds of lookups, pass by pass; prompts in padded chunks."""
    made, drafted, accepted = make(name), 0, 0
    for prompt in (*prompts(5), [*range(20, 28)] * 3):
        for options in ({}, dict(drafter="ngram"), dict(speculate=False), dict(temperature=0.8, seed=3)):
            ours, theirs = (
                session.generate(prompt, max_new_tokens=20, stop_token_ids=(), **options)  # type: ignore[arg-type]
                for session in (made.session, made.host)
            )
            assert ours.tokens == theirs.tokens, options
            drafted, accepted = drafted + ours.statistics.drafted, accepted + ours.statistics.accepted
    assert drafted > accepted
    assert accepted or name != "scans"


def test_places_come_back_from_the_host(make: Make) -> None:
    made = make("scans", prompt_cache_bytes=1 << 24)
    first, other = ([*range(5, 40)], [*range(60, 90)])
    expected = made.host.generate([*first, 9], max_new_tokens=6, stop_token_ids=()).tokens
    for prompt in (first, other):
        made.session.generate(prompt, max_new_tokens=6, stop_token_ids=())
    again = made.session.generate([*first, 9], max_new_tokens=6, stop_token_ids=())
    assert again.tokens == expected
    assert again.statistics.reused_tokens >= len(first) - 2


def test_a_launch_that_fails_leaves_states_that_count_as_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, prompt = make("scans"), [*range(5, 25)]
    expected = made.host.generate(prompt, max_new_tokens=8, stop_token_ids=()).tokens
    stream = made.session.stream(prompt, max_new_tokens=8, stop_token_ids=())
    next(stream)
    with monkeypatch.context() as patched:
        patched.setattr(made.device, "launch", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    for decoder in (made.engine.target, made.engine.draft.decoder):
        assert isinstance(decoder, DeviceDecoder)
        assert not any(decoder.resumable(rows) for rows in range(CONTRACT.capacity))
    assert made.session.generate(prompt, max_new_tokens=8, stop_token_ids=()).tokens == expected


def _interrupted(graph: object) -> None:
    raise KeyboardInterrupt


def test_what_is_checked_of_a_network(exports: Exports, tmp_path: Path) -> None:
    """Of states that are of another size than the manifest says."""
    pytest.importorskip("tensorrt_rtx")
    spec = exports("convolution", 0.0).spec
    (window,) = spec.layers[0].states
    first = replace(spec.layers[0], states=(replace(window, sizes=(window.sizes[0] + 1, window.sizes[1])),))
    with refused(EngineError, "past.0.window"):
        _compile("convolution", exports, tmp_path / "model.plan", replace(spec, layers=(first, *spec.layers[1:])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["delta rule", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("convolution", "scan"))]
)
def test_tensorrt_rtx_builds_a_hybrid(kind: str, exports: Exports, tmp_path: Path) -> None:
    """For every width of a round and for prompt chunks, with nothing that a CUDA graph cannot hold."""
    pytest.importorskip("tensorrt_rtx")
    _compile(kind, exports, tmp_path / "model.plan")
    assert (tmp_path / "model.plan").stat().st_size > 1000


def _compile(kind: str, exports: Exports, plan: Path, spec: ModelSpec | None = None) -> None:
    lib, exported = library("tensorrt_rtx"), exports(kind, 0.0)
    check = partial(check_model, trt=lib.trt, spec=spec or exported.spec, contract=CONTRACT, dialect="onnx")
    job = CompileJob(exported.folder / exported.spec.graphs["onnx"], model_profiles(CONTRACT, "target"), check)
    compile_graph(lib, job, plan, CompileOptions(("8.9",)), lambda step: None)
