"""A bundle's graphs: weights once, the dialect's operators, the contract's names, nothing of this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from specexport.exporter.dialects import Dialect
from specexport.exporter.passes.lint import lint
from support.tiny import AS_STORED, Exported


def load(exported: Exported, dialect: Dialect) -> onnx.ModelProto:
    return onnx.load(exported.folder / exported.spec.graphs[dialect], load_external_data=False)


ALL = pytest.mark.parametrize("dialect", AS_STORED)


def operators(model: onnx.ModelProto) -> dict[str, int]:
    names = [node.op_type for node in model.graph.node]
    return {name: names.count(name) for name in set(names)}


def test_the_dialects_share_one_copy_of_every_weight(exported: Exported) -> None:
    folder = exported.folder
    graphs = sum((folder / name).stat().st_size for name in exported.spec.graphs.values())
    weights = (folder / exported.spec.weights).stat().st_size
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*exported.spec.graphs.values(), exported.spec.weights]
    )
    assert weights == pytest.approx(4 * exported.num_parameters, rel=0.02)
    assert graphs < 0.3 * weights


def test_weights_keep_their_names_and_values(exported: Exported) -> None:
    from safetensors.numpy import load_file

    stored = load_file(Path(exported.spec.source) / "model.safetensors")
    for dialect in AS_STORED:
        tensors = onnx.load(exported.folder / exported.spec.graphs[dialect]).graph.initializer
        found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
        assert len(stored) == 9 * len(exported.spec.layers) + 2
        for name, value in stored.items():
            # A tied embedding has one of its two names.
            np.testing.assert_array_equal(
                found["model.lm_head.weight" if "embed_tokens" in name else f"model.{name}"], value
            )


@ALL
def test_inputs_and_outputs_are_the_contracts(dialect: Dialect, exported: Exported) -> None:
    graph, layers = load(exported, dialect).graph, range(len(exported.spec.layers))
    written = "new" if dialect == "rows" else "present"
    past, after = ([f"{side}.{i}.{half}" for i in layers for half in ("key", "value")] for side in ("past", written))
    columns = [] if dialect == "ort" else ["columns"]
    assert [value.name for value in graph.input] == ["tokens", "position", *columns, *past]
    assert [value.name for value in graph.output] == ["logits", *after]


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


def test_the_onnx_dialect_attends_to_as_much_of_the_written_cache_as_there_are_columns(exported: Exported) -> None:
    nodes = load(exported, "onnx").graph.node
    producer = {name: node for node in nodes for name in node.output}
    sizes = set()
    for attention in (node for node in nodes if node.op_type == "Attention"):
        for slice_, half in zip((producer[name] for name in attention.input[1:3]), ("key", "value"), strict=True):
            assert (slice_.op_type, producer[slice_.input[0]].op_type) == ("Slice", "TensorScatter")
            assert slice_.input[0].endswith(half)
            sizes.add(slice_.input[2])
    (size,) = sizes
    while producer[size].op_type != "Shape":  # on its way from a number to a list of one
        size = producer[size].input[0]
    assert producer[size].input[0] == "columns"


def test_the_rows_dialect_uses_what_old_parsers_read(exported: Exported) -> None:
    model, layers = load(exported, "rows"), len(exported.spec.layers)
    found = operators(model)
    assert lint(ir.load(exported.folder / exported.spec.graphs["rows"]), "rows") == []
    assert {node.domain for node in model.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert model.ir_version == 8
    assert found["Softmax"] == layers
    assert found["MatMul"] == (7 + 4) * layers + 1  # scores and values, of the cache and of the new rows


@ALL
def test_half_precision_is_in_weights_and_caches_and_not_in_logits(dialect: Dialect, narrow: Exported) -> None:
    model = load(narrow, dialect)
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert types.pop("logits") == onnx.TensorProto.FLOAT
    assert {types.pop(name, onnx.TensorProto.INT64) for name in ("tokens", "position", "columns")} == {
        onnx.TensorProto.INT64
    }
    assert set(types.values()) == {onnx.TensorProto.BFLOAT16}
    assert {tensor.data_type for tensor in model.graph.initializer if tensor.data_location} == {
        onnx.TensorProto.BFLOAT16
    }
    assert (narrow.folder / narrow.spec.weights).stat().st_size == pytest.approx(2 * narrow.num_parameters, rel=0.02)


@ALL
def test_no_graph_tells_about_this_machine(dialect: Dialect, exported: Exported) -> None:
    content = (exported.folder / exported.spec.graphs[dialect]).read_bytes()
    assert not [
        word for word in (b"/tmp", b"site-packages", b"/home", b".py", str(Path.cwd()).encode()) if word in content
    ]


@ALL
def test_nodes_are_named_after_the_modules_of_the_checkpoint(exported: Exported, dialect: Dialect) -> None:
    nodes = {node.name: node for node in load(exported, dialect).graph.node}
    assert len(nodes) == len(load(exported, dialect).graph.node)
    for module in (
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.down_proj",
        "model.layers.0.self_attn.o_proj",
    ):
        [name] = [name for name in nodes if name.startswith(f"{module}/") and "MatMul" in name]
        read = {value for node in nodes.values() if node.name.startswith(f"{module}/") for value in node.input}
        assert any(f"{module}.weight" in value for value in read), name
    assert not any("." in name and "/" not in name for name in nodes)
