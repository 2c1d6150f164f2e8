"""What the code asks of TensorRT's versions, compared with what these have (`scripts/tensorrt_versions.py`)."""

from __future__ import annotations

import ast
import json
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest
import specexport.engines.tensorrt
from specexport.engines.catalogue import version_numbers
from specexport.engines.tensorrt.api import SINCE, Library, dialect_for, refuse_newer
from specexport.engines.tensorrt.network_checks import WAITING
from specexport.errors import EngineError
from specexport.exporter.passes.lint import OLD_OPERATORS
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT
from support.fake_tensorrt_types import SINCE_10_15
from support.refusals import refused

TABLE = json.loads((Path(__file__).parents[2] / "support/tensorrt_versions.json").read_text(encoding="utf-8"))
NAMES = {name: version for version, names in TABLE["names"].items() for name in names.split()}
OPERATORS = {name: version for version, names in TABLE["operators"].items() for name in names.split()}
WAITS = set(TABLE["waiting"].split())
# Names of later versions that are used unasked, and why that does no harm.
WITHIN = {
    "IAttentionInputLayer": "of layers that only these versions make",
    "create_runtime_config": "TensorRT-RTX's alone",
    "set_execution_context_allocation_strategy": "TensorRT-RTX's alone",
}


def test_every_name_is_in_all_versions_or_asked_for() -> None:
    used: dict[str, str] = {}
    asked: set[str] = set()
    for file in Path(specexport.engines.tensorrt.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used[node.attr] = file.name
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                asked |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
    assert "deserialize_cuda_engine" in used
    assert {"get_aliased_input_tensor", "key_value_lengths"} <= asked & set(NAMES)
    assert {name: (used[name], NAMES[name]) for name in set(used) & set(NAMES) - set(WITHIN)} == {}
    assert set(WITHIN) <= set(used)


def test_the_operators_of_old_versions_are_read_without_loops() -> None:
    assert {name for name in OLD_OPERATORS if OPERATORS.get(name) != "10.3" or name in WAITS} == set()
    assert {"LOOP_OUTPUT", "CONDITION", "NON_ZERO"} <= set(WAITING)  # what those that wait are made of


def test_the_dialect_with_caches_in_place_begins_with_what_it_needs() -> None:
    first = version_numbers(OPERATORS["TensorScatter"])
    assert first == version_numbers(NAMES["KV_CACHE_UPDATE"]) > version_numbers(OPERATORS["Attention"])
    assert (dialect_for("tensorrt", first), dialect_for("tensorrt", (10, first[1] - 1))) == ("onnx", "rows")
    assert {name for name in SINCE_10_15 if NAMES.get(name) != OPERATORS["TensorScatter"]} == set()


AUDIO = {"BlackmanWindow", "HammingWindow", "HannWindow", "STFT"}


def test_the_rows_that_ship_are_those_of_the_table() -> None:
    first = {name: version_numbers(version) for name, version in OPERATORS.items() if version != "10.3"}
    loops = {"CumSum": version_numbers(NAMES["ICumulativeLayer"])}
    assert loops | {name: version for name, version in first.items() if name not in AUDIO} == SINCE


@pytest.mark.parametrize(
    ("version", "operator", "wrong"),
    [
        (
            "10.7.0",
            "CumSum",
            "10.8 can; install that or a newer one, or build the bundle again",
        ),
        ("10.8.0", "CumSum", None),
        ("10.16.1", "Swish", "TensorRT 10.16.1 cannot compile and 11.0 can; install that or a newer one"),
        ("11.0.0", "Swish", None),
    ],
)
def test_what_an_older_version_lacks_is_said_before_it_builds(
    version: str, operator: str, wrong: str | None, tmp_path: Path
) -> None:
    text = '<ir_version: 8, opset_import: ["": 24]> g (float[4] x, int64 i) => (float[4] y) { CumSum = Neg (x) y = OP }'
    inputs = "(CumSum, i)" if operator == "CumSum" else "(CumSum)"  # the name of a value is no operator
    onnx.save(onnx.parser.parse_model(text.replace("OP", operator + inputs)), tmp_path / "rule.onnx")
    lib = Library("tensorrt", FakeTensorRT(FakeDevice(), version))
    with refused(EngineError, "rule.onnx", operator, wrong) if wrong else nullcontext():
        refuse_newer(lib, tmp_path / "rule.onnx")


@pytest.mark.slow
def test_the_operators_of_graphs_are_known_where_they_are_compiled(compilable: Path) -> None:
    models = [path for path in (compilable / "graphs").glob("*onnx.onnx") if "-onnx" in path.name]
    assert len(models) == 2
    for path in models:
        kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        newer = {
            kind for kind in kinds if version_numbers(OPERATORS[kind]) > version_numbers(OPERATORS["TensorScatter"])
        }
        assert (newer, kinds & WAITS) == (set(), set())
