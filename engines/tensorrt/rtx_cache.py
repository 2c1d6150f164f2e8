"""What TensorRT-RTX compiles for the GPU at hand when an engine first runs, kept across starts: one file a plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...temporary_files import remove_left, write_whole
from ...user_cache import user_cache


def default_folder() -> Path:
    return user_cache() / "tensorrt-rtx"


class RuntimeCaches:
    """A cache that is lost, or was made on another GPU or driver, only costs the time to compile again: nothing here
    raises.
    """

    def __init__(self, trt: Any, names: Mapping[Path, str], folder: Path) -> None:
        """names: the name of the cache of each plan, which must tell its contents."""
        self._trt, self._names, self._folder = trt, names, folder
        self._caches: list[tuple[Path, bytes, Any]] = []

    def settings(self, engine: Any, plan: Path) -> Any:
        """What `create_execution_context` is given: kernels for exactly the shapes that are bound, compiled before they
        are captured.
        """
        trt = self._trt
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED  # rounds are captured as a whole
        cache = config.create_runtime_cache()
        file = self._folder / f"{self._names[plan]}.cache"
        known = b""
        with suppress(Exception):  # of the file, or of the library for a blob that it cannot read
            content = file.read_bytes()
            known = content if cache.deserialize(content) else b""
        config.set_runtime_cache(cache)
        self._caches.append((file, known, cache))
        return config

    def save(self) -> None:
        """Write what is new. To be called when the passes have run once."""
        for place, (file, known, cache) in enumerate(self._caches):
            with suppress(Exception):
                made = bytes(cache.serialize())
                if made == known:
                    continue
                file.parent.mkdir(parents=True, exist_ok=True)
                remove_left(file.parent)
                write_whole(file, made)
                self._caches[place] = (file, made, cache)
