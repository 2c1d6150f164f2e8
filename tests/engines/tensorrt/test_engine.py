"""Decoders and rounds as they run on a GPU, on a device that is not there: the graphs are computed by ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Bundle, Contract
from specexport.engines.base import Chances
from specexport.engines.onnxruntime.cpu import load as load_on_cpu
from specexport.errors import EngineError
from specexport.runtime.proofs.parity import load_reference, prove_decoder, save_reference
from specexport.runtime.proofs.rule_parity import measure_rule
from specexport.runtime.session import Session
from support.doubles import with_models, write_bundle
from support.fake_device import FakeDevice
from support.fake_engine import load_fake
from support.messages import Refused
from support.pair import Pair

CONTRACT = Contract(capacity=64, max_draft_tokens=4, prompt_chunk=16, precision="fp32")
PROMPT = [7, 45, 200, 31, 9, 12, 260, 3, 77, 120, 45, 200, 31, 18, 5, 99, 101, 7, 45]


@pytest.fixture(scope="module", autouse=True)
def short_spans() -> Iterator[None]:
    """16, 32 and 64 rows, so that a capacity of 64 has a ladder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)
        yield


@pytest.fixture(scope="module")
def kept(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of the pair with every dialect, as a build leaves it but for the manifest on disk."""
    from specexport.exporter.rules.write import write_rules
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
    rules = write_rules(root, CONTRACT, VOCAB, lambda name: None)
    return replace(bundle, manifest=replace(bundle.manifest, rules=rules, **specs))


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


@pytest.mark.parametrize("verification", ["block", "token"])
def test_sampled_rounds_draw_what_the_host_draws(sessions: tuple[Session, Session], verification: Any) -> None:
    host, device = sessions
    for seed in range(6):
        k = (0, 1, 4)[seed % 3]
        asked: dict[str, Any] = {"temperature": 1.0, "seed": seed, "verification": verification, "num_draft_tokens": k}
        asked |= {
            "max_new_tokens": 30,
            "stop_token_ids": (),
            "top_k": (0, 40)[seed % 2],
            "top_p": (1.0, 0.9)[seed // 3],
        }
        assert device.generate(PROMPT, **asked).tokens == host.generate(PROMPT, **asked).tokens


def test_the_models_give_the_reference_logits(sessions: tuple[Session, Session]) -> None:
    """With stale rows poisoned, across the spans, chunks padded."""
    _, device = sessions
    contract = device.bundle.manifest.contract
    for role in ("target", "draft"):
        pair = device.bundle.manifest.pair
        own_draft = pair["draft"].weights == pair["target"].weights
        reference = load_reference(device.bundle.path(pair["target" if own_draft else role].reference))
        decoder = device.engine.target if role == "target" else device.engine.draft.decoder
        proof = prove_decoder(decoder, reference, device.engine.name, device.engine.dialect, role, contract.precision)  # type: ignore[arg-type]
        assert proof.max_error < 1e-4
    device.reset()  # its caches hold other sequences now


def test_the_rule_graphs_on_the_device_equal_the_numpy_rules(kept: Bundle) -> None:
    session, device = on_device(kept)
    open_graph, vocab_size = session.engine.open_graph, session.engine.target.vocab_size
    assert open_graph is not None
    measured = {}
    for spec in kept.manifest.rules:
        run = open_graph(kept.path(spec.graph))
        assert device.driver.cuCtxGetCurrent() == (0, 0), "the thread's context is given back"
        assert run is not None
        if spec.num_draft_tokens in (0, 3):
            measured[spec.rule] = measure_rule(run, spec, vocab_size)
    assert len(measured) == 5
    assert all(proof.passed for proof in measured.values())


def test_a_round_is_one_launch_and_one_wait(kept: Bundle, dialect: str) -> None:
    session, device = on_device(kept, dialect, "10.16.1" if dialect == "onnx" else "10.3.0")
    for options in ({}, {"temperature": 1.0, "seed": 1}, {"speculate": False}):
        stream = session.stream(PROMPT, max_new_tokens=40, stop_token_ids=(), **options)  # type: ignore[arg-type]
        next(stream)
        for _ in islice(stream, 4):
            device.log.clear()
            next(stream)
            assert device.log == ["launch", "wait"]
        stream.close()


def test_what_most_requests_need_is_captured_at_load(kept: Bundle) -> None:
    session, device = on_device(kept)
    spans, k = kept.manifest.contract.spans, kept.manifest.contract.max_draft_tokens
    assert len(spans) == 3
    # rounds, greedy and sampled, and prompt chunks
    assert device.log.count("capture") == len(spans) * ((k + 1) * 2 + 2)
    device.log.clear()
    for options in ({}, {"temperature": 1.0}, {"speculate": False}):
        session.reset()
        session.generate((PROMPT * 3)[:45], stop_token_ids=(), **options)  # type: ignore[arg-type]
    assert all(line in ("launch", "wait") for line in device.log)


def test_a_rule_that_is_asked_for_first_is_captured_then(kept: Bundle) -> None:
    session, device = on_device(kept)
    rounds = session.engine.rounds
    assert rounds is not None
    session._context.start(PROMPT)
    session._context.target.prefill(PROMPT, len(PROMPT) - 1)
    noise = np.full(4, 0.5, np.float32)
    chances = Chances("token", np.array([1, 0, 1, 0], np.float32), noise[1:], noise)
    device.log.clear()
    rounds.run(PROMPT, 3, chances)
    assert "launch" not in device.log
    assert device.log[-1] == "end of capture"
    captured = [line for line in device.log if line.startswith("captured execute")]
    models = [line for line in captured if "-onnx " in line]
    assert [line.split()[2] for line in models] == ["draft-onnx", "draft-onnx", "draft-onnx", "target-onnx"]
    assert ["tokens[1, 2]" in models[0], "tokens[1, 1]" in models[1], "tokens[1, 4]" in models[3]] == [True] * 3
    assert all("columns[32]" in line for line in models)  # 19 tokens and 3 drafts need 22 rows
    assert [line.split()[2] for line in captured if "-onnx " not in line] == ["select"] * 3 + ["accept_token_3"]
    device.log.clear()
    rounds.run(PROMPT, 3, chances)
    assert device.log == ["launch", "wait"]


def test_warming_up_leaves_clean_caches(kept: Bundle) -> None:
    """A masked row has weight 0, and 0 * NaN is NaN: nothing may lie in the caches that zeros as tokens came to."""
    session, device = on_device(kept)
    for decoder in (session.engine.target, session.engine.draft.decoder):
        for address, layer in decoder._caches.values():  # type: ignore[union-attr]
            size = 4 * layer.num_kv_heads * layer.head_dim * kept.manifest.contract.capacity
            assert not device.view(address, size).any()


def test_the_capacity_is_reached_and_not_passed(sessions: tuple[Session, Session]) -> None:
    host, device = sessions
    prompt = (PROMPT * 4)[:58]
    given = device.generate(prompt, stop_token_ids=())
    assert given.tokens == host.generate(prompt, stop_token_ids=(), speculate=False).tokens
    assert len(given.tokens) == 6


def test_a_cancelled_stream_leaves_a_usable_cache(sessions: tuple[Session, Session]) -> None:
    host, device = sessions
    stream = device.stream(PROMPT, max_new_tokens=30, stop_token_ids=())
    taken = [token for chunk in islice(stream, 2) for token in chunk.tokens]
    stream.close()
    for options in (
        {},
        {"drafter": "ngram"},
        {"repetition_penalty": 1.4},
        {"speculate": False},
        {"temperature": 0.7, "seed": 5},
    ):
        asked: dict[str, Any] = {"max_new_tokens": 20, "stop_token_ids": (), **options}
        prompt = [*PROMPT, taken[0], 8, 9]
        assert device.generate(prompt, **asked).tokens == host.generate(prompt, **asked).tokens


def test_logits_that_are_no_numbers_end_the_request_and_not_the_session(refused: Refused, kept: Bundle) -> None:
    session, _ = on_device(kept)
    before = session.generate(PROMPT, max_new_tokens=12, stop_token_ids=()).tokens
    for decoder in (session.engine.target, session.engine.draft.decoder):
        assert decoder is not None
        decoder.overwrite_rows(0, np.nan)  # below the prompt, which the session believes to be kept
        with refused(EngineError):
            session.generate(PROMPT, max_new_tokens=12, stop_token_ids=())
        assert session.generate(PROMPT, max_new_tokens=12, stop_token_ids=()).tokens == before


def test_too_little_memory_is_said_before_anything_runs(refused: Refused, kept: Bundle) -> None:
    with refused(EngineError):
        load_fake(kept, FakeDevice(memory=14_000))


def test_close_gives_everything_back(kept: Bundle) -> None:
    device = FakeDevice()
    free, _ = device.memory()
    session = Session(*load_fake(kept, device))
    session.generate(PROMPT, max_new_tokens=4)
    assert device.memory()[0] < free
    session.close()
    assert device.log[-1] == "close"
