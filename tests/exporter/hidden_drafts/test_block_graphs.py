"""The graphs of a draft of blocks on ONNX Runtime, against the module and against each other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from specexport.bundle import Contract, ModelSpec, Proof, Reads
from specexport.engines.base import OpenedDraft
from specexport.engines.onnxruntime.blocks import OrtBlockDecoder
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.errors import BundleError, EngineError
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.kernels.layouts import whole_vectors
from specexport.exporter.kernels.products import use_kernels
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.proving.prove import record_reference
from specexport.exporter.tracing.blocks import block_layers, trace_block, trace_chain, trace_context
from specexport.exporter.weights.recipe import Recipe
from specexport.runtime.proofs.parity import ReferenceStep, measure
from specexport.runtime.proofs.reference_file import load_reference, save_reference
from support.block_drafts import FORMS, RECORDED, save_block, save_block_target, tensors_of
from support.refusals import refused

CONTRACT = Contract(capacity=20, max_draft_tokens=3, prompt_chunk=8, precision="fp32")
HIDDEN = RECORDED["aux"][0].astype(np.float32)  # [12, 48]
Open = Callable[[], OrtBlockDecoder]


@pytest.fixture(scope="module", params=["ort", "kernels", "kernels, heads that turn by themselves"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelSpec, Path]:
    """The module, its manifest's entry and the folder of its graphs."""
    folder, dialect = tmp_path_factory.mktemp("block"), request.param.split(",")[0]
    if dialect == "kernels":
        pytest.importorskip("specexport_kernels")
    target = find_checkpoint(str(save_block_target(folder / "target")))
    model: Any = find_draft(str(save_block(folder / "head", "dspark")), target).load("fp32")
    if dialect != request.param:
        model = with_wide_heads(model)
    spec = exported(model, dialect, folder)
    return model, spec, folder


def with_wide_heads(model: Any) -> Any:
    """Like `model`, whose heads are padded, with others that fill the kernels' vectors."""
    config = copy.deepcopy(model.config)
    config.head_dim = 16
    torch.manual_seed(0)
    wide = type(model)(config, model.form).eval()
    wide.target_ids = model.target_ids
    wide.follow(model.__dict__["_target"])
    return wide


def test_wide_heads_turn_by_themselves(made: tuple[Any, ModelSpec, Path]) -> None:
    model, _, folder = made
    nodes = list(ir.load(folder / "draft-context.onnx").graph)
    operators = {node.op_type for node in nodes}
    assert ("Neg" not in operators) == (model.config.head_dim == 16)
    assert ("Cos" not in operators) == any(node.domain == "specexport" for node in nodes)  # else looked up


def exported(model: Any, dialect: Dialect, folder: Path, contract: Contract = CONTRACT) -> ModelSpec:
    layers = block_layers(model)
    if dialect == "kernels":
        layers = whole_vectors(layers)
    graphs: dict[str, ir.Model] = {
        "block": trace_block(model, layers, dialect, contract),
        "context": trace_context(model, layers, dialect, contract),
    }
    if model.kind == "dspark":
        graphs["chain"] = trace_chain(model, dialect)
    for graph in graphs.values():
        optimize(graph, dialect)
        if dialect == "kernels":
            use_kernels(graph, Recipe({}), contract.capacity)
    save(graphs, folder, "draft")
    chain = {dialect: "chain"} if "chain" in graphs else {}
    reads = Reads(model.kind, model.taps, 16, {dialect: "context"}, model.form.slots, chain)
    sizes: Any = dict(source="", architecture="", checkpoint_sha256="", num_parameters=0, vocab_size=24)
    rest: Any = dict(weights="", format="float", notes=(), fidelity=None, graphs={dialect: "block"})
    return ModelSpec(layers=layers, reads=reads, **sizes, **rest)


@pytest.fixture
def opened(made: tuple[Any, ModelSpec, Path]) -> OrtBlockDecoder:
    _, spec, folder = made
    return decoder(spec, folder)


def decoder(spec: ModelSpec, folder: Path, contract: Contract = CONTRACT) -> OrtBlockDecoder:
    graphs = {name: folder / f"draft-{name}.onnx" for name in ("block", "context")}
    chain = open_graph(folder / "draft-chain.onnx") if spec.reads and spec.reads.chain else None
    return OrtBlockDecoder(graphs, spec, contract, chain)


def block_of(draft: OrtBlockDecoder, tokens: list[int], position: int, rows: int) -> NDArray[np.float32]:
    """Logits `[4, m]` of a block whose anchor is the last of the first of `tokens`, the others in turn."""
    draft.read(HIDDEN[position : position + rows])
    logits = [draft.step([0] * (rows - 1) + tokens[:1], position).copy()]
    for token in tokens[1:]:
        draft.read_back()
        logits.append(draft.step([token], position + rows).copy())
    return np.concatenate(logits)


def test_slots_are_those_of_the_module_whatever_the_chunks(made: Any, opened: OrtBlockDecoder) -> None:
    model, tokens = made[0], [9, 40, 7, 250]
    with torch.no_grad():
        fused = model.fuse(torch.from_numpy(HIDDEN[None, :7]))
        logits, states = model.blocks(fused, torch.tensor(tokens[:1]), torch.tensor([7]))
        wanted, confidence = model.chain(torch.tensor([tokens]), states, logits)
    rows = []
    for parts in ((7,), (1, 6), (3, 1, 3)):
        opened.overwrite_rows(0, np.nan)  # rows that no pass wrote, as after a roll-back
        place = 0
        for part in parts[:-1]:
            opened.read(HIDDEN[place : place + part])
            opened.feed([0] * part, place)
            place += part
        found = block_of(opened, tokens, place, parts[-1])
        np.testing.assert_allclose(found, wanted[0], atol=1e-5)
        assert opened.confidence is not None
        assert opened.confidence() == pytest.approx(float(confidence[0, -1]), abs=1e-5)
        rows.append(np.concatenate([part.ravel() for part in opened.read_rows(7)]))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[0], atol=1e-6)


def test_a_block_writes_no_rows(opened: OrtBlockDecoder) -> None:
    opened.overwrite_rows(0, 7.0)
    block_of(opened, [9, 40], 0, 5)
    assert all((rows[:, 5:] == 7.0).all() for rows in opened.read_rows(CONTRACT.capacity))
    assert not any((rows[:, :5] == 7.0).all() for rows in opened.read_rows(5))


def test_the_last_block_stands_beyond_the_capacity(opened: OrtBlockDecoder) -> None:
    for start in (0, 8):
        opened.read(HIDDEN[:8])
        opened.feed([0] * 8, start)
    opened.read(HIDDEN[:4])
    assert np.isfinite(opened.step([0, 0, 0, 9], 16)).all()
    opened.read(HIDDEN[:4])
    with refused(EngineError, 21, 20):
        opened.step([0, 0, 0, 9], 17)


def test_confidences_are_proved(made: Any, opened: OrtBlockDecoder, tmp_path: Path) -> None:
    save_reference(tmp_path / "r.npz", record_reference(made[0], CONTRACT, 24))
    reference = load_reference(tmp_path / "r.npz")

    def proofs(confidence: Callable[[], float] | None) -> list[Proof]:
        draft = OpenedDraft(opened, confidence, opened)
        return measure(draft, reference, ("onnxruntime", "ort"), "draft", "fp32")

    rows, confidences = proofs(opened.confidence)
    assert rows.passed
    assert confidences.passed
    assert confidences.rows == rows.rows > CONTRACT.max_draft_tokens
    for other in (lambda: 0.0, None):  # one that no graph writes to, and none
        assert not proofs(other)[1].passed


@pytest.mark.parametrize("ignored", [{}, dict(causal=(True, False)), dict(cap=None), dict(sinks=False)], ids=str)
def test_orders_and_caps_are_proved(ignored: dict[str, Any], tmp_path: Path) -> None:
    target = find_checkpoint(str(save_block_target(tmp_path / "target")))
    draft = save_block(tmp_path / "head", "dflash, windows", is_causal=True, final_logit_softcapping=2.0)
    sinks = {f"layers.{index}.self_attn.attention_sink_bias": torch.arange(4.0) - 2 for index in range(2)}
    save_file(tensors_of("dflash, windows") | sinks, draft / "model.safetensors")
    model: Any = find_draft(str(draft), target).load("fp32")
    save_reference(tmp_path / "r.npz", record_reference(model, CONTRACT, 24))
    model.form = replace(model.form, **ignored)
    found = decoder(exported(model, "ort", tmp_path), tmp_path)
    reference = load_reference(tmp_path / "r.npz")
    (proof,) = measure(OpenedDraft(found, reader=found), reference, ("onnxruntime", "ort"), "draft", "fp32")
    assert proof.passed is not bool(ignored)


@pytest.mark.parametrize("ignored", [False, True])
def test_windows_longer_than_the_text_are_proved(ignored: bool, tmp_path: Path) -> None:
    contract, window = Contract(capacity=100, max_draft_tokens=3, prompt_chunk=8, precision="fp32"), 70
    target = find_checkpoint(str(save_block_target(tmp_path / "target")))
    config = FORMS["dflash, windows"][1]["config"]
    layer = config["transformer_layer_config"] | {"sliding_window": window}
    draft = save_block(tmp_path / "head", "dflash, windows", transformer_layer_config=layer)
    model: Any = find_draft(str(draft), target).load("fp32")
    assert window in model.form.windows
    save_reference(tmp_path / "r.npz", record_reference(model, contract, 24))
    reference = load_reference(tmp_path / "r.npz")
    if ignored:
        model.form = replace(model.form, windows=tuple(2 * one for one in model.form.windows))
    found = decoder(exported(model, "ort", tmp_path, contract), tmp_path, contract)

    def passed(steps: list[ReferenceStep]) -> bool:
        (proof,) = measure(OpenedDraft(found, reader=found), steps, ("onnxruntime", "ort"), "draft", "fp32")
        return proof.passed

    short = [entry for entry in reference if entry.step.end <= window]
    assert reference[-1].step.end == 100
    assert passed(short)
    assert passed(reference) is not ignored
    with np.load(tmp_path / "r.npz") as stored:  # hidden states that are there already are not stored again
        assert sum(stored[name].ndim == 0 for name in stored if name.endswith("hidden")) > 3


def test_graphs_are_compared_with_the_manifest(made: Any) -> None:
    _, spec, folder = made
    spec = ModelSpec(**{**vars(spec), "vocab_size": 25})
    with refused(BundleError, "logits", 25):
        decoder(spec, folder)


def test_closing(made: Any) -> None:
    _, spec, folder = made
    draft = decoder(spec, folder)
    draft.close()
    draft.close()
    draft.read(HIDDEN[:2])
    for run in (draft.step, draft.feed):
        with refused(EngineError, "closed"):
            run([0, 9], 0)
