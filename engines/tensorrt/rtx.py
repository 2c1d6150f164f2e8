"""TensorRT-RTX, for RTX GPUs. Plans can be compiled on any host; the rest is compiled for the GPU at the first run.

The kernels that are compiled then are cached on disk: one file per plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...atomic import remove_left, write_whole
from ...bundle import Bundle
from ...errors import EngineError
from ...user_cache import user_cache
from ..base import Availability, Engine
from ..catalogue import dotted, version_numbers
from ..cuda.device import CudaDevice
from .api import compute_capabilities, found, host_of, library, plans_of
from .engine import load_bundle

NAME = "tensorrt-rtx"


def availability() -> Availability:
    return found(_describe)


def load(bundle: Bundle, threads: int = 0, device: int = 0) -> Engine:
    """Load the bundle's plans on GPU `device`. `threads` is ignored: it is for CPU engines. Raises `EngineError`."""
    plans = plans_of(bundle, NAME)
    runtime = library("tensorrt_rtx")
    names = {bundle.path(plan.file): bundle.manifest.files[plan.file].sha256 for plan in plans.values()}
    caches = RuntimeCaches(runtime.trt, names, user_cache() / "tensorrt-rtx")
    engine = load_bundle(NAME, bundle, runtime, CudaDevice(device), caches.settings)
    caches.save()

    def close() -> None:
        caches.save()  # kernels for widths that requests were the first to need
        engine.close()

    return replace(engine, close=close)


def _describe() -> str:
    gpu, lib, described = host_of(lambda: library("tensorrt_rtx"))
    capability, known = gpu.compute_capability, compute_capabilities(lib)
    if not runs_on(capability, known):
        raise EngineError(
            f"{lib.title} does not run on {gpu.name}, compute capability {dotted(capability)}, but on "
            f"{', '.join(known)}; use the engine onnxruntime-cuda"
        )
    return described


def runs_on(capability: tuple[int, int], known: Sequence[str]) -> bool:
    """known: those of the library, none where it does not tell."""
    numbers = [version_numbers(text) for text in known]
    return not numbers or capability in numbers or capability > max(numbers)


class RuntimeCaches:
    """The runtime caches of several plans. Nothing here raises: if a cache is lost, or was made on another GPU or
    driver, the kernels are compiled again.
    """

    def __init__(self, trt: Any, names: Mapping[Path, str], folder: Path) -> None:
        """names: by the file of a plan, a name for its cache, which must identify the plan's contents."""
        self._trt, self._names, self._folder = trt, names, folder
        self._caches: list[tuple[Path, bytes, Any]] = []

    def settings(self, engine: Any, plan: Path) -> Any:
        """The argument of `create_execution_context`: kernels for exactly the shapes that are bound, compiled before
        they are captured.
        """
        trt = self._trt
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED  # rounds are captured as a whole
        cache = config.create_runtime_cache()
        file = self._folder / f"{self._names[plan]}.cache"
        known = b""
        with suppress(Exception):  # from the file, or from the library if it cannot read the blob
            content = file.read_bytes()
            known = content if cache.deserialize(content) else b""
        config.set_runtime_cache(cache)
        self._caches.append((file, known, cache))
        return config

    def save(self) -> None:
        """Write the caches that have changed. Call it after the passes have run once."""
        for place, (file, known, cache) in enumerate(self._caches):
            with suppress(Exception):
                made = bytes(cache.serialize())
                if made == known:
                    continue
                file.parent.mkdir(parents=True, exist_ok=True)
                remove_left(file.parent)
                write_whole(file, made)
                self._caches[place] = (file, made, cache)
