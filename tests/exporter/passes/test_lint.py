"""Each known trap of TensorRT, set in a graph that has none, is found and named; the exporter's graphs have none."""

from __future__ import annotations

import re
from collections.abc import Callable

import onnx_ir as ir
import pytest
from specexport.errors import UnsupportedModelError
from specexport.exporter.dialects import Dialect
from specexport.exporter.passes.lint import lint, refuse_traps
from support.refusals import refused
from support.tiny import AS_STORED, Exported

pytestmark = pytest.mark.slow


def load(exported: Exported, dialect: Dialect) -> ir.Model:
    return ir.load(exported.folder / exported.spec.graphs[dialect])


@pytest.mark.parametrize("dialect", AS_STORED)
def test_what_is_exported_has_no_trap(dialect: Dialect, exported: Exported, narrow: Exported) -> None:
    for one in (exported, narrow):
        assert lint(load(one, dialect), dialect) == []


def node(model: ir.Model, kind: str, place: int = 0) -> ir.Node:
    return [node for node in model.graph if node.op_type == kind][place]


def causal(model: ir.Model) -> None:
    node(model, "Attention").attributes.add(ir.AttrInt64("is_causal", 1))


def no_mask(model: ir.Model) -> None:
    for each in (node(model, "Attention", place) for place in (0, 1)):
        each.replace_input_with(3, None)


def float_mask(model: ir.Model) -> None:
    attention = node(model, "Attention")
    cast = ir.node("Cast", [attention.inputs[3]], {"to": int(ir.DataType.FLOAT)})
    cast.outputs[0].dtype = ir.DataType.FLOAT
    model.graph.insert_before(attention, cast)
    attention.replace_input_with(3, cast.outputs[0])


def lengths(model: ir.Model) -> None:
    attention = node(model, "Attention")
    inputs = [*attention.inputs, None, None, model.graph.inputs[1]]
    other = ir.node("Attention", inputs, dict(attention.attributes), name=attention.name)
    model.graph.insert_after(attention, other)
    attention.outputs[0].replace_all_uses_with(other.outputs[0])
    model.graph.remove(attention, safe=True)


def inner_cache(model: ir.Model) -> None:
    scatter = node(model, "TensorScatter")
    identity = ir.node("Identity", [scatter.inputs[0]])
    model.graph.insert_before(scatter, identity)
    scatter.replace_input_with(0, identity.outputs[0])


def swapped(model: ir.Model) -> None:
    """present.0.key is written from past.1.key, and the other way round."""
    first, second = (node(model, "TensorScatter", place).outputs[0] for place in (0, 2))
    first.name, second.name = second.name, first.name


def plugin(model: ir.Model) -> None:
    node(model, "Sigmoid").domain = "com.microsoft"


def newer(model: ir.Model) -> None:
    node(model, "Sigmoid").op_type = "RMSNormalization"


def newest_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 24


TRAPS: dict[str, tuple[Dialect, Callable[[ir.Model], None], str]] = {
    "causal": ("onnx", causal, r"Attention model\.layers\.0\S+ has is_causal=1"),
    "no mask": ("onnx", no_mask, r"Attention \S+ has no mask"),
    "float mask": ("onnx", float_mask, r"Attention \S+ has a mask of type FLOAT; it must be boolean"),
    "lengths": ("onnx", lengths, r"Attention \S+ has its own past or lengths"),
    "no input": ("onnx", inner_cache, r"TensorScatter \S+ does not write an input into its output"),
    "unaliased": ("onnx", swapped, r"TensorScatter \S+ does not write an input into its output"),
    "plugin": ("onnx", plugin, r"Sigmoid \S+ is not a standard operator"),
    "rows: newer": ("rows", newer, r"RMSNormalization \S+ is an operator that TensorRT 10\.3 lacks"),
    "rows: plugin": ("rows", plugin, r"Sigmoid \S+ is an operator that TensorRT 10\.3 lacks"),
    "rows: opset": ("rows", newest_opset, r"the graph has opset 24; TensorRT 10\.3 reads 9 to 20"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_found_and_named(trap: str, exported: Exported) -> None:
    dialect, change, message = TRAPS[trap]
    model = load(exported, dialect)
    change(model)
    findings = lint(model, dialect)
    assert [finding for finding in findings if re.match(message, finding)]
    assert len(findings) == (2 if trap in ("no mask", "unaliased") else 1)
    with refused(UnsupportedModelError, "SomeForCausalLM"):
        refuse_traps(model, dialect, "SomeForCausalLM")


def test_the_onnx_dialect_is_not_for_old_versions(exported: Exported) -> None:
    findings = lint(load(exported, "onnx"), "rows")
    assert sum("TensorScatter" in finding and "lacks" in finding for finding in findings) == 4
    assert sum("Attention" in finding and "lacks" in finding for finding in findings) == 2
