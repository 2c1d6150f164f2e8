"""What keeps a graph whole in a CUDA graph: lengths, splits, and counts of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde
from specexport.bundle import Role
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.cuda_graphs import keep_counts_on_host, keep_lengths_on_device, narrow_splits
from support.placement import copies
from support.tiny import LLAMA, export_cached, save_model

CAPACITY, WIDTH, VOCAB = 16, 8, 32
RNG = np.random.default_rng(0)
CACHE = (1, 1, CAPACITY, WIDTH)
TABLE = RNG.normal(size=(VOCAB, WIDTH)).astype(np.float32)


def traced(layers: int = 2) -> onnx.ModelProto:
    """A graph with lengths as `group_query_attention` traces them, and another use of the position."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "tokens"], ["hidden.0"]),
        node("Shape", ["tokens"], ["width"], start=1, end=2),
        node("Squeeze", ["width"], ["length"]),
        node("Sub", ["length", "one"], ["before"]),
        node("Cast", ["before"], ["before32"], to=TensorProto.INT32),
        node("Cast", ["position"], ["position32"], to=TensorProto.INT32),
        node("Add", ["position32", "before32"], ["last"]),
        node("Add", ["last", "one32"], ["total"]),
        node("Gather", ["total", "zero"], ["total_scalar"]),
        node("Range", ["zero", "length", "one"], ["rows"]),
        node("Add", ["position", "rows"], ["places"]),
    ]
    for layer in range(layers):
        hidden, past = f"hidden.{layer}", [f"past.{layer}.key", f"past.{layer}.value"]
        outputs = [f"hidden.{layer + 1}", f"present.{layer}.key", f"present.{layer}.value"]
        inputs = [hidden, hidden, hidden, *past, "last", "total_scalar"]
        nodes.append(node("GroupQueryAttention", inputs, outputs, domain="com.microsoft", num_heads=1, kv_num_heads=1))
    caches = [
        f"{side}.{layer}.{half}" for side in ("past", "present") for layer in range(layers) for half in ("key", "value")
    ]
    value = helper.make_tensor_value_info
    pasts = [value(name, TensorProto.FLOAT, CACHE) for name in caches if name.startswith("past")]
    presents = [value(name, TensorProto.FLOAT, CACHE) for name in caches if name.startswith("present")]
    constants = dict(one=np.array(1), zero=np.array(0), one32=np.array(1, np.int32), table=TABLE)
    graph = helper.make_graph(
        nodes,
        "traced",
        [value("tokens", TensorProto.INT64, [1, "T"]), value("position", TensorProto.INT64, [1]), *pasts],
        [
            value(f"hidden.{layers}", TensorProto.FLOAT, [1, "T", WIDTH]),
            value("places", TensorProto.INT64, ["T"]),
            *presents,
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )


def converted(proto: onnx.ModelProto) -> ir.Model:
    model = serde.deserialize_model(proto)
    assert keep_lengths_on_device(model) == len(attention(model))
    return model


def attention(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "GroupQueryAttention"]


def test_nothing_is_copied_between_host_and_device() -> None:
    assert copies(converted(traced())) == []


def test_the_lengths_are_the_capacity_and_the_place_of_the_last_token() -> None:
    model = converted(traced())
    for node in attention(model):
        total, seqlens_k = node.inputs[6], node.inputs[5]
        assert total is not None
        assert total.const_value is not None
        assert (total.const_value.numpy().tolist(), total.dtype, total.const_value.shape) == (
            CAPACITY,
            ir.DataType.INT32,
            [],
        )
        assert seqlens_k is attention(model)[0].inputs[5]


def run(proto: onnx.ModelProto, tokens: list[int], position: int, past: dict[str, np.ndarray]) -> list[Any]:
    feeds = dict(tokens=np.array([tokens]), position=np.array([position]), **past)
    return list(open_session(proto.SerializeToString(), 0).run(None, feeds))  # type: ignore[arg-type]


@pytest.mark.parametrize(("position", "count"), [(0, 1), (0, 5), (7, 1), (7, 4), (11, 5), (15, 1), (0, CAPACITY)])
def test_results_are_bit_identical_up_to_the_last_row(position: int, count: int) -> None:
    past = {
        f"past.{layer}.{half}": RNG.normal(size=CACHE).astype(np.float32)
        for layer in range(2)
        for half in ("key", "value")
    }
    for cache in past.values():
        cache[:, :, position:] = 1e4  # stale rows
    tokens = RNG.integers(0, VOCAB, count).tolist()
    before, after = traced(), serde.serialize_model(converted(traced()))
    for ours, theirs in zip(run(after, tokens, position, past), run(before, tokens, position, past), strict=True):
        np.testing.assert_array_equal(ours, theirs)


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "a sliding window": ("mistral", LLAMA | dict(sliding_window=8)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "role"), [("llama", "draft"), ("a sliding window", "target")])
def test_graphs_as_exported(family: str, role: Role, tmp_path: Path) -> None:
    model_type, config = FAMILIES[family]
    exported = export_cached(
        save_model(tmp_path / "checkpoint", model_type, config=config), tmp_path, ("ort",), role=role
    )
    path = tmp_path / exported.spec.graphs["ort"]
    model = ir.load(path)
    keep_lengths_on_device(model)
    ir.save(model, path)
    assert copies(model) == []
    assert exported.error("ort") < 1e-4


def model(sizes: list[int], **how: Any) -> onnx.ModelProto:
    """A split, whose parts are outputs of the graph or read by it."""
    parts = [f"part.{index}" for index in range(len(sizes))]
    inputs = ["x"] if "num_outputs" in how else ["x", "sizes"]
    nodes = [helper.make_node("Split", inputs, parts, axis=2, **how)]
    nodes += [helper.make_node("Neg", [part], [f"minus.{part}"]) for part in parts[1:]]
    outputs = [parts[0], *(f"minus.{part}" for part in parts[1:])]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "T", sum(sizes)])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [] if "num_outputs" in how else [numpy_helper.from_array(np.array(sizes), "sizes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cut(proto: onnx.ModelProto) -> tuple[bool, onnx.ModelProto]:
    intermediate = serde.deserialize_model(proto)
    return narrow_splits(intermediate), serde.serialize_model(intermediate)


def splits(proto: onnx.ModelProto) -> list[int]:
    return [len(node.output) for node in proto.graph.node if node.op_type == "Split"]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [([3, 1, 4, 1, 5], [4, 2]), ([3, 1, 4, 1, 5, 9], [4, 3]), ([2, 7, 1, 8, 2, 8, 1, 8, 2], [4, 4, 3])],
)
def test_more_than_four_parts_are_cut_in_several(sizes: list[int], parts: list[int]) -> None:
    before = model(sizes)
    changed, after = cut(before)
    assert changed
    assert splits(after) == parts
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    x = np.arange(3 * sum(sizes), dtype=np.float32).reshape(1, 3, -1)
    found, expected = (open_session(proto.SerializeToString(), 0).run(None, {"x": x}) for proto in (after, before))
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "proto",
    [model([3, 1, 4, 1]), model([2, 2, 2, 2, 2, 2]), model([2] * 5, num_outputs=5)],
    ids=["four", "of one size", "of one size by number"],
)
def test_what_cuda_graphs_hold_stays(proto: onnx.ModelProto) -> None:
    changed, after = cut(proto)
    assert not changed
    assert splits(after) == splits(proto)


ROWS = np.arange(24, dtype=np.float32).reshape(1, 8, 3)


def counting(counts: tuple[str, ...] = ("pending", "certain")) -> onnx.ModelProto:
    """A graph that cuts rows by counts, by sums of them, and by sums of them and the width."""
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Shape", ["tokens"], ["width"], start=1, end=2),
        node("Add", [counts[0], "two"], ["behind"]),
        node("Slice", ["rows", "zero", "behind", "one"], ["before"]),
        node("Slice", ["rows", counts[-1], "behind", "one"], ["between"]),
        node("Add", [counts[-1], "eight"], ["more"]),
        node("Sub", ["more", "width"], ["less"]),
        node("Concat", ["zero", "zero", "zero", "zero", "less", "zero"], ["order"], axis=0),
        node("Pad", ["before", "order"], ["padded"]),
    ]
    constants = {"zero": 0, "one": 1, "two": 2, "eight": 8}
    graph = helper.make_graph(
        nodes,
        "traced",
        [
            value("tokens", TensorProto.INT64, [1, "T"]),
            *(value(name, TensorProto.INT64, [1]) for name in counts),
            value("rows", TensorProto.FLOAT, [1, 8, 3]),
        ],
        [value("between", TensorProto.FLOAT, None), value("padded", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([number]), name) for name, number in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def counts_held(proto: onnx.ModelProto) -> tuple[bool, onnx.ModelProto]:
    model = serde.deserialize_model(proto)
    return keep_counts_on_host(model), serde.serialize_model(model)


def test_counts_are_not_copied_between_host_and_device() -> None:
    changed, proto = counts_held(counting())
    assert changed
    assert copies(serde.deserialize_model(proto)) == []


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(("pending", "certain"), [(0, 0), (1, 0), (3, 1), (5, 4)])
def test_results_with_counts_stay_bit_for_bit(width: int, pending: int, certain: int) -> None:
    feeds = dict(tokens=np.zeros((1, width), np.int64), rows=ROWS)
    feeds |= dict(pending=np.array([pending]), certain=np.array([certain]))
    before, after = (
        open_session(proto.SerializeToString(), 0).run(None, feeds)  # type: ignore[arg-type]
        for proto in (counting(), counts_held(counting())[1])
    )
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
