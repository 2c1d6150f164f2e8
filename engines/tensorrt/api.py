"""TensorRT, TensorRT-RTX and TensorRT's lean runtime: one Python API under three names, all usable in one process.

Polygraphy is not used: an environment variable selects one of them at import, for the whole process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Literal

from ...bundle import Bundle, Plan
from ...errors import EngineError, MissingPackageError, reason_of
from ..base import Availability
from ..catalogue import dotted, version_numbers
from ..cuda.driver import FROM_JETPACK, Gpu, find_gpu, missing_package, on_jetson

# Runs version-compatible plans instead of `tensorrt`.
LEAN = "tensorrt_lean"
TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX", LEAN: "TensorRT's lean runtime"}

INSTALL = {
    "tensorrt": "install tensorrt-cu12-libs or tensorrt-cu13-libs from NVIDIA's package index, "
    "or TensorRT's system packages",
    "tensorrt_rtx": "install it again: pip install --force-reinstall tensorrt-rtx",
    LEAN: "install it again: pip install --force-reinstall tensorrt-lean",
}
MESSAGE_LENGTH = 400
# The first TensorRT that compiles an operator, where that is later than 10.3: the rows that decide, of a table that
# scripts/tensorrt_versions.py makes. Before 10.8, CumSum is a loop, which no CUDA graph holds.
SINCE = {
    "CumSum": (10, 8),
    "Attention": (10, 14),
    "RMSNormalization": (10, 15),
    "RotaryEmbedding": (10, 15),
    "TensorScatter": (10, 15),
    "Swish": (11, 0),
}


class Library:
    """A TensorRT module with its logger. trt: the module. version: e.g. `(10, 3, 0)`. errors: one line for each that it
    has logged.
    """

    def __init__(self, name: str, trt: Any) -> None:
        self.name, self.trt = name, trt
        self.version = version_numbers(trt.__version__)
        self.errors: list[str] = []
        self.logger = _logger(trt, self.errors)

    @property
    def title(self) -> str:
        return f"{TITLES[self.name]} {self.trt.__version__}"

    def forget(self) -> None:
        """Drop the errors logged so far; call it before what may fail, so that `reason` returns no older error."""
        self.errors.clear()

    def reason(self) -> str:
        """The first error since `forget` or the last call, in one line: the later ones are consequences of it."""
        first = self.errors[0] if self.errors else "it gave no reason"
        self.forget()
        return first


def library(name: str) -> Library:
    """Import `tensorrt`, `tensorrt_rtx` or `tensorrt_lean`.

    Returns the same object each time, because a library keeps one logger per process.

    Raises `MissingPackageError` if it is not installed, and `EngineError` if it cannot be used: bindings without their
    libraries (which the package index installs if NVIDIA's own index cannot be reached), or libraries that cannot be
    loaded.
    """
    return _library(name, _import(name))


@cache
def _library(name: str, trt: Any) -> Library:
    return Library(name, trt)


def _import(name: str) -> Any:
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name and not _is_installed(name):
            raise missing_package(name, name.replace("_", "-")) from None
        raise _placeholder(name, f"its module {error.name} is missing") from None
    except (ImportError, OSError) as error:
        reason = reason_of(error)
        lacking = re.search(r"(lib)?(nvinfer|nvonnxparser|tensorrt)[\w.]*", reason)
        if lacking and ("No such file" in reason or "Could not find" in reason):
            raise _placeholder(name, f"{lacking[0].rstrip('.')} is missing") from None
        raise EngineError(f"{name} is installed, but cannot be imported: {reason}; install it again") from None
    if not hasattr(module, "Runtime"):
        raise _placeholder(name, f"{getattr(module, '__file__', None) or 'a folder of that name'} is not the library")
    return module


def _placeholder(name: str, lacking: str) -> EngineError:
    remedy = f"uninstall it; {FROM_JETPACK}" if on_jetson() and name != "tensorrt_rtx" else INSTALL[name]
    return EngineError(f"{name} is installed as a placeholder without its libraries ({lacking}); {remedy}")


def _is_installed(name: str) -> bool:
    try:
        return bool(installed_version(name))
    except PackageNotFoundError:
        return False


def _logger(trt: Any, errors: list[str]) -> Any:
    serious = (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in serious:
                errors.append(_one_line(message))

    return Logger()


def _one_line(message: str) -> str:
    """A logged message in one line, without the position in the library's sources."""
    text = re.sub(r" In \w+ at /[^\s)]+", "", " ".join(message.split()))
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 3] + "..."


def found(find: Callable[[], str]) -> Availability:
    """Usable, with the text that `find` returns, or not, with its error, split into `what is lacking; what to do`."""
    try:
        return Availability(True, find())
    except EngineError as error:
        detail, _, remedy = str(error).partition("; ")
        return Availability(False, detail, remedy)


def host_of(find_library: Callable[[], Library]) -> tuple[Gpu, Library, str]:
    """The first GPU, a library that is new enough, and both in a line. Without the CUDA bindings, the error is that of
    the library if it is missing too: the extra that installs it brings both.
    """
    try:
        gpu = find_gpu()
    except MissingPackageError:
        find_library()
        raise
    lib = find_library()
    dialect_for(lib.name, lib.version)  # raises if it is too old
    return gpu, lib, f"{lib.title}, {gpu.name} ({dotted(gpu.compute_capability)}), driver for CUDA {gpu.driver}"


def dialect_for(name: str, version: tuple[int, ...]) -> Literal["onnx", "rows"]:
    """The dialect of model graphs that this version of a library compiles.

    TensorRT has in-place caches (KVCacheUpdate, ONNX TensorScatter) from 10.15 on, TensorRT-RTX from 1.4 on.
    Raises `EngineError` if the version is too old.
    """
    oldest = (1, 4) if name == "tensorrt_rtx" else (10, 3)
    if version < oldest:
        raise EngineError(f"{TITLES[name]} {dotted(version)} is too old; {dotted(oldest)} or newer is needed")
    return "onnx" if name == "tensorrt_rtx" or version >= SINCE["TensorScatter"] else "rows"


def compute_capabilities(lib: Library) -> list[str]:
    """The compute capabilities that the library can compile for, e.g. `8.9`; empty if they cannot be chosen.

    TensorRT-RTX runs on these alone, and on newer ones than all of them.
    """
    names = getattr(getattr(lib.trt, "ComputeCapability", None), "__members__", ())
    return [f"{name[2:-1]}.{name[-1]}" for name in names if name.startswith("SM")]


def refuse_newer(lib: Library, graph: Path) -> None:
    """Raises `EngineError` for an ONNX graph with an operator that this TensorRT cannot compile."""
    content = graph.read_bytes() if lib.name == "tensorrt" else b""
    for operator, first in SINCE.items():
        # In the file, the name of a node's operator is behind a tag and its length.
        if lib.version < first and bytes([0x22, len(operator)]) + operator.encode() in content:
            again = f", or build the bundle again with --tensorrt-version {dotted(lib.version[:2])}"
            raise EngineError(
                f"{graph.name} has the operator {operator}, which {lib.title} cannot compile and {dotted(first)} can; "
                f"install that or a newer one{again if dialect_for(lib.name, lib.version) == 'rows' else ''}"
            )


def plans_of(bundle: Bundle, engine: str) -> dict[str, Plan]:
    """The engine's plans, by the path of the ONNX file that each was compiled from. Raises `EngineError` if none."""
    plans = {plan.graph: plan for plan in bundle.manifest.plans if plan.engine == engine}
    if not plans:
        raise EngineError(
            f"{bundle.root} has no plans for {engine}; make them with: specexport compile {bundle.root} --engine "
            f"{engine}",
            code="not_built_for_engine",
        )
    return plans
