"""Heads with sliding windows, as speculators trains them: against plain torch, over caches, and as graphs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specexport.bundle import Contract, ModelSpec, Reads
from specexport.engines.base import OpenedDraft
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.hidden_drafts.checkpoint import find_draft
from specexport.exporter.hidden_drafts.eagle3 import Eagle3Draft
from specexport.exporter.kernels.products import use_kernels
from specexport.exporter.passes.optimize import optimize, save
from specexport.exporter.proving.prove import open_decoder, record_reference
from specexport.exporter.tracing.trace import trace, trace_fuse
from specexport.exporter.tuning.heads import Head, save_head
from specexport.exporter.weights.recipe import Recipe
from specexport.runtime.proofs.parity import ReferenceStep, measure
from support.hidden_drafts import TAPS, computed, fused_by, save_speculators, save_target, tables, tensors
from support.tiny import DIALECTS, VOCAB, layers_of
from torch import Tensor
from transformers import DynamicCache

CONTRACT = Contract(capacity=100, max_draft_tokens=3, prompt_chunk=8, precision="fp32")
WINDOW = 3
IDS = torch.randint(0, VOCAB, (1, 12), generator=torch.Generator().manual_seed(2))
# Windows by layer, and what else distinguishes the tensors.
HEADS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "llama": ((WINDOW,), {}),
    "qwen3": ((WINDOW,), dict(norms_of_heads=True)),
    "llama, the second layer": ((0, WINDOW), dict(layers=2)),
    "qwen3, the first layer": ((WINDOW, 0), dict(layers=2, norms_of_heads=True)),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def layer(windows: tuple[int, ...]) -> dict[str, Any]:
    """As speculators' trainer writes it."""
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return dict(
        num_hidden_layers=len(windows),
        layer_types=kinds,
        sliding_window=max(windows) or 2048,
        use_sliding_window=any(windows),
    )


def loaded(name: str, target: Path, folder: Path, windows: tuple[int, ...] | None = None) -> Eagle3Draft:
    own, how = HEADS[name]
    save_speculators(folder, tables() | tensors(**how), layer=layer(own if windows is None else windows))
    model = find_draft(str(folder), find_checkpoint(str(target))).load("fp32")
    assert isinstance(model, Eagle3Draft)
    return model


def expected(name: str, model: Eagle3Draft) -> tuple[Tensor, Tensor]:
    """Logits and feedback of `IDS` in plain torch."""
    windows, how = HEADS[name]
    reads, weights = model.__dict__["_target"], tensors(**how)
    before = torch.cat([torch.zeros(1, 1, dtype=torch.int64), IDS[:, :-1]], 1)
    states = reads(before, output_hidden_states=True).hidden_states
    fused = fused_by(weights, [states[tap][0] for tap in TAPS])
    return computed(weights, reads.get_input_embeddings().weight, IDS[0], fused, windows=windows)


@pytest.mark.parametrize("name", HEADS)
def test_a_row_sees_its_window(name: str, target: Path, tmp_path: Path) -> None:
    model = loaded(name, target, tmp_path)
    logits, feedback = expected(name, model)
    whole = model(IDS)
    torch.testing.assert_close(whole.logits[0], logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(whole.feedback[0], feedback, atol=1e-4, rtol=1e-4)
    fused = model.fuse(model.read_target(IDS))
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        for start, end in ((0, 5), (5, 11), (11, 12)):
            rows = model(IDS[:, start:end], fused[:, start:end], past_key_values=cache).logits
            torch.testing.assert_close(rows[0], logits[start:end], atol=1e-4, rtol=1e-4)
        assert {len(one.keys[0, 0]) for one in cache.layers} == {12}  # a roll-back needs rows before the window, too


def test_full_attention_has_no_window(target: Path, tmp_path: Path) -> None:
    plain = loaded("llama", target, tmp_path, windows=(0,))
    assert plain.form.windows == ()
    assert plain.windows == (0,)


def test_a_head_that_was_trained_further_keeps_its_windows(target: Path, tmp_path: Path) -> None:
    name = "llama, the second layer"
    model = loaded(name, target, tmp_path / "head")
    save_head(Head(model, model.__dict__["_target"], "tiny/target", "", False, 1.0), tmp_path / "saved")
    again = find_draft(str(tmp_path / "saved"), find_checkpoint(str(target)))
    assert again.load("fp32").form == model.form
    written = json.loads((tmp_path / "saved" / "config.json").read_text())["transformer_layer_config"]
    assert layer(HEADS[name][0]).items() <= written.items()


def exported(model: Eagle3Draft, dialect: Dialect, folder: Path, contract: Contract = CONTRACT) -> tuple[Any, Any]:
    """The graph and its decoder."""
    layers = layers_of(model, (dialect,))
    graphs = {"model": trace(model, layers, dialect, contract), "fuse": trace_fuse(model, dialect)}
    for graph in graphs.values():
        optimize(graph, dialect)
        if dialect == "kernels":
            use_kernels(graph, Recipe({}), contract.capacity)
    paths, weights = save(graphs, folder, "draft")
    reads = Reads("eagle3", model.taps, model.config.hidden_size, {dialect: paths["fuse"]})
    sizes: Any = dict(source="", architecture="", checkpoint_sha256="", num_parameters=0)
    rest: Any = dict(weights=weights, format="float", notes=(), fidelity=None, graphs={dialect: paths["model"]})
    spec = ModelSpec(vocab_size=model.form.draft_vocab, layers=layers, reads=reads, **sizes, **rest)
    return graphs["model"], open_decoder(folder / paths["model"], spec, contract, dialect)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_graphs_have_the_window(name: str, dialect: Dialect, target: Path, tmp_path: Path) -> None:
    if dialect == "kernels":
        pytest.importorskip("specexport_kernels")
    model = loaded(name, target, tmp_path / "head")
    _, decoder = exported(model, dialect, tmp_path)
    reference = record_reference(model, CONTRACT, VOCAB)
    draft = OpenedDraft(decoder, reader=decoder.reader)
    (proof,) = measure(draft, reference, ("onnxruntime", dialect), "draft", "fp32")
    assert proof.passed


@pytest.mark.parametrize("ignored", [False, True])
def test_windows_longer_than_the_text_are_proved(ignored: bool, target: Path, tmp_path: Path) -> None:
    window = 70
    model = loaded("llama", target, tmp_path / "head", windows=(window,))
    reference = record_reference(model, CONTRACT, VOCAB)
    if ignored:
        model.windows = (0,)
    _, decoder = exported(model, "ort", tmp_path)

    def passed(steps: list[ReferenceStep]) -> bool:
        draft = OpenedDraft(decoder, reader=decoder.reader)
        (proof,) = measure(draft, steps, ("onnxruntime", "ort"), "draft", "fp32")
        return proof.passed

    assert reference[-1].step.end == CONTRACT.capacity
    assert passed([entry for entry in reference if entry.step.end <= window])
    assert passed(reference) is not ignored


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_window_as_long_as_the_cache_is_none(dialect: Dialect, target: Path, tmp_path: Path) -> None:
    short = replace(CONTRACT, capacity=20)
    found = []
    for window in (0, short.capacity, short.capacity - 1):
        model = loaded("llama", target, tmp_path / "head", windows=(window,))
        graph = trace(model, layers_of(model, (dialect,)), dialect, short).graph
        found.append([(node.op_type, sorted(node.attributes)) for node in graph])
        steps = record_reference(model, short, VOCAB)
        assert max(entry.step.end for entry in steps) <= short.capacity
    assert found[0] == found[1] != found[2]
