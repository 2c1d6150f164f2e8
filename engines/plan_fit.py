"""Whether a plan can run on this host: what it was made for against what is here, before anything is loaded."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from ..bundle import Bundle, Plan
from ..errors import EngineError
from .device import Device
from .tensorrt_api import Library


def check_fit(bundle: Bundle, plan: Plan, library: Library, device: Device) -> None:
    """Raises `EngineError`: what was found, what is needed, and the command that compiles the plan again."""
    file = bundle.path(plan.file)
    again = f"compile it here: specexport compile {bundle.root} --engine {plan.engine}"
    made_with, version = _numbers(plan.version), library.version
    # A version-compatible plan runs on every later version of the same major one.
    fits = made_with[0] == version[0] and made_with <= version[: len(made_with)] if plan.version_compatible else made_with == version
    if not fits:
        needed = f"{plan.version} or a later {made_with[0]}.x" if plan.version_compatible else plan.version
        raise EngineError(f"{file} was made by version {plan.version}, this host has {library.title}; it needs {needed}: {again}")
    capability = device.compute_capability
    built_for = [_numbers(text) for text in plan.compute_capabilities]
    if built_for and capability not in built_for and not (plan.hardware_compatible and capability > min(built_for)):
        target = f" --compute-capability {_dotted(capability)}" if plan.engine == "tensorrt-rtx" else ""
        made_for = ", ".join(plan.compute_capabilities)
        raise EngineError(f"{file} was made for compute capability {made_for}, {device.name} has {_dotted(capability)}; {again}{target}")
    _check_validity(file, library, device, again)


def _check_validity(file: Path, library: Library, device: Device, again: str) -> None:
    """What the library itself says, where it can (TensorRT-RTX)."""
    trt = library.trt
    runtime = trt.Runtime(library.logger)
    validity = getattr(runtime, "get_engine_validity", None)
    if validity is None:
        return
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        verdict, diagnostics = validity(content)
    if verdict == trt.EngineValidity.INVALID:
        causes = _causes(trt, int(diagnostics)) or "no cause is given"
        raise EngineError(f"{file} cannot run on {device.name} with {library.title} ({causes}); {again}")


def _causes(trt: Any, diagnostics: int) -> str:
    """Names of the bits that are set."""
    known = trt.EngineInvalidityDiagnostics.__members__
    return ", ".join(name.lower().replace("_", " ") for name, bit in known.items() if diagnostics & int(bit))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
