"""Each known trap of TensorRT, set in a graph that has none, is found and named; the exporter's graphs have none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from specexport.errors import UnsupportedModelError
from specexport.exporter.dialects import DIALECTS, Dialect
from specexport.exporter.passes.lint import lint, refuse_traps
from support.refusals import refused
from support.tiny import Exported

BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64


def path_of(exported: Exported, dialect: Dialect) -> Path:
    return exported.folder / exported.spec.graphs[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_exported_has_no_trap(dialect: Dialect, exported: Exported, narrow: Exported) -> None:
    for one in (exported, narrow):
        assert lint(path_of(one, dialect), dialect) == []


def nodes(model: ir.Model, kind: str) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == kind]


def resized(node: ir.Node, size: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * (size - len(node.inputs))]


def replaced(model: ir.Model, node: ir.Node, inputs: list[ir.Value | None], num_outputs: int = 1) -> None:
    """`node` again, with other inputs and more outputs; ir nodes have a fixed number of both."""
    other = ir.Node("", node.op_type, inputs, dict(node.attributes), num_outputs=num_outputs, name=node.name)
    for index, value in enumerate(other.outputs):
        value.name = f"{node.name}.{index}"
    model.graph.insert_after(node, other)
    node.outputs[0].replace_all_uses_with(other.outputs[0], replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def attention(change: Callable[[ir.Model, ir.Node], None]) -> Callable[[ir.Model], None]:
    """The change, in layer 1's attention."""
    return lambda model: change(model, nodes(model, "Attention")[1])


def scatter(change: Callable[[ir.Model, ir.Node], None]) -> Callable[[ir.Model], None]:
    """The change, in the write of layer 1's keys."""
    return lambda model: change(model, nodes(model, "TensorScatter")[2])


def given(model: ir.Model, name: str, dtype: ir.DataType, *shape: int | str) -> ir.Value:
    value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
    model.graph.inputs.append(value)
    return value


def set_(name: str, value: object) -> Callable[[ir.Model, ir.Node], None]:
    return lambda model, node: node.attributes.add(ir.convenience.convert_attribute(name, value))


def pad_lengths(model: ir.Model, node: ir.Node) -> None:
    replaced(model, node, [*resized(node, 6), given(model, "lengths", INT64, 1)])


def no_mask(model: ir.Model, node: ir.Node) -> None:
    node.replace_input_with(3, None)


def float_mask(model: ir.Model, node: ir.Node) -> None:
    cast = ir.node("Cast", [node.inputs[3]], {"to": int(FLOAT)})
    cast.outputs[0].dtype = FLOAT
    model.graph.insert_before(node, cast)
    node.replace_input_with(3, cast.outputs[0])


def past_input(model: ir.Model, node: ir.Node) -> None:
    replaced(model, node, [*node.inputs, given(model, "k", FLOAT, 1, 2, 4, 24), given(model, "v", FLOAT, 1, 2, 4, 24)])


def present_outputs(model: ir.Model, node: ir.Node) -> None:
    replaced(model, node, list(node.inputs), num_outputs=3)


def flat_query(model: ir.Model, node: ir.Node) -> None:
    node.inputs[0].shape = ir.Shape([1, "width", 96])


def inner_cache(model: ir.Model, node: ir.Node) -> None:
    identity = ir.node("Identity", [node.inputs[0]])
    model.graph.insert_before(node, identity)
    node.replace_input_with(0, identity.outputs[0])


def chained(model: ir.Model, node: ir.Node) -> None:
    first = ir.node("TensorScatter", list(node.inputs), {"axis": 2}, name="first")
    model.graph.insert_before(node, first)
    node.replace_input_with(0, first.outputs[0])


def two_writers(model: ir.Model, node: ir.Node) -> None:
    model.graph.insert_after(node, ir.node("TensorScatter", list(node.inputs), {"axis": 2}, name="second"))


def inner_result(model: ir.Model, node: ir.Node) -> None:
    (index,) = [index for index, value in enumerate(model.graph.outputs) if value is node.outputs[0]]
    identity = ir.node("Identity", [node.outputs[0]])
    value = identity.outputs[0]
    value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
    node.outputs[0].name, value.name = "inner", "present.1.key"
    model.graph.insert_after(node, identity)
    model.graph.outputs[index] = value


def no_result(model: ir.Model) -> None:
    outputs = model.graph.outputs
    del outputs[next(index for index, value in enumerate(outputs) if value.name.endswith("1.key"))]


def swapped(model: ir.Model) -> None:
    """present.0.key is written from past.1.key, and the other way round."""
    first, second = nodes(model, "TensorScatter")[0], nodes(model, "TensorScatter")[2]
    first.outputs[0].name, second.outputs[0].name = second.outputs[0].name, first.outputs[0].name


def other_type(model: ir.Model) -> None:
    next(value for value in model.graph.outputs if value.name.endswith("1.key")).dtype = ir.DataType.FLOAT16


def open_capacity(model: ir.Model) -> None:
    past = next(value for value in model.graph.inputs if value.name == "past.1.key")
    past.shape = ir.Shape([1, 2, "capacity", 24])


def plugin(model: ir.Model) -> None:
    nodes(model, "Sigmoid")[0].domain = "com.microsoft"


def newer(model: ir.Model) -> None:
    nodes(model, "Sigmoid")[0].op_type = "RMSNormalization"


def loops(model: ir.Model) -> None:
    nodes(model, "Sigmoid")[0].op_type = "Loop"


def newest_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 24


TRAPS: dict[str, tuple[Dialect, Callable[[ir.Model], None], str]] = {
    "lengths": (
        "onnx",
        attention(pad_lengths),
        r"Attention \S+ \(layer 1\) has nonpad_kv_seqlen, which TensorRT drops",
    ),
    "causal": ("onnx", attention(set_("is_causal", 1)), r"Attention \S+ \(layer 1\) has is_causal=1.* upper left"),
    "softcap": ("onnx", attention(set_("softcap", 2.0)), r".*\(layer 1\) has a softcap"),
    "no mask": ("onnx", attention(no_mask), r".*\(layer 1\) has no mask"),
    "float mask": ("onnx", attention(float_mask), r".*\(layer 1\) has a mask of type FLOAT; it must be boolean"),
    "past": ("onnx", attention(past_input), r".*\(layer 1\) has its own past or present"),
    "present": (
        "onnx",
        attention(present_outputs),
        r".*\(layer 1\) has its own past or present; .* one output only",
    ),
    "three dimensions": ("onnx", attention(flat_query), r".*\(layer 1\) has no dimension for its heads"),
    "packed heads": (
        "onnx",
        attention(set_("q_num_heads", 4)),
        r".*\(layer 1\) has no dimension for its heads",
    ),
    "circular": ("onnx", scatter(set_("mode", "circular")), r"TensorScatter \S+ \(layer 1\) writes circularly"),
    "other axis": ("onnx", scatter(set_("axis", 1)), r".*\(layer 1\) writes along an axis other than"),
    "no input": (
        "onnx",
        scatter(inner_cache),
        r".*\(layer 1\) writes into something that is not an input of the graph",
    ),
    "chained": ("onnx", scatter(chained), r".*\(layer 1\) writes into what another TensorScatter has written"),
    "two writers": ("onnx", scatter(two_writers), r".*\(layer 1\) is not the only one that writes into past\.1\.key"),
    "no output": ("onnx", scatter(inner_result), r".*\(layer 1\) does not pass its cache to an output"),
    "lost": ("onnx", no_result, r"past\.1\.key has no output present\.1\.key"),
    "unaliased": ("onnx", swapped, r"present\.0\.key is not past\.0\.key written in place"),
    "another type": (
        "onnx",
        other_type,
        r"present\.1\.key is FLOAT16 \[1, 2, 64, 24\] and past\.1\.key FLOAT \[1, 2, 64, 24\]",
    ),
    "open capacity": ("onnx", open_capacity, r"past\.1\.key has the shape \[1, 2, capacity, 24\]; .* fixed numbers"),
    "plugin": ("onnx", plugin, r"Sigmoid \S+ is not a standard operator"),
    "rows: newer": ("rows", newer, r"RMSNormalization \S+ is an operator that TensorRT 10\.3 lacks"),
    "rows: loops": (
        "rows",
        loops,
        r"Loop \S+ is an operator that TensorRT 10\.3 lacks, or that no CUDA graph can hold",
    ),
    "rows: plugin": ("rows", plugin, r"Sigmoid \S+ is an operator that TensorRT 10\.3 lacks"),
    "rows: opset": ("rows", newest_opset, r"the graph has opset 24; TensorRT 10\.3 reads 9 to 20"),
    "rows: lost": ("rows", no_result, r"past\.1\.key has no output new\.1\.key"),
    "rows: another type": ("rows", other_type, r"new\.1\.key is FLOAT16"),
    "rows: open capacity": ("rows", open_capacity, r"past\.1\.key has the shape \[1, 2, capacity, 24\]"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_found_and_named(trap: str, exported: Exported) -> None:
    dialect, change, message = TRAPS[trap]
    model = ir.load(path_of(exported, dialect))
    change(model)
    assert [finding for finding in lint(model, dialect) if re.match(message, finding)]
    with refused(UnsupportedModelError, "SomeForCausalLM"):
        refuse_traps(model, dialect, "SomeForCausalLM")


def test_every_finding_is_counted(exported: Exported) -> None:
    model = ir.load(path_of(exported, "onnx"))
    for node in nodes(model, "Attention"):
        no_mask(model, node)
    assert len(lint(model, "onnx")) == 2
    with refused(UnsupportedModelError, "model.layers.0.self_attn/Attention"):
        refuse_traps(model, "onnx", "x")


def test_the_onnx_dialect_is_not_for_old_versions(exported: Exported) -> None:
    findings = lint(path_of(exported, "onnx"), "rows")
    assert sum("TensorScatter" in finding and "lacks" in finding for finding in findings) == 4
    assert sum("Attention" in finding and "lacks" in finding for finding in findings) == 2
