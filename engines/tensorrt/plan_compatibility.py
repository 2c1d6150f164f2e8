"""Whether a plan can run on this host: compares what it was compiled for with this host, before anything is loaded."""

from __future__ import annotations

import mmap
from pathlib import Path

from ...bundle import Bundle, Plan
from ...errors import EngineError
from ..cuda.protocol import Device
from ..versions import dotted, version_numbers
from .api import Library

# The lowest compute capability of HardwareCompatibilityLevel.AMPERE_PLUS, which `compile_graph` uses.
AMPERE = (8, 0)


def check_fit(bundle: Bundle, plan: Plan, library: Library, device: Device) -> None:
    """Check that `plan` can run on `device`, whose context must be current: it is the current GPU that TensorRT judges.

    Raises `EngineError` with the command that compiles the plan again.
    """
    file = bundle.path(plan.file)
    again = f"compile it here: specexport compile {bundle.root} --engine {plan.engine}"
    if version_numbers(plan.version) != library.version:
        raise EngineError(
            f"{file} was made by version {plan.version}, this host has {library.title}; it needs the same version: "
            f"{again}",
            code="incompatible_plan",
        )
    capability = device.compute_capability
    built_for = [version_numbers(text) for text in plan.compute_capabilities]
    if plan.engine == "tensorrt-rtx":
        again += " --compute-capability " + dotted(capability)
    if built_for and capability not in built_for and not (plan.hardware_compatible and capability >= AMPERE):
        made_for = ", ".join(plan.compute_capabilities)
        raise EngineError(
            f"{file} was made for compute capability {made_for}, {device.name} has {dotted(capability)}; {again}",
            code="incompatible_plan",
        )
    if hasattr(library.trt.Runtime, "get_engine_validity"):  # TensorRT-RTX
        _check_validity(file, library, device, again)


def _check_validity(file: Path, library: Library, device: Device, again: str) -> None:
    """Ask the library itself."""
    trt = library.trt
    runtime = trt.Runtime(library.logger)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        verdict, diagnostics = runtime.get_engine_validity(content)
    if verdict != trt.EngineValidity.INVALID:
        return
    causes = [name for name, bit in trt.EngineInvalidityDiagnostics.__members__.items() if int(diagnostics) & int(bit)]
    remedies = {
        "OLD_CUDA_DRIVER": "update the driver",
        "OLD_CUDA_RUNTIME": "update CUDA",
        "INSUFFICIENT_GPU_MEMORY": "close other programs that use the GPU, or build with a smaller --precision",
    }
    remedy = next((remedies[cause] for cause in causes if cause in remedies), again)
    said = ", ".join(cause.lower().replace("_", " ") for cause in causes) or "no cause is given"
    raise EngineError(
        f"{file} cannot run on {device.name} with {library.title} ({said}); {remedy}", code="incompatible_plan"
    )
