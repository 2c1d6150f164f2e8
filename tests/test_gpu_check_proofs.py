"""The proofs and measurements of `scripts/gpu_check`, on a device that is not there: they pass, and each can fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Bundle, Contract
from specexport.engines.base import Chances, Engine, OpenedDraft, RoundResult
from specexport.engines.tensorrt.decoder import TensorRTDecoder
from specexport.engines.tensorrt.engine import load_bundle
from specexport.errors import EngineError
from specexport.exporter.build import build
from specexport.exporter.request.options import BuildOptions
from specexport.runtime.session import Session
from specexport.runtime.state.context import Context
from support.fake_device import FakeDevice
from support.fake_engine import ENGINE, fake_library, with_plans

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from gpucheck.case import News, examine
from gpucheck.finding import Finding
from gpucheck.llama import Hybrid, Llama
from gpucheck.measurements import measure
from gpucheck.measurements.passes import pass_samples
from gpucheck.measurements.rounds import RoundKey, timed_round
from gpucheck.meter import Counts, Meter
from gpucheck.presets import Effort
from gpucheck.proofs import prove, samples
from gpucheck.proofs.ladder import prove_ladder
from gpucheck.proofs.parity import decoders, prove_parity
from gpucheck.proofs.requests import prove_requests
from gpucheck.proofs.rounds import prove_rounds
from gpucheck.proofs.rules import prove_rules
from gpucheck.proofs.samples import prove_samples
from gpucheck.report import Outcome
from gpucheck.session_under_test import Subject, open_subject
from gpucheck.shapes import Shape
from gpucheck.timing import interleaved

pytestmark = pytest.mark.slow

MODEL = Llama(2, 32, 4, 2, 48, 16, tied=False, positions=64, spread=0.35)
SHAPE = Shape("tiny", MODEL, MODEL, capacity=64, max_draft_tokens=2, strangeness=0.1, sampled=True, walks=True)
EFFORT = Effort(repetitions=2, trials=300, new_tokens=10, prompts=2, every_width=True, every_span=True)


@pytest.fixture(scope="module", autouse=True)
def short_spans() -> Iterator[None]:
    """16, 32 and 64 rows, so that a capacity of 64 has a ladder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)
        yield


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


def test_a_hybrid_is_proved(cache: Path, tmp_path: Path) -> None:
    """By the CPU engine: what is asked of it must be what states can give."""
    model = Hybrid(2, 32, 4, 2, 48, 16, tied=True, positions=64, spread=0.35, state_dim=8)
    shape = Shape("hybrid", model, model, capacity=64, max_draft_tokens=2, strangeness=0.1)
    shape.write(tmp_path)
    checkpoints = shape.checkpoints(tmp_path)
    options = BuildOptions(shape.capacity, shape.max_draft_tokens, prompt_chunk=8, cache=cache)
    build(str(checkpoints["target"]), str(checkpoints["draft"]), tmp_path / "hybrid.bundle", options)
    subject = open_subject(tmp_path / "hybrid.bundle", "onnxruntime", checkpoints)
    assert all(decoder.has_states for _, decoder in decoders(subject.session))
    prompts = [prompt[:12] for prompt in shape.prompts(subject.session, EFFORT.prompts)]
    findings = list(prove(subject, prompts, EFFORT, walks=False, sampled=False))
    assert len(findings) > 4
    assert all(finding.passed for finding in findings), findings


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
    assert row["model"]["cache_bytes_a_row"] == 2 * MODEL.layers * MODEL.kv_heads * MODEL.head_dim * 4
    again = subject.session.generate(prompts[0], max_new_tokens=4)  # the session forgot what the measurement wrote
    assert again.statistics.reused_tokens == 0


def test_times_are_those_of_the_graphs(subject: Subject, prompts: list[list[int]]) -> None:
    """The fake GPU takes a millisecond for each operation: a pass, a rule, a copy."""
    found = measure(subject, prompts, EFFORT)
    assert {entry.ms.median for entry in found.passes} == {1.0}
    assert {entry.ms.median for entry in found.rules} == {1.0}
    for round in found.rounds:
        assert round.parts == (2.0 if round.k == 0 else 2 * round.k + 2)
        assert round.gpu.median > round.parts  # copies
    plain = [round.gpu.median for round in found.rounds if round.rule == "greedy" and round.k == 0]
    assert plain == [6.0] * 3  # two copies in, a pass, a copied logit, a rule, a copy out


def test_passes_are_timed_at_the_end_of_their_span(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, target = subject.meter, subject.session.engine.target
    assert meter is not None
    assert isinstance(target, TensorRTDecoder)
    found: list[tuple[int, list[int]]] = []

    def look(graph: Any) -> Callable[[], float]:
        def sample() -> float:
            slots = (target.positions[3], target.tokens[3])
            (position, tokens) = (
                meter._device.view(slot.address, slot.host.nbytes).view(np.int64).tolist() for slot in slots
            )  # type: ignore[attr-defined]
            found.append((position[0], tokens))
            return 1.0

        return sample

    monkeypatch.setattr(meter, "graph_time", look)
    interleaved(pass_samples(meter, target, [(3, 16), (3, 64)]), 2)
    assert found == [(13, [1, 1, 1]), (61, [1, 1, 1])] * 2
    subject.session.reset()


def test_rounds_are_timed_at_the_end_of_their_span(subject: Subject) -> None:
    asked: list[tuple[int, int, str]] = []
    meter = subject.meter
    assert meter is not None

    class Recorded:
        drafts = True

        def run(self, tokens: Sequence[int], num_draft_tokens: int, chances: Chances | None) -> RoundResult:
            asked.append((len(tokens), num_draft_tokens, chances.verification if chances else "greedy"))
            assert chances is None or (len(chances.draft_noise), len(chances.noise)) == (
                num_draft_tokens,
                num_draft_tokens + 1,
            )
            meter.launch(graph)
            meter.synchronize()
            return RoundResult([], [], 0, 0)

    graph = meter.capture(lambda: None)
    found = timed_round(meter, Recorded(), RoundKey("block", 2, 32))
    assert set(asked) == {(30, 2, "block")}
    assert found.counts == Counts(launches=1, waits=1, others=0)
    assert found.wall() > 0
    timed_round(meter, Recorded(), RoundKey("greedy", 0, 16))
    assert asked[-1] == (16, 0, "greedy")


def test_nothing_is_measured_that_was_not_proved(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucheck.case.prove", lambda *_: iter([Finding("one", True, ""), Finding("two", False, "")]))
    outcome = Outcome("tiny", "fp32")
    examine(subject, SHAPE, EFFORT, 1e9, News(lambda news: None, outcome))
    assert len(outcome.findings) == 2
    assert outcome.measurements is None
    assert outcome.measures == []


def test_an_engine_without_rounds_is_proved_and_timed_by_the_host(subject: Subject, prompts: list[list[int]]) -> None:
    other = replace(with_engine(subject, rounds=None, open_graph=None), meter=None)
    findings = list(prove(other, prompts, EFFORT, walks=False, sampled=False))
    assert all(finding.passed for finding in findings)
    assert not any("device" in finding.name or "rule" in finding.name for finding in findings)
    found = measure(other, prompts, EFFORT)
    assert found.rounds == found.rules == []
    assert {(entry.clock, entry.role, entry.width) for entry in found.passes} == {
        ("host", role, width) for role in ("target", "draft") for width in (1, 2, 3)
    }


def test_a_proof_that_ends_in_an_error_has_failed_and_the_others_go_on(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Iterator[Finding]:
        yield Finding("rules, one of them", True, "")
        raise EngineError("the GPU refused it")

    monkeypatch.setattr("gpucheck.proofs.prove_rules", broken)
    begun: list[str] = []
    findings = list(prove(subject, prompts, EFFORT, walks=False, sampled=False, begin=begun.append))
    assert begun == ["parity", "rules", "rounds", "requests"]
    assert [finding for finding in findings if not finding.passed] == [Finding("rules", False, "the GPU refused it")]
    assert findings[-1].name == "logits that are no numbers, draft"


# Every proof finds its mutant.


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


@pytest.mark.parametrize("late", [1, 2])
def test_a_span_that_is_chosen_too_late(subject: Subject, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    """The first rows behind a span's end are not looked at."""
    monkeypatch.setattr(Contract, "span", lambda self, end: next(span for span in self.spans if span >= end - late))
    assert "ladder, target" in failed(prove_ladder(subject))


def test_rules_that_are_missing_or_wrong(subject: Subject) -> None:
    open_graph = subject.session.engine.open_graph
    assert open_graph is not None

    def without(path: Path) -> Any:
        return None if path.stem == "accept_token_2" else open_graph(path)

    def wrong(path: Path) -> Any:
        run = open_graph(path)
        if path.stem != "select":
            return run
        return lambda arrays: run(arrays) | {"token": (run(arrays)["token"] + 1) % MODEL.vocab_size}

    assert failed(prove_rules(with_engine(subject, open_graph=without).session)) == ["rules"]
    (found,) = [
        entry for entry in prove_rules(with_engine(subject, open_graph=without).session) if entry.name == "rules"
    ]
    assert "missing: accept_token of 2" in found.detail
    assert failed(prove_rules(with_engine(subject, open_graph=wrong).session)) == ["rule select of 0"]


class Altered:
    """Rounds whose result, or what they are given, is changed."""

    drafts = True

    def __init__(
        self,
        engine: Engine,
        change: Callable[[RoundResult], RoundResult],
        spoil: Callable[[Chances], Chances] | None = None,
    ) -> None:
        assert engine.rounds is not None
        self._rounds, self._change, self._spoil = engine.rounds, change, spoil

    def run(self, tokens: Sequence[int], num_draft_tokens: int, chances: Chances | None) -> RoundResult:
        given = self._spoil(chances) if chances and self._spoil else chances
        return self._change(self._rounds.run(tokens, num_draft_tokens, given))


def altered(
    subject: Subject, change: Callable[[RoundResult], RoundResult], spoil: Callable[[Chances], Chances] | None = None
) -> Subject:
    return with_engine(subject, rounds=Altered(subject.session.engine, change, spoil))


def test_rounds_that_give_another_token(subject: Subject, prompts: list[list[int]]) -> None:
    other = altered(
        subject,
        lambda result: replace(result, next_token=(result.next_token + (result.num_accepted == 1)) % MODEL.vocab_size),
    )
    names = failed(prove_rounds(other, prompts, EFFORT))
    assert {"device rounds give the host's, greedy", "greedy rounds give plain decoding's tokens"} <= set(names)


def test_rounds_that_accept_too_little_with_the_right_tokens(subject: Subject, prompts: list[list[int]]) -> None:
    def less(result: RoundResult) -> RoundResult:
        if not result.num_accepted:
            return result
        return replace(
            result, num_accepted=result.num_accepted - 1, next_token=result.draft_tokens[result.num_accepted - 1]
        )

    assert "device rounds give the host's, greedy" in failed(prove_rounds(altered(subject, less), prompts, EFFORT))


def test_rounds_that_the_host_runs_in_silence(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specexport.runtime.loop.chunks.device_rounds", lambda *_: None)
    assert failed(prove_rounds(subject, prompts, EFFORT)) == ["the device runs the rounds"]


def test_noise_that_does_not_arrive(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = altered(
        subject, lambda result: result, lambda given: replace(given, draft_noise=np.full_like(given.draft_noise, 0.5))
    )
    names = failed(prove_rounds(other, prompts, EFFORT))
    assert names == ["device rounds give the host's, sampled, block", "device rounds give the host's, sampled, token"]
    monkeypatch.setattr(samples, "WAYS", samples.WAYS[1:2])
    assert failed(prove_samples(other.session, prompts[0], EFFORT)) == [
        "samples at temperature 1.0, token verification"
    ]


def test_a_request_that_keeps_rows_of_another(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: Context, prompt: Sequence[int], salt: str | None = None) -> int:
        self.tokens = list(prompt)
        self.target.rows = min(self.target.rows, len(prompt) - 1)
        return 0  # and does not say so

    monkeypatch.setattr(Context, "start", start)
    names = failed(prove_requests(with_engine(subject).session, prompts[0]))
    assert "a request behind another prompt's cancelled stream" in names


def test_a_cancelled_stream_that_loses_all_rows(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Context.start

    def start(self: Context, prompt: Sequence[int], salt: str | None = None) -> int:
        self.truncate(0)
        return original(self, prompt, salt)

    monkeypatch.setattr(Context, "start", start)
    assert failed(prove_requests(subject.session, prompts[0])) == ["a request behind its own cancelled stream"]


def test_numbers_that_are_none_and_stay(
    subject: Subject, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "forget", lambda self: self.truncate(0))
    monkeypatch.setattr(TensorRTDecoder, "prepare", lambda self, position: None)
    names = failed(prove_requests(subject.session, prompts[0]))
    assert names == ["logits that are no numbers, target", "logits that are no numbers, draft"]
    assert failed(prove_parity(subject.session)) == []


def test_numbers_that_are_none_and_not_told_of(subject: Subject, prompts: list[list[int]]) -> None:
    other = altered(
        subject,
        lambda result: replace(
            result, next_token=result.next_token % MODEL.vocab_size, confidence=[1.0] * len(result.confidence)
        ),
    )
    names = failed(prove_requests(other.session, prompts[0]))
    assert "logits that are no numbers, draft" in names


# Loading.


def test_the_engines_own_device_is_metered(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from specexport.engines.tensorrt import enterprise

    device = FakeDevice()
    monkeypatch.setattr(enterprise, "CudaDevice", lambda index=0: device)
    monkeypatch.setattr(enterprise, "_runtime", lambda: fake_library(device))
    monkeypatch.setattr("gpucheck.session_under_test.Bundle.open", lambda root, check_digests: subject.session.bundle)
    opened = open_subject(subject.session.bundle.root, "tensorrt", subject.checkpoints)
    assert opened.meter is not None
    before = opened.meter.counts.launches
    opened.session.generate([1, 2, 3], max_new_tokens=3)
    assert opened.meter.counts.launches > before
    assert enterprise.CudaDevice() is device  # metered only while it was loaded
    opened.session.close()
