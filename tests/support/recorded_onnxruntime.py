"""onnxruntime on the CPU, with what the decoder for CUDA calls written down; and a session that runs nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
from specexport.bundle import ModelSpec
from specexport.engines.onnxruntime.graphs import open_session as cpu_session


class Recorder:
    """onnxruntime, with what the decoder calls written down; `calls` has (what, which, ...)."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.addresses: list[int] = []
        recorder = self

        class Value:
            def __init__(self, value: Any) -> None:
                self._ortvalue = value._ortvalue  # what the real IOBinding takes
                self.value = value
                recorder.addresses.append(value.data_ptr())

            @classmethod
            def ortvalue_from_numpy(cls, array: Any, *device: Any) -> Value:
                recorder.calls.append(("value", array.shape, *device))
                return cls(ort.OrtValue.ortvalue_from_numpy(array, *device))

            def update_inplace(self, data: Any) -> None:
                if isinstance(data, Value):
                    recorder.calls.append(("copy", self.value.data_ptr(), data.value.data_ptr()))
                    self.value.update_inplace(data.value)
                else:
                    recorder.calls.append(("update", self.value.data_ptr(), data.ravel().tolist()))
                    self.value.update_inplace(data)

            def data_ptr(self) -> int:
                return int(self.value.data_ptr())

            def numpy(self) -> Any:
                return self.value.numpy().copy()  # as from a GPU

        self.OrtValue = Value
        self.RunOptions = ort.RunOptions

    def session(self, path: Path) -> Any:
        real, recorder = cpu_session(path, 0), self

        class Binding:
            def __init__(self) -> None:
                self.io = real.io_binding()
                self.bound: dict[str, int] = {}

            def bind_ortvalue_input(self, name: str, value: Any) -> None:
                self.bound[name] = value.data_ptr()
                self.io.bind_ortvalue_input(name, value.value)

            def bind_ortvalue_output(self, name: str, value: Any) -> None:
                self.bound[name] = value.data_ptr()
                self.io.bind_ortvalue_output(name, value.value)

            def bind_input(self, name: str, *place: Any) -> None:
                self.bound[name] = place[-1]
                self.io.bind_input(name, *place)

            def bind_output(self, name: str, *place: Any) -> None:
                self.bound[name] = place[-1]
                self.io.bind_output(name, *place)

        def io_binding() -> Binding:
            recorder.calls.append(("bind",))
            return Binding()

        def run_with_iobinding(binding: Binding, options: Any) -> None:
            recorder.calls.append(
                ("run", options.get_run_config_entry("gpu_graph_id"), tuple(sorted(binding.bound.items())))
            )
            real.run_with_iobinding(binding.io, options)

        return SimpleNamespace(
            get_inputs=real.get_inputs,
            get_outputs=real.get_outputs,
            io_binding=io_binding,
            run_with_iobinding=run_with_iobinding,
        )


class StillSession:
    """A session that only says what its graph takes and gives, in a type that the CPU cannot run."""

    def __init__(self, spec: ModelSpec, capacity: int, kind: str) -> None:
        shape = [1, 2, capacity, 8]
        caches = [SimpleNamespace(name=name, type=kind, shape=shape) for name, _ in spec.cache_names("past")]
        self.inputs = [
            SimpleNamespace(name=name, type="tensor(int64)", shape=[1]) for name in ("tokens", "position")
        ] + caches
        logits = SimpleNamespace(name="logits", type="tensor(float)", shape=[1, "at_most_5_rows", spec.vocab_size])
        presents = [
            SimpleNamespace(name=cache.name.replace("past", "present"), type=kind, shape=shape) for cache in caches
        ]
        self.outputs = [logits, *presents]
        self.bound: list[tuple[Any, ...]] = []

    def get_inputs(self) -> list[Any]:
        return self.inputs

    def get_outputs(self) -> list[Any]:
        return self.outputs

    def io_binding(self) -> Any:
        def bind(name: str, *place: Any) -> None:
            self.bound.append((name, *place))

        return SimpleNamespace(
            bind_input=bind,
            bind_output=bind,
            bind_ortvalue_input=lambda *given: None,
            bind_ortvalue_output=lambda *given: None,
        )

    def run_with_iobinding(self, io: Any, options: Any) -> None:
        pass
