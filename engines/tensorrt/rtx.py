"""TensorRT-RTX, for RTX GPUs. Plans can be compiled on any host; the rest is compiled for the GPU at the first run."""

from __future__ import annotations

from dataclasses import replace

from ...bundle import Bundle
from ..base import Availability, Engine
from ..cuda.device import CudaDevice
from .api import dialect_for, found, gpu_for, library, plans_of
from .engine import load_bundle
from .rtx_cache import RuntimeCaches, default_folder

NAME = "tensorrt-rtx"


def availability() -> Availability:
    return found(_describe)


def load(bundle: Bundle, threads: int = 0, device: int = 0) -> Engine:
    """Load the bundle's plans on GPU `device`. `threads` is ignored: it is for CPU engines. Raises `EngineError`."""
    plans = plans_of(bundle, NAME)
    runtime = library("tensorrt_rtx")
    names = {bundle.path(plan.file): bundle.manifest.files[plan.file].sha256 for plan in plans.values()}
    caches = RuntimeCaches(runtime.trt, names, default_folder())
    engine = load_bundle(NAME, bundle, runtime, CudaDevice(device), caches.settings)
    caches.save()

    def close() -> None:
        caches.save()  # kernels that were compiled during requests
        engine.close()

    return replace(engine, close=close)


def _describe() -> str:
    gpu = gpu_for(lambda: library("tensorrt_rtx"))
    major, minor = gpu.compute_capability
    lib = library("tensorrt_rtx")
    dialect_for(lib.name, lib.version)  # raises if it is too old
    return f"{lib.title}, {gpu.name} ({major}.{minor}), driver for CUDA {gpu.driver}"
