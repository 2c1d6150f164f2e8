"""Whole builds with drafts that read the target's hidden states: proved, and in sessions equal to plain decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from specexport import load
from specexport.bundle import Bundle
from specexport.errors import BundleError, ParameterError, ProofError, UnsupportedModelError
from specexport.exporter.build import build
from specexport.exporter.options import BuildOptions, NamedDraft
from specexport.exporter.proving import reading
from specexport.exporter.tracing import taps
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.describe import describe, render
from specexport.runtime.proofs.verify import verify_session
from specexport.runtime.request import _candidates
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.session import Session
from support.block_drafts import save_block, save_block_target
from support.fake_device import FakeDevice
from support.fake_engine import load_fake
from support.hidden_drafts import (
    save_deepspec,
    save_modelopt,
    save_original,
    save_speculators,
    save_target,
    tensors,
)
from support.mtp_layers import FAMILIES, add_layer
from support.placement import copies
from support.refusals import refused
from support.tiny import VOCAB, make_tokenizer, save_checkpoint, save_model

pytestmark = pytest.mark.slow
PROMPT = list(range(3, 20))
FORMATS = dict(original=save_original, modelopt=save_modelopt, deepspec=save_deepspec, speculators=save_speculators)

MTP = ("Qwen3.5", "GLM-4.5", "MiMo")  # states, routed experts, neither; test_mtp.py compares the layers of all families


def options(cache: Path, **changes: Any) -> BuildOptions:
    return BuildOptions(max_seq_len=64, max_draft_tokens=3, cache=cache, **changes)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def check(bundle: Bundle, trials: int = 0) -> None:
    """Greedy text is that of plain decoding, and everything that `specexport verify` looks at holds."""
    session = load(bundle.root, policy=False)
    try:
        plain = session.generate(PROMPT, max_new_tokens=40, speculate=False, stop_token_ids=())
        for drafter in (bundle.manifest.first_draft, f"ngram+{bundle.manifest.first_draft}"):
            session.reset()
            drafted = session.generate(
                PROMPT, max_new_tokens=40, num_draft_tokens=3, drafter=drafter, stop_token_ids=()
            )
            assert drafted.tokens == plain.tokens
            assert drafted.statistics.drafted > 0
        report = verify_session(session, None, 16, trials=trials)
        assert report.passed
        assert report.drafted > 0
    finally:
        session.close()


def check_rows(bundle: Bundle) -> None:
    """After rounds, the draft's cache has the rows that one pass over the whole text writes."""
    name, rows, text = bundle.manifest.first_draft, [], list(PROMPT)
    for count in (30, 1):
        session = load(bundle.root, policy=False)
        options: dict[str, Any] = dict(max_new_tokens=count, num_draft_tokens=3, drafter=name, stop_token_ids=())
        text += session.generate(text, **options).tokens
        cached = session.drafts.context.drafts[name]
        rows.append(cached.decoder.read_rows(cached.rows))
        session.close()
    length = min(part[0].shape[1] for part in rows)
    assert length > len(PROMPT) + 20
    for after_rounds, fresh in zip(*rows, strict=True):
        np.testing.assert_allclose(after_rounds[:, :length], fresh[:, :length], atol=2e-3)
        assert np.abs(fresh).max() > 0.1


@pytest.mark.parametrize("format", FORMATS)
def test_eagle3(format: str, target: Path, cache: Path, tmp_path: Path) -> None:
    FORMATS[format](tmp_path / "head")
    chunk = dict(prompt_chunk=5) if format == "deepspec" else {}  # less than four times the widest step
    bundle = build(str(target), str(tmp_path / "head"), tmp_path / "bundle", options(cache, **chunk)).bundle
    draft = bundle.manifest.drafts[0]
    assert draft.model.reads is not None
    assert draft.model.reads.kind == "eagle3"
    assert draft.model.proofs[0].max_error < 1e-4
    assert "draft tokens 1 to 2 of" in render(describe(bundle))
    graph = onnx.load(bundle.path(draft.model.graphs["kernels"]), load_external_data=False).graph
    assert not {"Cos", "Neg", "GatherND"} & {node.op_type for node in graph.node}  # attention turns, a Slice keeps rows
    kept = draft.shared_vocabulary
    assert (kept.shared_tokens if kept else VOCAB) == draft.model.vocab_size
    check(bundle, trials=1300 if format == "original" else 0)  # with a cut vocabulary


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dflash", {}),
        ("dflash, windows", dict(precision="int8", prompt_chunk=8)),
        ("dspark", dict(portable=True)),
        ("dspark, gated", dict(precision="int4")),
        ("dspark, confidence alone", {}),  # whose chain gives the logits that it gets
        ("dspark, after the anchor", dict(precision="int8", cache_precision="fp16")),
    ],
)
def test_blocks(name: str, changes: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    target = str(save_block_target(tmp_path / "target"))
    head = str(save_block(tmp_path / "head", name))
    bundle = build(target, head, tmp_path / "bundle", options(cache, **changes)).bundle
    draft = bundle.manifest.drafts[0]
    assert draft.model.reads is not None
    assert draft.model.reads.kind == name.split(",")[0]
    assert bool(draft.model.reads.chain) == ("dspark" in name)
    assert any("confidences" in proof.dialect for proof in draft.model.proofs) == ("dspark" in name)
    assert not any("calibration text" in note for note in draft.model.notes)
    assert any(f"draft tokens 1 to {draft.model.reads.slots} of" in note for note in draft.model.notes)
    check_rows(bundle)
    check(bundle, trials=1300 if name == "dspark" else 0)  # with a cut vocabulary


def mtp_target(name: str, folder: Path) -> Path:
    family = replace(FAMILIES[name], config=FAMILIES[name].config | {"vocab_size": VOCAB})
    save_model(folder, family.model_type, config=family.config)
    add_layer(folder, family)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "name", [*MTP, *(pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES if name not in MTP)]
)
def test_mtp(name: str, cache: Path, tmp_path: Path) -> None:
    bundle = build(str(mtp_target(name, tmp_path / "t")), "mtp", tmp_path / "bundle", options(cache)).bundle
    reads = bundle.manifest.drafts[0].model.reads
    assert reads is not None
    assert (reads.kind, reads.taps, reads.fuse) == ("mtp", (-1,), {})
    assert any("draft tokens 1 to 1 of" in note for note in bundle.manifest.drafts[0].model.notes)
    check(bundle)


def test_an_mtp_layer_proposes_the_most_frequent_tokens(cache: Path, tmp_path: Path) -> None:
    changes = options(cache, draft_vocabulary=40, precision="int8")
    target = mtp_target("GLM-4.5", tmp_path / "t")
    bundle = build(str(target), "mtp", tmp_path / "bundle", changes).bundle
    kept = bundle.manifest.drafts[0].shared_vocabulary
    assert kept is not None
    assert kept.shared_tokens == 40
    check(bundle)
    for size in (0, VOCAB + 1):
        with refused(ParameterError, "--draft-vocabulary", str(size), field="draft_vocabulary"):
            build(str(target), "mtp", tmp_path / "other", options(cache, draft_vocabulary=size))


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantized_targets_give_the_hidden_states_of_the_checkpoint(
    precision: str, target: Path, cache: Path, tmp_path: Path
) -> None:
    """Which are rotated inside, and proved against transformers'."""
    save_speculators(tmp_path / "head")
    bundle = build(str(target), str(tmp_path / "head"), tmp_path / "b", options(cache, precision=precision)).bundle
    assert bundle.manifest.target.taps
    assert any("rotated" in note for note in bundle.manifest.target.notes) == (precision == "int8")
    assert not any("stream is rotated" in note for note in bundle.manifest.drafts[0].model.notes)
    check(bundle)


def test_a_graph_that_fuses_is_compared_with_the_manifest(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "head")
    root = build(str(target), str(tmp_path / "head"), tmp_path / "b", options(cache)).bundle.root
    manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    manifest["drafts"][0]["model"]["reads"]["width"] += 1
    (root / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with refused(BundleError, "fused", "33"):
        load(root, policy=False)


def test_taps_that_the_user_gives_beside_an_ordinary_draft(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "head")
    save_target(tmp_path / "plain", num_hidden_layers=1)
    drafts = [NamedDraft(name, str(tmp_path / name)) for name in ("plain", "head")]
    bundle = build(str(target), drafts, tmp_path / "b", options(cache, draft_taps=(1, 3, 6))).bundle
    plain, head = (draft.model for draft in bundle.manifest.drafts)
    assert plain.reads is None
    assert head.reads is not None
    assert head.reads.taps == bundle.manifest.target.taps == (1, 3, 6)
    assert head.num_parameters == sum(weight.numel() for weight in tensors().values())  # without what is the target's
    assert any("--draft-taps 1,3,6" in note for note in head.notes)
    drafts.append(NamedDraft("two", str(save_original(tmp_path / "two"))))
    with refused(ParameterError, drafts[1].source, drafts[2].source, field="draft_taps"):
        build(str(target), drafts, tmp_path / "c", options(cache, draft_taps=(1, 3, 6)))


def test_two_drafts_of_different_layers_over_one_target(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "one")
    save_original(tmp_path / "two")
    config = json.loads((tmp_path / "two/config.json").read_text(encoding="utf-8"))
    config["eagle_aux_hidden_state_layer_ids"] = [1, 4, 6]
    (tmp_path / "two/config.json").write_text(json.dumps(config), encoding="utf-8")
    drafts = (NamedDraft("one", str(tmp_path / "one")), NamedDraft("two", str(tmp_path / "two")))
    bundle = build(str(target), drafts, tmp_path / "bundle", options(cache)).bundle
    assert bundle.manifest.target.taps == (1, 2, 4, 5, 6)
    session = load(bundle.root, policy=False)
    plain = session.generate(PROMPT, max_new_tokens=30, speculate=False, stop_token_ids=()).tokens
    for drafter in ("one", "two", "one", "ngram+two"):
        session.reset()
        found = session.generate(PROMPT, max_new_tokens=30, drafter=drafter, num_draft_tokens=3, stop_token_ids=())
        assert found.tokens == plain
    session.close()


def test_another_head_over_the_same_layers_takes_the_export_of_the_target(target: Path, tmp_path: Path) -> None:
    heads = [save_speculators(tmp_path / "one"), save_speculators(tmp_path / "two", norm_output=True)]
    reused = []
    for head in heads:
        report = build(str(target), str(head), tmp_path / f"{head.name}.bundle", options(tmp_path / "cache"))
        reused.append([time.label for time in report.times if time.reused])
    assert reused == [[], ["export target"]]


def test_a_portable_bundle_has_graphs_of_both_dialects(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "head")
    made = build(str(target), str(tmp_path / "head"), tmp_path / "b", options(cache, portable=True))
    reads = made.bundle.manifest.drafts[0].model.reads
    assert reads is not None
    assert {*reads.fuse} == {"kernels", "ort"} == {*made.bundle.manifest.target.graphs}
    check(made.bundle)


def test_states_of_the_wrong_layer_fail_the_proof(
    target: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_speculators(tmp_path / "head")
    layers = taps.decoder_layers

    def off_by_one(*arguments: Any) -> Any:
        return torch.nn.ModuleList([*layers(*arguments)][1:])

    monkeypatch.setattr(taps, "decoder_layers", off_by_one)
    with pytest.raises(ProofError, match="hidden states at tap 2"):
        build(str(target), str(tmp_path / "head"), tmp_path / "b", options(tmp_path / "cache"))


def test_what_goes_back_is_proved(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_speculators(tmp_path / "head")
    passes = reading.reading_passes

    def other_feedback(model: Any, steps: Any) -> Any:
        run = model.run
        model.run = lambda *states, **how: (lambda read, back: (read, back * 1.5))(*run(*states, **how))
        yield from passes(model, steps)
        model.run = run

    monkeypatch.setattr(reading, "reading_passes", other_feedback)
    with pytest.raises(ProofError, match="draft"):
        build(str(target), str(tmp_path / "head"), tmp_path / "b", options(tmp_path / "cache"))


def test_onnxruntime_cuda_copies_nothing_in_a_pass(target: Path, cache: Path, tmp_path: Path) -> None:
    """Else its passes are no CUDA graphs."""
    save_original(tmp_path / "head")
    chosen = options(cache, engines=("onnxruntime-cuda",), precision="fp16")
    bundle = build(str(target), str(tmp_path / "head"), tmp_path / "b", chosen).bundle
    for model in bundle.manifest.pair.values():
        assert copies(ir.load(bundle.path(model.graphs["ort"]))) == []


@pytest.mark.parametrize(
    ("kind", "dialect", "version"),
    [("eagle3", "onnx", "10.16.1"), ("mtp", "onnx", "10.16.1"), ("eagle3", "rows", "10.3.0")],
)
def test_rounds_on_a_device(
    kind: str,
    dialect: str,
    version: str,
    target: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the dialects of TensorRT, whole rounds over a double of it: everything that `specexport verify` looks at. The
    MTP layer's target keeps states.
    """
    monkeypatch.setattr("specexport.bundle.contract.SHORTEST_SPAN", 16)
    head = save_original(tmp_path / "head") if kind == "eagle3" else "mtp"
    source = target if kind == "eagle3" else mtp_target("Qwen3.5", tmp_path / "t")
    both = options(cache, engines=("onnxruntime", "tensorrt"), tensorrt_version=version)
    bundle = build(str(source), str(head), tmp_path / "b", both).bundle
    model = bundle.manifest.drafts[0].model
    assert model.reads is not None
    assert dialect in model.graphs
    assert (dialect in model.reads.fuse) is (kind == "eagle3")
    assert {proof.dialect: proof.passed for proof in model.proofs}[dialect]
    graphs = [graph for graph in (model.graphs[dialect], model.reads.fuse.get(dialect)) if graph]
    # What TensorRT 10.3 reads.
    assert dialect != "rows" or all(
        onnx.load(bundle.path(graph), load_external_data=False).ir_version == 8 for graph in graphs
    )
    found = {}
    planned, engine = load_fake(bundle, FakeDevice(), dialect, version)
    for name, session in (
        ("device", Session(planned, engine, policy=False)),
        ("host", load(bundle.root, policy=False)),
    ):
        found[name] = [
            session.generate(PROMPT, max_new_tokens=40, num_draft_tokens=k, stop_token_ids=(), **how)
            for how in ({}, {"temperature": 1.0, "seed": 3})
            for k in (1, 3)
        ]
        if name == "device":
            assert all(one.statistics.device_seconds and not one.statistics.draft_seconds for one in found[name])
            report = verify_session(session, None, 16, trials=0)
            assert report.passed
            assert report.drafted > 0
        session.close()
    for ours, theirs in zip(*found.values(), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.statistics.accepted_by_position == theirs.statistics.accepted_by_position


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_tensorrt_rtx_compiles_the_graphs(precision: str, target: Path, cache: Path, tmp_path: Path) -> None:
    """With what fuses, and the checks of its network."""
    pytest.importorskip("tensorrt_rtx")
    save_speculators(tmp_path / "head")
    chosen = options(cache, engines=("tensorrt-rtx",), precision=precision)
    bundle = build(str(target), str(tmp_path / "head"), tmp_path / "b", chosen).bundle
    reads = bundle.manifest.drafts[0].model.reads
    assert reads is not None
    plans = {plan.graph for plan in bundle.manifest.plans}
    assert {*bundle.manifest.target.graphs.values(), *reads.fuse.values()} <= plans
    assert bundle.manifest.drafts[0].model.format == ("int4" if precision == "fp16" else precision)


def test_candidates_need_a_draft_that_reads_tokens(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "head")
    save_target(tmp_path / "plain", num_hidden_layers=1)
    drafts = [NamedDraft(name, str(tmp_path / name)) for name in ("head", "plain")]
    bundle = build(str(target), drafts, tmp_path / "b", options(cache, tree_rows=2)).bundle
    session = load(bundle.root, policy=False)
    sampled = {"temperature": 1.0, "verification": "spectr", "num_draft_tokens": 2}
    with refused(ParameterError, "hidden states", "plain", field="verification"):
        session.generate(PROMPT, **sampled)
    (head, _), alone = bundle.manifest.drafts, SamplingParameters(**sampled)
    only = Bundle(bundle.root, replace(bundle.manifest, drafts=(head,)))
    for name in ("head", "ngram"):  # no other drafter is advised, where none can
        with refused(ParameterError, field="verification") as caught:
            _candidates(only, alone, (name,))
        assert "name" not in str(caught.value)
    assert session.generate(PROMPT, **sampled, drafter="plain", max_new_tokens=20, seed=1).statistics.candidates > 0
    session.close()


def test_a_target_without_layers_in_one_list(cache: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "t")
    save_file(load_file(tmp_path / "t/model.safetensors"), tmp_path / "t/model.safetensors", {"format": "pt"})
    from specexport.exporter.checkpoints.find import find_checkpoint

    model = find_checkpoint(str(tmp_path / "t")).load("fp32")
    model.config.num_hidden_layers += 1
    with pytest.raises(UnsupportedModelError, match="one list"), taps.taps_seen(model, (0,)):
        pass


def test_the_cost_of_a_prompt_counts_what_fuses(target: Path, cache: Path, tmp_path: Path) -> None:
    save_speculators(tmp_path / "head")
    bundle = build(str(target), str(tmp_path / "head"), tmp_path / "b", options(cache)).bundle
    session = load(bundle.root, policy=False)
    reader, rows = session.drafts.open(bundle.manifest.first_draft).reader, list[int]()
    assert reader is not None
    read = reader.read
    reader.read = lambda hidden: (rows.append(len(hidden)), read(hidden))[1]  # type: ignore[method-assign]
    CostMeter(session, [20])._read(list(range(3, 23)))
    assert sum(rows) == 20
    # And the prompt is read once, for rounds without a draft too.
    target, fed = session.engine.target, list[int]()
    feed = target.feed
    target.feed = lambda tokens, place: (fed.append(len(tokens)), feed(tokens, place))[1]  # type: ignore[method-assign]
    CostMeter(session, [20]).time(20, 1)
    assert 19 <= sum(fed) < 38
    session.close()
