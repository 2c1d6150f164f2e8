"""One model from checkpoint to graphs: what is made again, and what is refused on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from specexport.atomic import discard
from specexport.bundle import Contract, ModelSpec
from specexport.editing.progress import Timed
from specexport.errors import UnsupportedModelError
from specexport.exporter import export_model as model_module
from specexport.exporter.checkpoints.checkpoint import Checkpoint
from specexport.exporter.checkpoints.find import find_checkpoint
from specexport.exporter.dialects import Dialect
from specexport.exporter.export_model import ModelExport, export_model
from specexport.exporter.options import BuildContext, CalibrationTexts
from specexport.exporter.recipe_choice import Quantizing
from specexport.exporter.stage_cache import STAGE
from specexport.exporter.tracing import attention
from specexport.exporter.tracing.attention_ops import Layer
from specexport.exporter.weights.host_memory import move_to_disk
from specexport.exporter.weights.texts import read_texts
from support.pair import Notes
from support.refusals import refused
from support.tiny import CONTRACT, LLAMA, make_tokenizer, save_model
from torch.onnx.ops import symbolic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = save_model(tmp_path_factory.mktemp("model"), config=LLAMA | dict(num_hidden_layers=1))
    make_tokenizer().save_pretrained(folder)
    return find_checkpoint(str(folder))


def exporting(checkpoint: Checkpoint, folder: Path) -> Callable[..., tuple[ModelSpec, Notes]]:
    count = iter(range(100))

    def export(
        contract: Contract = CONTRACT, dialects: tuple[Dialect, ...] = ("onnx",), quantizing: Quantizing | None = None
    ) -> tuple[ModelSpec, Notes]:
        notes = Notes()
        place = folder / str(next(count))
        context = BuildContext(contract, place, folder / "cache", Timed(notes))
        return export_model(ModelExport(checkpoint, "draft", dialects, quantizing), context), notes

    return export


def test_weights_on_the_disk_give_the_same_bytes(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    monkeypatch.setattr(model_module, "move_to_disk", lambda model, place: kept.append(move_to_disk(model, place)))
    export, texts = exporting(checkpoint, tmp_path), CalibrationTexts(read_texts(None))
    recipe = Quantizing("int8", "onnxruntime", texts)
    _spec, notes = export(dialects=("kernels",), quantizing=recipe)
    assert not kept
    assert not notes.notes
    monkeypatch.setattr(model_module, "require_memory", lambda *_: True)
    discard(next((tmp_path / "cache").iterdir()))
    _spec, notes = export(dialects=("kernels",), quantizing=recipe)
    assert kept
    assert notes.notes == ["export draft in int8: memory is short, so the cache holds the weights meanwhile"]
    one, other = (sorted((tmp_path / place).rglob("*.*")) for place in "01")
    assert [path.name for path in one] == [path.name for path in other]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    stage = next((tmp_path / "cache").iterdir())
    assert {path.name for path in stage.iterdir()} == {STAGE, *json.loads((stage / STAGE).read_text())}


def test_a_stage_is_of_one_precision_and_of_its_dialects(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(export: ModelExport, context: BuildContext, folder: Path, *_: Any) -> None:
        names = {dialect: f"graphs/{export.role}-{dialect}.onnx" for dialect in export.dialects}
        spec = ModelSpec("", "", "", 1, 1, (), dict(names), f"graphs/{export.role}.weights", "float", (), None)
        spec = replace(spec, reference="reference/draft.npz")
        for name in (*names.values(), spec.weights, model_module.REFERENCE):
            (folder / Path(name).name).write_text(context.contract.precision)
        (folder / model_module.SPEC).write_text(json.dumps(asdict(spec)))

    monkeypatch.setattr(model_module, "_export", write)
    export = exporting(checkpoint, tmp_path)
    half, more = replace(CONTRACT, precision="fp16"), ("onnx", "rows")
    made = [export(), export(half), export(replace(CONTRACT, precision="bf16")), export(half, more)]
    again = [export(), export(half), export(replace(CONTRACT, precision="bf16")), export(half, more)]
    assert all(notes.stages and not notes.notes for _, notes in made)
    assert all(notes.notes == ["export draft: reused from an earlier build"] for _, notes in again)
    assert set(again[3][0].graphs) == set(more)
    recipes = [
        Quantizing("int8", "onnxruntime", CalibrationTexts(("a",))),
        Quantizing("int4", "onnxruntime", CalibrationTexts(("a",))),
        Quantizing("int8", "onnxruntime", CalibrationTexts(("b",))),
    ]
    quantized = [export(quantizing=recipe) for recipe in [*recipes, *recipes]]
    assert [bool(notes.stages) for _, notes in quantized] == [True] * 3 + [False] * 3
    assert [(tmp_path / f"{place}/graphs/draft.weights").read_text() for place in (4, 5, 6, 7)] == [
        "fp32",
        "fp16",
        "bf16",
        "fp16",
    ]


def test_products_in_fp16_add_up_in_fp32_on_tensorrt(checkpoint: Checkpoint, cache: Path, tmp_path: Path) -> None:
    context = BuildContext(replace(CONTRACT, precision="fp16"), tmp_path, cache, Timed(Notes()))
    spec = export_model(ModelExport(checkpoint, "draft", ("onnx", "rows")), context)
    for name in spec.graphs.values():
        graph = onnx.load(tmp_path / name, load_external_data=False).graph
        casts = {node.output[0] for node in graph.node if node.op_type == "Cast"}
        products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
        assert products
        assert all(casts.issuperset(node.input) for node in products)


def test_a_graph_that_tensorrt_would_get_wrong_is_not_made(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scatter = attention.EMITTERS["onnx"]

    def causal(query: Any, key: Any, value: Any, layer: Layer) -> Any:
        _, written = scatter(query, key, value, layer)
        attributes = dict(scale=layer.scale, is_causal=1)
        return symbolic(
            "Attention", (query, *written), attributes, dtype=query.dtype, shape=query.shape, version=24
        ), written

    monkeypatch.setitem(attention.EMITTERS, "onnx", causal)
    with refused(UnsupportedModelError, "is_causal", "model.layers.0.self_attn/Attention"):
        exporting(checkpoint, tmp_path)()
    assert not (tmp_path / "0").exists()
    assert not list((tmp_path / "cache").iterdir())
