"""TensorRT, for data-centre GPUs and Jetson.

Version-compatible plans also run on the lean runtime, which cannot compile.
"""

from __future__ import annotations

from ...bundle import Bundle
from ...errors import EngineError, MissingPackageError
from ..base import Availability, Engine
from ..cuda.device import CudaDevice
from .api import LEAN, Library, found, host_of, library, plans_of
from .engine import load_bundle

NAME = "tensorrt"


def availability() -> Availability:
    return found(lambda: host_of(_runtime)[2])


def load(bundle: Bundle, threads: int = 0, device: int = 0) -> Engine:
    """Load the bundle's plans on GPU `device`. `threads` is ignored: it is for CPU engines. Raises `EngineError`."""
    plans = plans_of(bundle, NAME)
    runtime = _runtime()
    if runtime.name == LEAN and not all(plan.version_compatible for plan in plans.values()):
        raise EngineError(
            f"this host has only the lean runtime, which needs version-compatible plans; make them with: "
            f"specexport compile {bundle.root} --engine {NAME} --version-compatible, or install TensorRT",
            code="incompatible_plan",
        )
    return load_bundle(NAME, bundle, runtime, CudaDevice(device))


def _runtime() -> Library:
    """TensorRT, else its lean runtime. Raises TensorRT's `EngineError` if neither is installed."""
    try:
        return library("tensorrt")
    except EngineError as error:
        try:
            return library(LEAN)
        except MissingPackageError:
            raise error from None
