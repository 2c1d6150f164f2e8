from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.cuda_graphs import keep_counts_on_host
from support.placement import copies

ROWS = np.arange(24, dtype=np.float32).reshape(1, 8, 3)


def traced(counts: tuple[str, ...] = ("pending", "certain")) -> onnx.ModelProto:
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


def converted(proto: onnx.ModelProto) -> tuple[bool, onnx.ModelProto]:
    model = serde.deserialize_model(proto)
    return keep_counts_on_host(model), serde.serialize_model(model)


def test_nothing_is_copied_between_host_and_device() -> None:
    changed, proto = converted(traced())
    assert changed
    assert copies(serde.deserialize_model(proto)) == []


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(("pending", "certain"), [(0, 0), (1, 0), (3, 1), (5, 4)])
def test_results_stay_bit_for_bit(width: int, pending: int, certain: int) -> None:
    feeds = dict(tokens=np.zeros((1, width), np.int64), rows=ROWS)
    feeds |= dict(pending=np.array([pending]), certain=np.array([certain]))
    before, after = (
        open_session(proto.SerializeToString(), 0).run(None, feeds)  # type: ignore[arg-type]
        for proto in (traced(), converted(traced())[1])
    )
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
