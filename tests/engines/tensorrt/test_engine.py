"""Decoders and rounds as they run on a GPU, on a device that is not there: the graphs are computed by ONNX Runtime."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from specexport.bundle import Bundle, Contract
from specexport.engines.base import OpenedDraft
from specexport.engines.onnxruntime.cpu import load as load_on_cpu
from specexport.engines.rules import rule_specs
from specexport.errors import EngineError
from specexport.runtime.proofs.parity import measure
from specexport.runtime.proofs.reference_file import load_reference, save_reference
from specexport.runtime.proofs.rule_parity import measure_rule
from specexport.runtime.session import Session
from support.doubles import with_models, write_bundle
from support.fake_device import FakeDevice
from support.fake_engine import load_fake
from support.pair import Pair
from support.refusals import refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_spans")]
CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
PROMPT = [7, 45, 200, 31, 9, 12, 260, 3, 77, 120, 45, 200, 31, 18, 5, 99, 101, 7, 45]


@pytest.fixture(scope="module")
def kept(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of the pair with every dialect, as a build leaves it but for the manifest on disk."""
    from support.tiny import VOCAB, export_cached

    root = tmp_path_factory.mktemp("device")
    bundle = write_bundle(root, CONTRACT, VOCAB)
    specs = {}
    for role, checkpoint in (("target", pair.target), ("draft", pair.draft)):
        made = export_cached(checkpoint, root / "graphs", contract=CONTRACT, stem=role)
        save_reference(root / f"reference/{role}.npz", made.reference)
        graphs = {dialect: f"graphs/{name}" for dialect, name in made.spec.graphs.items()}
        specs[role] = replace(made.spec, graphs=graphs, weights=f"graphs/{made.spec.weights}")
    shutil.copy(pair.target / "tokenizer.json", root / "tokenizer/tokenizer.json")
    return replace(bundle, manifest=with_models(bundle.manifest, specs))


@pytest.fixture(scope="module")
def own_draft(kept: Bundle) -> Bundle:
    """The target as its own draft, which accepts everything."""
    manifest = kept.manifest
    return replace(kept, manifest=with_models(manifest, {"draft": manifest.target}))


def on_device(bundle: Bundle, dialect: str = "onnx", version: str = "10.16.1") -> tuple[Session, FakeDevice]:
    device = FakeDevice()
    return Session(*load_fake(bundle, device, dialect, version)), device


def on_host(bundle: Bundle) -> Session:
    return Session(bundle, load_on_cpu(bundle))


@pytest.fixture(scope="module", params=["onnx", "rows"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["kept", "own_draft"])
def sessions(request: pytest.FixtureRequest, dialect: str) -> tuple[Session, Session]:
    """The same bundle, its rounds run by the host on the CPU, and by the device."""
    bundle: Bundle = request.getfixturevalue(request.param)
    return on_host(bundle), on_device(bundle, dialect, "10.16.1" if dialect == "onnx" else "10.3.0")[0]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_greedy_rounds_give_the_targets_own_tokens(sessions: tuple[Session, Session], k: int) -> None:
    host, device = sessions
    for length in (1, 2, 3, 16, 19):  # from the first span into the last
        asked: dict[str, Any] = {"max_new_tokens": 40, "num_draft_tokens": k, "stop_token_ids": ()}
        plain = host.generate(PROMPT[:length], speculate=False, **asked | {"num_draft_tokens": 0})
        given = device.generate(PROMPT[:length], **asked)
        assert given.tokens == plain.tokens
        assert given.statistics.device_seconds > 0
        if k and host.bundle.manifest.pair["draft"].weights == host.bundle.manifest.target.weights:
            assert given.statistics.acceptance_rate == 1.0


def test_the_models_give_the_reference_logits(sessions: tuple[Session, Session]) -> None:
    """With stale rows poisoned, across the spans, chunks padded."""
    _, device = sessions
    contract = device.bundle.manifest.contract
    for role in ("target", "draft"):
        pair = device.bundle.manifest.pair
        own_draft = pair["draft"].weights == pair["target"].weights
        reference = load_reference(device.bundle.path(pair["target" if own_draft else role].reference))
        decoder = device.engine.target if role == "target" else device.engine.draft.decoder
        where = device.engine.name, device.engine.dialect
        (proof,) = measure(OpenedDraft(decoder), reference, where, role, contract.precision)
        assert proof.max_error < 1e-4
    device.reset()  # its caches hold other sequences now


def test_the_rules_on_the_device_equal_the_numpy_rules(kept: Bundle) -> None:
    session, device = on_device(kept)
    open_rule, vocab_size = session.engine.open_rule, session.engine.target.vocab_size
    assert open_rule is not None
    measured = {}
    for spec in rule_specs(3):
        run = open_rule(spec)
        assert device.driver.cuCtxGetCurrent() == (0, 0), "the thread's context is given back"
        if spec.num_draft_tokens in (0, 3):
            measured[spec.rule] = measure_rule(run, spec, vocab_size)
    assert len(measured) == 5
    assert all(proof.passed for proof in measured.values())


def test_too_little_memory_is_said_before_anything_runs(kept: Bundle) -> None:
    with refused(EngineError, "of 13.7 KiB free", code="out_of_device_memory"):
        load_fake(kept, FakeDevice(memory=14_000))


def test_a_prompt_is_scored_as_on_the_host(sessions: tuple[Session, Session]) -> None:
    host, device = sessions
    for length in (1, 2, 19):
        found = device.score(PROMPT[:length], likeliest=2).prompt_logprobs
        expected = host.score(PROMPT[:length], likeliest=2).prompt_logprobs
        assert [one.logprob for one in found] == pytest.approx([one.logprob for one in expected], abs=1e-4)
        assert [one.token for one in found] == PROMPT[1:length]
    asked: dict[str, Any] = {"max_new_tokens": 20, "stop_token_ids": ()}
    device.score(PROMPT)
    assert device.generate(PROMPT, **asked).tokens == host.generate(PROMPT, **asked).tokens
