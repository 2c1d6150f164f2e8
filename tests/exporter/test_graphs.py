"""What is in a bundle's graphs: weights once, the operators of the dialect, the contract's names, no trace of this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from specexport.exporter.attention import DIALECTS, Dialect
from specexport.exporter.graphs import EXTERNAL_BYTES, save
from tiny import LLAMA, VOCAB, Exported, export, save_model

# Large enough that no weight counts as a small constant.
CONFIG = LLAMA | dict(hidden_size=96, intermediate_size=128, num_attention_heads=4, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    base = tmp_path_factory.mktemp("graphs")
    return export(save_model(base / "checkpoint", config=CONFIG), base / "graphs")


def load(exported: Exported, dialect: Dialect) -> onnx.ModelProto:
    return onnx.load(exported.folder / exported.spec.graphs[dialect], load_external_data=False)


def operators(model: onnx.ModelProto) -> dict[str, int]:
    names = [node.op_type for node in model.graph.node]
    return {name: names.count(name) for name in set(names)}


def test_both_dialects_share_one_copy_of_every_weight(exported: Exported) -> None:
    folder = exported.folder
    graphs = sum((folder / name).stat().st_size for name in exported.spec.graphs.values())
    weights = (folder / exported.spec.weights).stat().st_size
    assert sorted(path.name for path in folder.iterdir()) == sorted([*exported.spec.graphs.values(), exported.spec.weights])
    assert weights == pytest.approx(4 * exported.num_parameters, rel=0.02)
    assert graphs < 0.2 * weights


def test_a_tied_embedding_is_one_tensor(exported: Exported) -> None:
    for dialect in DIALECTS:
        wide = [tensor.name for tensor in load(exported, dialect).graph.initializer if VOCAB in tensor.dims]
        assert len(wide) == 1


def test_weights_keep_their_names_and_values(exported: Exported) -> None:
    from safetensors.numpy import load_file

    stored = load_file(Path(exported.spec.source) / "model.safetensors")
    for dialect in DIALECTS:
        tensors = onnx.load(exported.folder / exported.spec.graphs[dialect]).graph.initializer
        found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
        assert len(stored) == 9 * len(exported.spec.layers) + 2
        for name, value in stored.items():
            # A tied embedding has one of its two names.
            np.testing.assert_array_equal(found["model.lm_head.weight" if "embed_tokens" in name else f"model.{name}"], value)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_inputs_and_outputs_are_the_contracts(dialect: Dialect, exported: Exported) -> None:
    graph, layers = load(exported, dialect).graph, range(len(exported.spec.layers))
    past, present = ([f"{side}.{i}.{half}" for i in layers for half in ("key", "value")] for side in ("past", "present"))
    assert [value.name for value in graph.input] == ["tokens", "position", *past]
    assert [value.name for value in graph.output] == ["logits", *present]


def test_the_ort_dialect_uses_the_fused_operators(exported: Exported) -> None:
    found, layers = operators(load(exported, "ort")), len(exported.spec.layers)
    assert found["GroupQueryAttention"] == layers
    assert found["FusedMatMul"] == 7 * layers + 1
    assert "MatMul" not in found
    assert found["SkipSimplifiedLayerNormalization"] >= layers
    assert not {"TensorScatter", "Attention"} & set(found)


def test_the_onnx_dialect_uses_standard_operators_only(exported: Exported) -> None:
    model, layers = load(exported, "onnx"), len(exported.spec.layers)
    found = operators(model)
    assert found["TensorScatter"] == 2 * layers
    assert found["Attention"] == layers
    assert {node.domain for node in model.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in model.opset_import if not entry.domain] == [("", 24)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_graph_tells_about_this_machine(dialect: Dialect, exported: Exported) -> None:
    content = (exported.folder / exported.spec.graphs[dialect]).read_bytes()
    assert not [word for word in (b"/tmp", b"site-packages", b"/home", b".py", str(Path.cwd()).encode()) if word in content]


def model_with(name: str, value: np.ndarray) -> ir.Model:
    given = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(value.shape))
    constant = ir.Value(name=name, const_value=ir.Tensor(value, name=name))
    node = ir.node("Add", [given, constant])
    node.outputs[0].name = "y"
    graph = ir.Graph([given], node.outputs, nodes=[node], initializers=[constant], opset_imports={"": 24})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("shapes", [(512, 512), (512, 600)])
def test_one_name_with_two_contents_is_two_tensors(shapes: tuple[int, int], tmp_path: Path) -> None:
    """Tracing numbers its constants, so `val_7` may be one thing in one graph and another in the other."""
    values = [np.full(size, fill, np.float32) for size, fill in zip(shapes, (1, 2), strict=True)]
    assert all(value.nbytes >= EXTERNAL_BYTES for value in values)
    graphs, _ = save(dict(zip(DIALECTS, (model_with("val_7", value) for value in values), strict=True)), tmp_path, "m")
    for dialect, value in zip(DIALECTS, values, strict=True):
        (tensor,) = onnx.load(tmp_path / graphs[dialect]).graph.initializer
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), value)


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    _, weights = save({dialect: model_with("val_7", np.ones(512, np.float32)) for dialect in DIALECTS}, tmp_path, "m")
    assert (tmp_path / weights).stat().st_size == 4 * 512
