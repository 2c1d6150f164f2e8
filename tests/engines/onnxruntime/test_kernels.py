"""What is said of the package specexport-kernels, by a package that a test makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from specexport.bundle import ModelSpec
from specexport.engines.base import Availability
from specexport.engines.onnxruntime.cpu import _dialect
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.engines.onnxruntime.kernels import OLDEST_OPERATORS, availability, library
from specexport.errors import BundleError, EngineError
from support.refusals import refused, says

VARIABLE = "SPECEXPORT_KERNELS"
# As the package of kernels/ does it: None where the variable names a set that the host lacks.
WORKS = """
import os
OPERATORS = 3
def library(): return "/there/specexport_kernels.so"
def instruction_set():
    return {"": "avx512", "avx2": "avx2"}.get(os.environ.get("SPECEXPORT_KERNELS", ""))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a package `specexport_kernels` that hides any other; it works, until a test writes another one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second version within a second is another one
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "specexport_kernels", raising=False)
    path = tmp_path / "specexport_kernels.py"
    path.write_text(WORKS, encoding="utf-8")
    yield path
    sys.modules.pop("specexport_kernels", None)


def lacks(found: Availability, *facts: object) -> None:
    assert not found.usable
    assert found.remedy
    says(f"{found.detail}; {found.remedy}", *facts)


def test_a_package_that_works(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = availability()
    assert found.usable
    says(found.detail, "avx512 ", "version 3")
    assert VARIABLE not in found.detail
    assert library() == "/there/specexport_kernels.so"
    monkeypatch.setenv(VARIABLE, "avx2")
    forced = availability()
    assert forced.usable
    says(forced.detail, "avx2 ", VARIABLE)


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specexport_kernels", None)
    lacks(availability(), "specexport-kernels", "not installed", "pip install ./kernels")
    assert library() is None


@pytest.mark.parametrize("forced", ["neon_dot", "avx3"])
def test_a_set_that_this_host_cannot_run(forced: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, forced)
    lacks(availability(), VARIABLE, repr(forced), "unset")
    assert library() is None  # else no graph could be loaded, whatever its operators


def test_older_operators_than_a_graph_asks_for(installed: Path) -> None:
    assert availability().usable
    installed.write_text(WORKS.replace("OPERATORS = 3", f"OPERATORS = {OLDEST_OPERATORS - 1}"), encoding="utf-8")
    del sys.modules["specexport_kernels"]
    lacks(availability(), f"version {OLDEST_OPERATORS - 1}", f"version {OLDEST_OPERATORS} ", "pip install ./kernels")


# A file that is no library of this processor, one that is missing, and a library without our function.
LIBRARIES = {
    "another processor": ("__file__", OSError),
    "missing": ("'/nowhere/k.so'", OSError),
    "another library": ("None", AttributeError),
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_a_library_that_cannot_be_loaded(case: str, installed: Path) -> None:
    path, error = LIBRARIES[case]
    loads = (
        f"import ctypes\nOPERATORS = {OLDEST_OPERATORS}\n"
        f"def instruction_set(): return ctypes.CDLL({path}).specexport_kernels_set()\n"
        "def library(): return '/there/specexport_kernels.so'\n"
    )
    installed.write_text(loads, encoding="utf-8")
    import specexport_kernels

    with pytest.raises(error):
        specexport_kernels.instruction_set()
    lacks(availability(), "cannot be loaded", "pip install ./kernels")
    assert library() is None


def test_what_a_host_that_cannot_run_them_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx3")
    spec = SimpleNamespace(source="tiny", graphs={"kernels": "a", "ort": "b"})
    bundle: Any = SimpleNamespace(root=tmp_path)
    assert _dialect(bundle, cast(ModelSpec, spec)) == "ort"
    del spec.graphs["ort"]
    with refused(EngineError, VARIABLE, "--portable", code="engine_unavailable"):
        _dialect(bundle, cast(ModelSpec, spec))
    del spec.graphs["kernels"]
    with refused(BundleError, "tiny"):
        _dialect(bundle, cast(ModelSpec, spec))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "one", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "a.onnx")
    assert open_graph(tmp_path / "a.onnx")({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


def test_another_module_of_that_name_is_no_package(installed: Path) -> None:
    installed.write_text("", encoding="utf-8")
    lacks(availability(), "version 0")
    assert library() is None
