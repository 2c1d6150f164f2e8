"""On a device, nothing is left behind, however a session or a request ends. Apart from `test_lifetimes.py`, since the
simulated TensorRT reads graphs with onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from specexport.bundle import CacheLayer, Contract
from specexport.errors import BundleError, SessionClosedError
from specexport.runtime import load as load_module
from specexport.runtime.load import load
from support.doubles import VOCAB
from support.fake_device import FakeDevice
from support.fake_engine import load_fake
from support.micro import Micro, micro_bundle

SMALL = Contract(capacity=16, max_draft_tokens=1, prompt_chunk=4, precision="fp32")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """Where `load` finds a bundle, on a device without a GPU."""
    device = FakeDevice()
    models = (Micro((CacheLayer(1, 4),), VOCAB, noise=noise) for noise in (0.0, 2.0))
    bundle, engine = load_fake(micro_bundle(tmp_path / "a.bundle", SMALL, *models), device)
    monkeypatch.setattr(load_module.Bundle, "open", lambda path, check_digests: bundle)
    monkeypatch.setattr(load_module, "load_engine", lambda *_: engine)
    assert len(device.driver.live) > 20
    yield device
    assert device.driver.live == {}


def test_a_session_that_is_closed_leaves_nothing(device: FakeDevice) -> None:
    with load("a.bundle", policy=False) as session:
        session.generate([5, 6, 7], max_new_tokens=4)
    with pytest.raises(SessionClosedError):
        session.generate([5, 6, 7])


def test_a_cancelled_request_leaves_nothing(device: FakeDevice) -> None:
    with load("a.bundle", policy=False) as session:
        stream = session.stream([5, 6, 7])
        next(stream)
        stream.cancel()
        assert next(stream).finish_reason == "cancelled"
        kept = session.stream([5, 6, 7])
        next(kept)


@pytest.mark.parametrize("file", ["policy.json", "tokenizer/tokenizer.json"])
def test_a_session_that_cannot_be_made_gives_the_engine_back(device: FakeDevice, file: str) -> None:
    bundle = load_module.Bundle.open(Path("a.bundle"), False)
    bundle.path(file).write_text("{}")
    with pytest.raises(BundleError):
        load("a.bundle")
