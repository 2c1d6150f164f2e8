"""TensorRT-RTX: RTX GPUs. Plans are made anywhere, and finished for the GPU at hand when they first run."""

from __future__ import annotations

from ..bundle import Bundle
from .base import Availability, Engine
from .cuda import CudaDevice
from .cuda_driver import find_gpu
from .plan_fit import check_fit
from .rtx_cache import RuntimeCaches, default_folder
from .tensorrt_api import found, library, plans_of
from .tensorrt_engine import load_bundle

NAME = "tensorrt-rtx"


def availability() -> Availability:
    return found(_describe)


def load(bundle: Bundle, threads: int = 0) -> Engine:
    """`threads` is for engines on the CPU. Raises `EngineError`."""
    plans = plans_of(bundle, NAME)
    runtime = library("tensorrt_rtx")
    device = CudaDevice()
    try:
        for plan in plans.values():
            check_fit(bundle, plan, runtime, device)
    except BaseException:
        device.close()
        raise
    names = {bundle.path(plan.file): bundle.manifest.files[plan.file].sha256 for plan in plans.values()}
    caches = RuntimeCaches(runtime.trt, names, default_folder())
    engine = load_bundle(NAME, bundle, plans, runtime, device, caches.settings)
    caches.save()
    return engine


def _describe() -> str:
    gpu = find_gpu()
    major, minor = gpu.compute_capability
    return f"{library('tensorrt_rtx').title}, {gpu.name} ({major}.{minor}), driver for CUDA {gpu.driver}"
