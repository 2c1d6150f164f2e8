"""The proofs and measurements of `scripts/gpu_check`, on a device that is not there: they pass, and each can fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpucheck.case import News, examine
from gpucheck.finding import Finding
from gpucheck.llama import Llama
from gpucheck.meter import Meter
from gpucheck.presets import Effort
from gpucheck.proofs.ladder import prove_ladder
from gpucheck.proofs.parity import prove_parity
from gpucheck.proofs.rounds import prove_rounds
from gpucheck.report import Outcome
from gpucheck.session_under_test import Subject
from gpucheck.shapes import Shape
from specexport.bundle import Bundle
from specexport.engines.base import Engine, OpenedDraft, RoundNoise, RoundResult
from specexport.engines.tensorrt.engine import load_bundle
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions
from specexport.runtime.session import Session
from support.fake_device import FakeDevice
from support.fake_engine import ENGINE, fake_library, with_plans

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("short_spans")]
MODEL = Llama(2, 32, 4, 2, 48, 16, tied=False, positions=64, spread=0.35)
SHAPE = Shape("tiny", MODEL, MODEL, capacity=64, max_draft_tokens=2, strangeness=0.1, sampled=True, walks=True)
EFFORT = Effort(repetitions=2, trials=300, new_tokens=10, prompts=2, every_width=True, every_span=True)


@pytest.fixture(scope="module")
def subject(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    base = tmp_path_factory.mktemp("subject")
    SHAPE.write(base)
    checkpoints = SHAPE.checkpoints(base)
    engines = ("onnxruntime", "tensorrt")
    options = BuildOptions(SHAPE.capacity, SHAPE.max_draft_tokens, prompt_chunk=8, engines=engines, cache=cache)
    build(str(checkpoints["target"]), str(checkpoints["draft"]), base / "tiny.bundle", options)
    bundle = with_plans(Bundle.open(base / "tiny.bundle"))
    device = FakeDevice()
    meter = Meter(device)  # type: ignore[arg-type]
    engine = load_bundle(ENGINE, bundle, fake_library(device), meter)
    return Subject(Session(bundle, engine), meter, checkpoints)


@pytest.fixture(scope="module")
def prompts(subject: Subject) -> list[list[int]]:
    return [prompt[:12] for prompt in SHAPE.prompts(subject.session, EFFORT.prompts)]


def with_engine(subject: Subject, **changes: Any) -> Subject:
    return replace(subject, session=Session(subject.session.bundle, replace(subject.session.engine, **changes)))


def failed(findings: Iterator[Finding]) -> list[str]:
    return [finding.name for finding in findings if not finding.passed]


def test_everything_is_proved_and_measured(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shape, "prompts", lambda *_: prompts)
    told: list[str] = []
    outcome = Outcome("tiny", "fp32")
    examine(subject, SHAPE, EFFORT, 1e9, News(lambda news: told.append(news[0]), outcome))
    assert all(finding.passed for finding in outcome.findings), outcome.findings
    names = [finding.name for finding in outcome.findings]
    assert len(names) == len(set(names)) == len([line for line in told if "proved" in line])
    steps = [line.strip() for line in told if "proved" not in line]
    assert steps == ["parity", "rules", "ladder", "rounds", "requests", "samples", "measure"]
    parts = (
        "parity",
        "ladder",
        "rules",
        "device rounds give the host's",
        "greedy rounds",
        "samples",
        "cancelled",
        "no numbers",
    )
    assert [part for part in parts if not any(part in name for name in names)] == []
    drafts = next(finding.detail for finding in outcome.findings if finding.name.endswith("host's, greedy"))
    assert int(drafts.split("; ")[1].split()[0]) > 5  # acceptance is part of what was compared
    row = json.loads(json.dumps(outcome.as_dict()))
    sizes = {(entry["role"], entry["width"], entry["span"]) for entry in row["measurements"]["passes"]}
    assert sizes == {("target", width, span) for width in (1, 2, 3, 8) for span in (16, 32, 64)} | {
        ("draft", width, span) for width in (1, 2) for span in (16, 32, 64)
    }
    assert {(entry["rule"], entry["k"], entry["span"]) for entry in row["measurements"]["rounds"]} == {
        (rule, k, span) for rule in ("greedy", "block") for k in (0, 1, 2) for span in (16, 32, 64)
    }
    assert {
        entry["measured"] for entry in row["measures"] if entry["name"].startswith(("host launches", "host waits"))
    } == {1}
    assert [entry["k"] for entry in row["measurements"]["speeds"]] == [0, 2]
    layers = subject.session.bundle.manifest.target.layers  # whose heads may be padded
    assert row["model"]["cache_bytes_a_row"] == sum(2 * layer.num_kv_heads * layer.head_dim * 4 for layer in layers)
    again = subject.session.generate(prompts[0], max_new_tokens=4)  # the session forgot what the measurement wrote
    assert again.statistics.reused_tokens == 0


class Spoilt:
    """A decoder whose logits are changed on the way."""

    def __init__(self, decoder: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self.vocab_size, self.feed, self.overwrite_rows = decoder.vocab_size, decoder.feed, decoder.overwrite_rows
        self.resumable = decoder.resumable
        self._decoder, self._change = decoder, change

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        return self._change(self._decoder.step(tokens, position))


def test_logits_that_are_off(subject: Subject) -> None:
    engine = subject.session.engine
    spoilt = with_engine(subject, draft=OpenedDraft(Spoilt(engine.draft.decoder, lambda logits: logits + 0.1)))
    assert failed(prove_parity(spoilt.session)) == ["parity, draft"]
    assert failed(prove_ladder(spoilt)) == ["ladder, draft"]


class Altered:
    """Rounds whose result, or what they are given, is changed."""

    drafts = True

    def __init__(
        self,
        engine: Engine,
        change: Callable[[RoundResult], RoundResult],
        spoil: Callable[[RoundNoise], RoundNoise] | None = None,
    ) -> None:
        assert engine.rounds is not None
        self._rounds, self._change, self._spoil = engine.rounds, change, spoil

    def run(
        self, tokens: Sequence[int], num_draft_tokens: int, chances: RoundNoise | None, hidden: Any = None
    ) -> RoundResult:
        given = self._spoil(chances) if chances and self._spoil else chances
        return self._change(self._rounds.run(tokens, num_draft_tokens, given, hidden))


def altered(
    subject: Subject,
    change: Callable[[RoundResult], RoundResult],
    spoil: Callable[[RoundNoise], RoundNoise] | None = None,
) -> Subject:
    return with_engine(subject, rounds=Altered(subject.session.engine, change, spoil))


def test_rounds_that_give_another_token(subject: Subject, prompts: list[list[int]]) -> None:
    other = altered(
        subject,
        lambda result: replace(result, next_token=(result.next_token + (result.num_accepted == 1)) % MODEL.vocab_size),
    )
    names = failed(prove_rounds(other, prompts, EFFORT))
    assert {"device rounds give the host's, greedy", "greedy rounds give plain decoding's tokens"} <= set(names)
