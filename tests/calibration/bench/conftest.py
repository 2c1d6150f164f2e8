"""A session of doubles, and what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from specexport.calibration.bench import interleaved
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.doubles import FakeDecoder, fake_session

Call = dict[str, Any]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the doubles has no device that could be asked for its name."""
    monkeypatch.setattr(interleaved, "describe_host", lambda manifest, engine, device: f"a host with {engine}")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return fake_session(tmp_path / "bundle", FakeDecoder(), FakeDecoder(noise=0.4))


@pytest.fixture
def calls(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What was asked of the session: resets, and every stream with its options and what it could keep of the caches."""
    made: list[Call] = []
    stream, reset = session.stream, session.reset

    def recorded(prompt: Sequence[int], params: SamplingParameters) -> Any:
        made.append({"prompt": tuple(prompt)} | asdict(params))
        for chunk in stream(prompt, params):
            made[-1]["reused"] = chunk.statistics.reused_tokens
            yield chunk

    def forgotten() -> None:
        made.append({"reset": True})
        reset()

    monkeypatch.setattr(session, "stream", recorded)
    monkeypatch.setattr(session, "reset", forgotten)
    return made
