"""A compiled engine in memory, and its execution contexts: one for each combination of shapes, bound only once.

TensorRT leaves undefined what a captured graph does after its context has changed. So no context ever changes: whatever
differs from round to round is copied into buffers with fixed addresses.

`check_fit` compares what a plan was compiled for with this host, before it is loaded.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...bundle import Bundle, Plan, is_cache
from ...errors import EngineError
from ..catalogue import dotted, version_numbers
from ..cuda.device import ALIGNMENT, Address, CudaDevice
from ..cuda.driver import size_text
from ..cuda.loaded_graph import Enqueue
from .api import Library


class LoadedPlan:
    """A deserialized plan. Implements `LoadedGraph`."""

    on_host: frozenset[str] = frozenset()

    def __init__(
        self,
        library: Library,
        file: Path,
        device: CudaDevice,
        settings: Callable[[Any, Path], Any] | None = None,
    ) -> None:
        """settings: makes the argument of `create_execution_context` from the engine and its file; by default it is an
        allocation strategy.

        Raises `EngineError` if the library refuses the plan or the device lacks the memory.
        """
        self._library, self._file, self._device = library, file, device
        trt = library.trt
        library.forget()
        self._runtime = trt.Runtime(library.logger)
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            self._engine = self._runtime.deserialize_cuda_engine(content)
        if self._engine is None:
            free, total = device.memory()
            if file.stat().st_size > free:
                raise EngineError(
                    f"out of device memory for {file.name}: {size_text(file.stat().st_size)} requested, "
                    f"{size_text(free)} of {size_text(total)} free; choose a smaller --precision or close "
                    "other programs that use the GPU",
                    code="out_of_device_memory",
                )
            raise EngineError(f"{file} cannot be loaded: {library.reason()}")
        self._context_argument = (
            settings(self._engine, file)
            if settings is not None
            else trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        self._contexts: list[Any] = []
        self.scratch_bytes = int(self._engine.device_memory_size_v2)
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self.inputs = [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self.outputs = [name for name in names if name not in self.inputs]

    def least(self, name: str, profile: int) -> int:
        return int(self._engine.get_tensor_profile_shape(name, profile)[0][0])

    def bind(
        self,
        profile: int,
        shapes: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, Address],
        scratch: Address,
        given: Mapping[str, tuple[int, ...]],
    ) -> Enqueue:
        """Makes a new context for the optimization profile of that number."""
        missing = {*self.inputs, *self.outputs} ^ set(addresses)
        if missing:
            raise EngineError(
                f"{self._file}: inputs and outputs {', '.join(sorted(missing))} do not match; compile the bundle again"
            )
        for name, address in addresses.items():
            if address % ALIGNMENT:
                raise EngineError(f"{self._file}: the address of {name} is not a multiple of {ALIGNMENT}")
        self._check_aliases(addresses)
        self._library.forget()
        context = self._engine.create_execution_context(self._context_argument)
        self._require(context is not None, "no execution context")
        stream = self._device.stream
        context.set_device_memory(scratch, self.scratch_bytes)
        self._require(context.set_optimization_profile_async(profile, stream), f"no profile {profile}")
        self._device.synchronize()
        for name, shape in shapes.items():
            self._require(context.set_input_shape(name, shape), f"{name} cannot have the shape {list(shape)}")
        for name, address in addresses.items():
            self._require(context.set_tensor_address(name, address), f"{name} cannot be bound")
        unknown = context.infer_shapes()
        self._require(not unknown, f"no shape is known for {', '.join(unknown)}")
        for name, expected in given.items():
            found = tuple(context.get_tensor_shape(name))
            self._require(found == expected, f"{name} has the shape {list(found)}, expected {list(expected)}")
        capturable = getattr(context, "is_stream_capturable", None)  # TensorRT-RTX
        self._require(capturable is None or capturable(stream), "its work cannot be captured as a CUDA graph")

        place = len(self._contexts)
        self._contexts.append(context)

        def enqueue() -> None:
            self._require(self._contexts[place].execute_async_v3(stream), "the pass could not be enqueued")

        return enqueue

    def close(self) -> None:
        """Release everything; call it before the device is closed. Nothing may be enqueued afterwards."""
        self._contexts.clear()
        self._context_argument = self._engine = self._runtime = None

    def _check_aliases(self, addresses: Mapping[str, Address]) -> None:
        """Check that caches are updated in place, and that each is bound to the same memory as input and output."""
        aliased = getattr(self._engine, "get_aliased_input_tensor", lambda name: None)  # TensorRT 10.15 and later
        for output in self.outputs:
            source = aliased(output)
            if source and addresses[output] != addresses[source]:
                raise EngineError(
                    f"{self._file}: {output} is {source} updated in place, and must be bound to its memory"
                )
            if output.startswith("present.") and is_cache(output) and not source:
                raise EngineError(f"{self._file}: {output} is not a cache updated in place; compile the bundle again")

    def _require(self, done: bool, problem: str) -> None:
        if not done:
            free, total = self._device.memory()
            raise EngineError(
                f"{self._file}: {problem}: {self._library.reason()} ({size_text(free)} of {size_text(total)} of "
                "device memory free)"
            )


def check_fit(bundle: Bundle, plan: Plan, library: Library, device: CudaDevice) -> None:
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
    if built_for and capability not in built_for:
        made_for = ", ".join(plan.compute_capabilities)
        raise EngineError(
            f"{file} was made for compute capability {made_for}, {device.name} has {dotted(capability)}; {again}",
            code="incompatible_plan",
        )
    if hasattr(library.trt.Runtime, "get_engine_validity"):  # TensorRT-RTX
        _check_validity(file, library, device, again)


def _check_validity(file: Path, library: Library, device: CudaDevice, again: str) -> None:
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
