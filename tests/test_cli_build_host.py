"""What `build` and `doctor` say of a host that cannot build."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from specexport.cli import doctor, main
from specexport.cli.doctor import PACKAGES

PROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text("utf-8"))["project"]


def build() -> str:
    """The one line that it ends with."""
    done = CliRunner().invoke(main, ["build", "--target", "x", "--draft", "y", "-o", "z"])
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def older_python(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(doctor, "OLDEST_PYTHON", (3, 99))
    return r"building needs Python 3\.99 or newer, this is 3\.\d+\.\d+\S*; build where there is one"


def without_docstrings(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(doctor, "NO_DOCSTRINGS", 0)
    return "building needs docstrings, .*; leave out -OO, or unset PYTHONOPTIMIZE"


def version_of(name: str, found: str) -> Callable[[pytest.MonkeyPatch], str]:
    def older_package(patch: pytest.MonkeyPatch) -> str:
        version = doctor.version
        patch.setattr(doctor, "version", lambda asked: found if asked == name else version(asked))
        return re.escape(f"building needs {name}{PACKAGES[name]} (found {found}); {doctor.EXPORTER_EXTRA}")

    return older_package


@pytest.mark.parametrize(
    "host",
    [
        older_python,
        without_docstrings,
        version_of("torch", "2.9.1+cpu"),
        version_of("torch", "3"),
        version_of("onnx-ir", "0.9"),
    ],
)
def test_doctor_and_build_say_the_same(
    host: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = host(monkeypatch)
    assert re.match(f"Error: {expected}", build())
    lines = CliRunner().invoke(main, ["doctor"]).stdout.splitlines()
    assert any(re.match(f"no   build: {expected}", line) for line in lines)


def test_a_jetson_takes_tensorrt_from_jetpack_and_bindings_for_cuda_12() -> None:
    extra = PROJECT["optional-dependencies"]["jetson"]
    assert "cuda-bindings>=12.9.1,<13" in extra
    assert not [line for line in extra if "tensorrt" in line]
