"""The house itself: what is packaged, what is imported, and what the runtime can do without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKED = (
    "torch",
    "transformers",
    "safetensors",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "jinja2",
    "llguidance",
    "click",
    "rich",
)


def test_text_is_read_and_written_in_a_named_encoding() -> None:
    """Whatever has text in it says in which encoding: the locale's would be another one on another host."""
    found = []
    outside = {"tests", "build", "dist"}
    for path in ROOT.glob("[!.]*/**/*.py"):
        if path.relative_to(ROOT).parts[0] in outside:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _opens_text(node) and "encoding" not in _keywords(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_what_benchmarks_and_examples_import_exists() -> None:
    """mypy does not read them, and most of them never run here."""
    for path in (*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specexport"):
                for name in node.names:
                    exec(f"from {node.module} import {name.name}")


def _keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords}


def _opens_text(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    text, mode = _keywords(call).get("text"), call.args[1] if len(call.args) > 1 else _keywords(call).get("mode")
    if isinstance(text, ast.Constant) and text.value is True:  # of a process
        return True
    if isinstance(call.func, ast.Name):
        return name == "open" and not (isinstance(mode, ast.Constant) and "b" in str(mode.value))
    return name in ("read_text", "write_text", "File", "TextIOWrapper")


def run_without(packages: tuple[str, ...], code: str, folder: Path) -> str:
    block = f"import sys\nfor name in {packages!r}: sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_runtime_imports_with_numpy_and_tokenizers_alone(tmp_path: Path) -> None:
    code = """
import pkgutil, importlib
import specexport, specexport.runtime, specexport.engines
for package in (specexport.runtime, specexport.engines):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(specexport.load.__module__, specexport.__version__)
"""
    module, version = run_without(BLOCKED, code, tmp_path).split()
    assert module == "specexport.runtime.load"
    assert version[0].isdigit()


def test_the_whole_loop_runs_without_torch(tmp_path: Path) -> None:
    code = f"""
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from support.doubles import FakeDecoder, fake_session
session = fake_session(Path("bundle"), FakeDecoder(), FakeDecoder(noise=0.4))
print(session.generate("Hello", max_new_tokens=9, temperature=0.5).statistics.emitted)
"""
    assert run_without(BLOCKED, code, tmp_path) == "9"


def test_loading_what_is_no_bundle_is_one_error(tmp_path: Path) -> None:
    code = """
import specexport
try:
    specexport.load("nothing.bundle")
except specexport.SpecExportError as error:
    print(type(error).__name__)
"""
    assert run_without(BLOCKED, code, tmp_path) == "BundleError"


@pytest.mark.parametrize(
    "name", ["load", "Session", "SamplingParameters", "Stream", "Generation", "Chunk", "Statistics", "SpecExportError"]
)
def test_the_public_names(name: str) -> None:
    import specexport

    assert name in specexport.__all__
    assert hasattr(specexport, name)


def test_every_error_has_the_one_root_and_stands_in_the_tree() -> None:
    from specexport import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, errors.SpecExportError) for kind in kinds)
    assert errors.__doc__ is not None
    assert all(kind.__name__ in errors.__doc__ for kind in kinds)
    assert "pip install 'specexport[chat]'" in str(errors.MissingPackageError("jinja2", "chat"))


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    from specexport.errors import BundleError, ParameterError

    assert str(BundleError("the name a\nb\x00\ud800 of 日本語")) == "the name a\\nb\\x00\\ud800 of 日本語"
    assert str(ParameterError("two\nlines")) == "two\\nlines"
    assert str(BundleError()) == ""


# What an assertion may call: an optimized Python leaves it out.
PURE = {"isinstance", "len", "all", "any", "float", "float32", "array_equal", "is_initializer", "rounded"}


def product_files() -> Iterator[Path]:
    outside = {"tests", "examples", "benchmarks", "scripts", "build", "dist", "docs", "kernels"}
    yield from (path for path in ROOT.glob("[!.]*/**/*.py") if path.relative_to(ROOT).parts[0] not in outside)
    yield from ROOT.glob("*.py")


def carries_work(node: ast.AST) -> bool:
    """Whether an assertion does something that is needed without it."""
    if isinstance(node, ast.Call):
        called = node.func
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) not in PURE
    return isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)


def test_no_assertion_carries_work() -> None:
    """`python -O` runs none of them."""
    found = [
        f"{path.relative_to(ROOT)}:{statement.lineno}"
        for path in product_files()
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(statement, ast.Assert) and any(map(carries_work, ast.walk(statement.test)))
    ]
    assert not found
