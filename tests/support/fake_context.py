"""An execution context of a fake TensorRT: what is bound or refused, and what a captured graph needs left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from specexport.engines.cuda.device import ALIGNMENT

from support.fake_graph import Shape
from support.fake_tensorrt_types import (
    Dims,
    DynamicShapesKernelSpecializationStrategy,
    ExecutionContextAllocationStrategy,
    Part,
)

if TYPE_CHECKING:
    from support.fake_tensorrt import ICudaEngine, IRuntimeConfig


class IExecutionContext(Part):
    """Changing anything once a captured graph holds it makes the launch of that graph an `AssertionError`."""

    def __init__(self, engine: ICudaEngine, config: IRuntimeConfig) -> None:
        super().__init__(engine._trt)
        self._engine, self._config, self._graph = engine, config, engine._graph
        engine._trt._device.users.add(self)
        self._profile = 0
        self._shapes: dict[str, Shape] = {}
        self._forget_shapes()
        self._addresses: dict[str, int] = {}
        self._scratch = (0, 0)  # address and size
        self._changes = 0
        self._has_run = False  # since the shapes were last changed

    @property
    def engine(self) -> ICudaEngine:
        return self._engine

    @property
    def active_optimization_profile(self) -> int:
        return self._profile

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._check_stream(stream_handle)
        if not 0 <= profile_index < self._engine.num_optimization_profiles:
            return self._refuse(f"there is no optimization profile {profile_index}")
        if profile_index != self._profile:
            self._profile = profile_index
            self._changed(f"profile {self._graph.name} {profile_index}", shapes=True)
            self._forget_shapes()
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        tensor, sizes = self._graph.tensors.get(name), tuple(shape)
        if tensor is None or not tensor.is_input:
            return self._refuse(f"{name} is no input")
        least, _, largest = self._engine._limits(name, self._profile)
        fits = len(sizes) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, sizes, largest, strict=True)
        )
        if not fits:
            return self._refuse(
                f"{name} cannot have the shape {sizes}: profile {self._profile} is from {least} to {largest}"
            )
        if self._shapes.get(name) != sizes:
            self._shapes[name] = sizes
            self._changed(f"shape {self._graph.name}.{name} {list(sizes)}", shapes=True)
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name, tensor in self._graph.tensors.items() if tensor.is_input and name not in self._shapes]

    def get_tensor_shape(self, name: str) -> Dims:
        known = self._shapes if self.infer_shapes() else self._all_shapes()
        return Dims(known.get(name, self._graph.tensors[name].shape))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._graph.tensors:
            return self._refuse(f"there is no tensor {name}")
        assert memory % ALIGNMENT == 0, f"{name} is bound to {memory:#x}, which is not a multiple of {ALIGNMENT}"
        if self._addresses.get(name, 0) != memory:
            self._addresses[name] = memory
            self._changed(f"bind {self._graph.name}.{name}")
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_device_memory(self, memory: int, size: int) -> None:
        assert memory % ALIGNMENT == 0, "the memory of the context is not aligned"
        if self._scratch != (memory, size):
            self._scratch = (memory, size)
            self._changed(f"scratch {self._graph.name} {size}")

    def is_stream_capturable(self, stream: int) -> bool:
        """Not while kernels are still being compiled in the background."""
        self._check_stream(stream)
        lazy = DynamicShapesKernelSpecializationStrategy.LAZY
        return not (self._dynamic_inputs() and self._config.dynamic_shapes_kernel_specialization_strategy == lazy)

    def execute_async_v3(self, stream_handle: int) -> bool:
        self._check_stream(stream_handle)
        device, graph = self._trt._device, self._graph
        problem = self._problem(device.capturing)
        if problem:
            return self._refuse(problem)
        shapes, scratch = self._all_shapes(), self._scratch
        self._check_memory(shapes)
        run_graph = graph.bind(self._addresses, shapes)
        self._has_run = True
        if self._config._cache is not None:
            self._config._cache._add(graph.name)

        def run() -> None:
            if scratch[1]:
                device.view(*scratch).fill(0xA5)  # what lies there is lost
            run_graph()

        line = " ".join(
            [
                f"execute {graph.name} {self._profile}",
                *(f"{name}{list(shapes[name])}" for name in self._dynamic_inputs()),
            ]
        )
        device.enqueue(line, run, self._check_unchanged())
        return True

    def _problem(self, capturing: bool) -> str:
        """What TensorRT would refuse."""
        if self.infer_shapes():
            return f"no shape is set for {', '.join(self.infer_shapes())}"
        unbound = [name for name in self._graph.tensors if not self._addresses.get(name)]
        if unbound:
            return f"no address is set for {', '.join(unbound)}"
        user_managed = self._config._strategy == ExecutionContextAllocationStrategy.USER_MANAGED
        if user_managed and self._scratch[1] < self._engine.device_memory_size_v2:
            needed = self._engine.device_memory_size_v2
            return f"the context needs {needed} bytes of device memory, and has {self._scratch[1]}"
        apart = [
            name for name, source in self._graph.aliases.items() if self._addresses[name] != self._addresses[source]
        ]
        if apart:
            return f"{', '.join(apart)} must be bound to the memory of the cache"
        if capturing and not self._has_run:
            return "captured before it has run once with these shapes"
        if capturing and self._trt._rtx and not self.is_stream_capturable(self._trt._device.stream):
            return "kernels for these shapes are still being compiled, which cannot be captured"
        return ""

    def _check_memory(self, shapes: Mapping[str, Shape]) -> None:
        """Everything lies within an allocation, and what is written lies apart from all else."""
        checkpoints = {
            name: self._trt._device.view(self._addresses[name], self._graph.tensors[name].bytes(shapes[name]))
            for name in shapes
        }
        if self._scratch[1]:
            checkpoints["scratch memory"] = self._trt._device.view(*self._scratch)
        written = [
            name for name in checkpoints if name not in self._graph.tensors or not self._graph.tensors[name].is_input
        ]
        for output in written:
            for other in set(checkpoints) - {output, self._graph.aliases.get(output)}:
                assert not np.may_share_memory(checkpoints[output], checkpoints[other]), f"{output} lies over {other}"

    def _check_unchanged(self) -> Callable[[], None]:
        changes = self._changes

        def check() -> None:
            assert self._changes == changes, (
                f"a graph is launched that holds {self._graph.name} as it was before it changed; capture again"
            )

        return check

    def _all_shapes(self) -> dict[str, Shape]:
        return {**self._shapes, **self._graph.output_shapes(self._shapes)}

    def _dynamic_inputs(self) -> list[str]:
        return [name for name, tensor in self._graph.tensors.items() if tensor.is_input and -1 in tensor.shape]

    def _forget_shapes(self) -> None:
        self._shapes = {
            name: tensor.shape
            for name, tensor in self._graph.tensors.items()
            if tensor.is_input and -1 not in tensor.shape
        }

    def _changed(self, line: str, shapes: bool = False) -> None:
        self._changes += 1
        self._has_run = self._has_run and not shapes
        self._trt._device.note(line)

    def _refuse(self, text: str) -> bool:
        self._engine._runtime._error(f"{self._graph.name}: {text}")
        return False

    def _check_stream(self, stream: int) -> None:
        assert stream == self._trt._device.stream, f"{stream:#x} is not the device's stream"
