"""What the engines that a bundle is built for ask of the build: dialects, a precision, and plans now or later."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import get_args

from ...bundle import Role
from ...engines.catalogue import ENGINES, LIBRARIES, Capability
from ...engines.onnxruntime.cpu import availability as proving
from ...engines.tensorrt.api import dialect_for
from ...engines.tensorrt.compile import CompileOptions, check_options, compiler
from ...engines.versions import dotted
from ...errors import EngineError, ParameterError
from ..dialects import Dialect
from .engine_formats import refusal
from .precision_choice import Numbers

# What a device has if nobody says: the graphs are for TensorRT from 10.15 on.
NEWEST = (10, 15)
OPTIONS: dict[Role, str] = {"target": "--precision", "draft": "--draft-precision"}


@dataclass(frozen=True)
class Targets:
    """dialects: of the model graphs to make. compiled: engines whose plans are made at once.

    notes: what is left to do elsewhere.
    """

    dialects: tuple[Dialect, ...]
    compiled: tuple[str, ...]
    notes: tuple[str, ...]


def choose_targets(
    engines: tuple[str, ...],
    numbers: Numbers,
    options: CompileOptions,
    tensorrt_version: tuple[int, ...] | None,
    output: str,
) -> Targets:
    """Raises `EngineError` and `ParameterError` for what this host, or an engine, cannot do.

    tensorrt_version: the one on the device, by default that of this host. A plan is made here only if it can be run
    there.
    """
    _check_precision(engines, numbers, options.compute_capabilities)
    usable = proving()
    if not usable.usable:
        raise EngineError(f"the graphs cannot be proved on this host: {usable.detail}; {usable.remedy}")
    wanted: set[Dialect] = set()
    if any(engine not in LIBRARIES for engine in engines):
        wanted.add("ort")
    compiled, notes = [], []
    if "tensorrt-rtx" in engines:
        library = compiler("tensorrt-rtx", options)  # compiles anywhere, so what it lacks is worth an error at once
        wanted.add(dialect_for(library.name, library.version))
        compiled.append("tensorrt-rtx")
    if "tensorrt" in engines:
        version = tensorrt_version
        check_options("tensorrt", options)
        try:
            lib = compiler("tensorrt", options)
            problem = _misfit(lib.version, tensorrt_version)
        except EngineError as error:
            problem = str(error).partition(";")[0]
        else:
            if not problem:
                version = lib.version
                compiled.append("tensorrt")
        wanted.add(dialect_for("tensorrt", version or NEWEST))
        if problem:
            arguments = [part for argument in options.arguments for part in argument]
            command = shlex.join(["specexport", "compile", output, "--engine", "tensorrt", *arguments])
            older = (
                "" if tensorrt_version else " (TensorRT older than 10.15 needs a bundle built with --tensorrt-version)"
            )
            notes.append(f"tensorrt: no plans are made here: {problem}; on the device, run: {command}{older}")
    if "rows" in wanted and "int4" in numbers.formats.values():
        option = OPTIONS["target" if numbers.formats["target"] == "int4" else "draft"]
        raise ParameterError(
            f"{option} is int4, which TensorRT before 10.15 is not known to read; use int8, or a newer TensorRT",
            option.removeprefix("--").replace("-", "_"),
        )
    dialects = tuple(dialect for dialect in get_args(Dialect) if dialect in wanted)
    return Targets(dialects, tuple(engine for engine in engines if engine in compiled), tuple(notes))


def parse_version(text: str) -> tuple[int, ...]:
    """`10.3` or longer. Raises `ParameterError`."""
    if not re.fullmatch(r"\d+(\.\d+){1,3}", text):
        raise ParameterError(f"--tensorrt-version is {text}; it must look like 10.3", "tensorrt_version")
    return tuple(int(part) for part in text.split("."))


def _check_precision(engines: tuple[str, ...], numbers: Numbers, capabilities: tuple[str, ...]) -> None:
    for engine in engines:
        if engine not in ENGINES:
            raise EngineError(
                f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}", "engine", code="unknown_engine"
            )
        for role, option in OPTIONS.items():
            for capability in (None, *map(_capability, capabilities if engine in LIBRARIES else ())):
                if problem := refusal(engine, numbers.name(role), capability, option):
                    raise ParameterError(problem, option.removeprefix("--").replace("-", "_"))


def _capability(text: str) -> Capability | None:
    """None for one that is none, which the compiler's own check names."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _misfit(installed: tuple[int, ...], wanted: tuple[int, ...] | None) -> str:
    """Why a plan made here would not run there, empty when it does."""
    if wanted is None or installed[: len(wanted)] == wanted:
        return ""
    return f"this host has TensorRT {dotted(installed)}, not {dotted(wanted)}"
