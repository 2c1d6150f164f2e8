"""The compiled rules through TensorRT-RTX: parsed and built on a machine without a GPU. Nothing is run."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from specexport.exporter import rules

trt = pytest.importorskip("tensorrt_rtx")

VOCAB = 32000
MODELS = [
    ("select_greedy", (VOCAB,)),
    ("select", (VOCAB,)),
    ("select", (128256,)),
    ("select", (300,)),  # less than a block of the cumulative sum
    ("accept_greedy", (VOCAB, 1)),
    ("accept_greedy", (VOCAB, 4)),
    ("accept", (VOCAB, 1, "token")),
    ("accept", (VOCAB, 4, "token")),
    ("accept", (VOCAB, 1, "block")),
    ("accept", (VOCAB, 4, "block")),
    ("accept", (128256, 4, "block")),
    ("adjust", (VOCAB, 1, 0)),
    ("adjust", (VOCAB, 1, 3)),
    ("adjust", (VOCAB, 5, 4)),
]


@pytest.fixture(scope="module")
def builder() -> Any:
    return trt.Builder(trt.Logger(trt.Logger.ERROR))


def parsed(builder: Any, model: onnx.ModelProto) -> tuple[Any, Any, list[str]]:
    """The network, the parser, which owns the network's constants, and its errors."""
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    done = parser.parse(model.SerializeToString())
    errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
    assert done == (not errors)
    return network, parser, errors


def ends(values: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name -> type and shape, of ONNX inputs or outputs."""
    names = {onnx.TensorProto.FLOAT: "FLOAT", onnx.TensorProto.INT64: "INT64"}
    return {
        value.name: (names[value.type.tensor_type.elem_type], tuple(size.dim_value for size in value.type.tensor_type.shape.dim))
        for value in values
    }


@pytest.mark.parametrize(("rule", "arguments"), MODELS)
def test_the_rules_parse_and_build(builder: Any, rule: str, arguments: tuple[Any, ...]) -> None:
    model = getattr(rules, rule)(*arguments)
    network, _parser, errors = parsed(builder, model)
    assert errors == []
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    assert {tensor.name: (tensor.dtype.name, tuple(tensor.shape)) for tensor in inputs} == ends(model.graph.input)
    assert {tensor.name: (tensor.dtype.name, tuple(tensor.shape)) for tensor in outputs} == ends(model.graph.output)
    # A loop would not go into a CUDA graph; an older parser makes one of CumSum.
    kinds = {network.get_layer(index).type for index in range(network.num_layers)}
    assert kinds.isdisjoint({trt.LayerType.TRIP_LIMIT, trt.LayerType.RECURRENCE, trt.LayerType.CONDITION})
    assert builder.build_serialized_network(network, builder.create_builder_config()) is not None


def test_what_it_cannot_parse_is_an_error(builder: Any) -> None:
    """TopK ends at 3840: why the rules search and do not sort."""
    topk = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        top (float[1, 32000] logits) => (float[1, 5000] values)
        <int64[1] k = {5000}> { values, places = TopK(logits, k) }"""
    )
    network, _parser, errors = parsed(builder, topk)
    assert errors or builder.build_serialized_network(network, builder.create_builder_config()) is None
