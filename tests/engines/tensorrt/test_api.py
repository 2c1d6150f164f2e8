"""The three libraries as they are found: real, missing, placeholders, two in one process; and what they say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from specexport.engines.tensorrt.api import LEAN, Library, dialect_for, library
from specexport.errors import EngineError, MissingPackageError
from support.refusals import refused

trt = pytest.importorskip("tensorrt_rtx")
NO_LIBRARY = "raise ImportError('libnvinfer.so.10: cannot open shared object file: No such file or directory')"
NO_DLL = (
    "raise FileNotFoundError('Could not find: nvinfer_10.dll. Is it on your PATH?\\nNote: Paths searched were: ...')"
)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put a package `name` in front of all others; None for a folder without one."""

    def install(name: str, code: str | None) -> None:
        (tmp_path / name).mkdir()
        if code is not None:
            (tmp_path / name / "__init__.py").write_text(code)
        importlib.invalidate_caches()

    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for name in {"tensorrt", "tensorrt_bindings"} - before:
        sys.modules.pop(name, None)


def refusal(name: str = "tensorrt") -> str:
    with pytest.raises(EngineError) as caught:
        library(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_real_one() -> None:
    found = library("tensorrt_rtx")
    assert found.trt is trt
    assert found.version == tuple(int(part) for part in trt.__version__.split("."))
    assert found.title == f"TensorRT-RTX {trt.__version__}"
    assert library("tensorrt_rtx") is found  # with the one logger that the process may have


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt_rtx", LEAN])
def test_one_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("specexport.engines.tensorrt.api._is_installed", lambda name: False)
    with refused(MissingPackageError):
        library(name)


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        (NO_LIBRARY, "libnvinfer.so.10 is missing"),
        (NO_LIBRARY.replace("nvinfer", "nvonnxparser"), "libnvonnxparser.so.10 is missing"),
        (NO_DLL, "nvinfer_10.dll is missing"),
        ("from tensorrt_bindings import *", "its module tensorrt_bindings is missing"),
        ("", "__init__.py is not the library"),
        (None, "a folder of that name is not the library"),
    ],
)
def test_a_placeholder(code: str | None, lacking: str, install: Callable[..., None]) -> None:
    install("tensorrt", code)
    message = refusal()
    assert message.startswith("tensorrt is installed as a placeholder without its libraries (")
    assert f"{lacking}); install tensorrt-cu12-libs or tensorrt-cu13-libs from NVIDIA's package index" in message


def said(lib: Library, severity: Any, message: str) -> None:
    lib.logger.log(severity, message)


def test_the_reason_is_the_first_error_in_one_line() -> None:
    lib = Library("tensorrt_rtx", trt)
    kinds = trt.ILogger.Severity
    assert lib.reason() == "it gave no reason"
    said(lib, kinds.WARNING, "a warning")
    said(lib, kinds.ERROR, "IBuilder::build: no\nkernel for it (of X. In compileGraph at /_src/codeGenerator.cpp:2012)")
    said(lib, kinds.INTERNAL_ERROR, "a consequence")
    assert lib.reason() == "IBuilder::build: no kernel for it (of X.)"
    assert lib.reason() == "it gave no reason"
    said(lib, kinds.INTERNAL_ERROR, "x" * 1000)
    assert lib.reason() == "x" * 397 + "..."
    said(lib, kinds.ERROR, "of an earlier call")
    lib.forget()
    assert lib.reason() == "it gave no reason"


@pytest.mark.parametrize(
    ("name", "version", "dialect"),
    [
        ("tensorrt", (10, 3, 0, 26), "rows"),
        ("tensorrt", (10, 3), "rows"),
        ("tensorrt", (10, 14, 9), "rows"),
        ("tensorrt", (10, 15), "onnx"),
        ("tensorrt", (11, 4, 0), "onnx"),
        ("tensorrt_rtx", (1, 4, 0, 76), "onnx"),
        ("tensorrt_rtx", (2, 0), "onnx"),
    ],
)
def test_the_dialect_for_a_version(name: str, version: tuple[int, ...], dialect: str) -> None:
    assert dialect_for(name, version) == dialect


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("tensorrt", (10, 2, 99)),
        ("tensorrt", (8, 6)),
        ("tensorrt_rtx", (1, 3, 0)),
    ],
)
def test_versions_that_are_too_old(name: str, version: tuple[int, ...]) -> None:
    with refused(EngineError, "newer"):
        dialect_for(name, version)
