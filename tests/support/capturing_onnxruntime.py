"""onnxruntime on the CPU that treats passes as its CUDA provider does under `enable_cuda_graph`.

The first run under a number, in each thread, executes the pass three times and freezes what it read on the host; later
ones repeat that. Under -1 a pass just runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from specexport.bundle import COUNTS
from specexport.engines.onnxruntime.graphs import open_session as cpu_session

Frozen = tuple[int, ...]


class Capturing:
    """A module like onnxruntime. runs: what each did (`captured`, `replayed` or `ran`), and its width and counts."""

    def __init__(self) -> None:
        self.OrtValue, self.RunOptions = _Values, ort.RunOptions
        self.runs: list[tuple[str, Frozen]] = []
        self.frozen: dict[tuple[int, int, str], Frozen] = {}  # by session, thread and number
        self.fails = False

    def session(self, path: Path) -> Any:
        real = cpu_session(path, 1)

        def run_with_iobinding(binding: _Binding, options: Any) -> None:
            self._run(real, binding, options.get_run_config_entry("gpu_graph_id"))

        return SimpleNamespace(
            get_inputs=real.get_inputs,
            get_outputs=real.get_outputs,
            io_binding=lambda: _Binding(real),
            run_with_iobinding=run_with_iobinding,
        )

    def _run(self, real: Any, binding: _Binding, number: str) -> None:
        if self.fails:
            raise RuntimeError("CUDA failure 719: unspecified launch failure")
        if number == "-1":
            self.runs.append(("ran", binding.on_host))
            real.run_with_iobinding(binding.io)
            return
        key = (id(real), threading.get_ident(), number)
        captured = key not in self.frozen
        frozen = self.frozen.setdefault(key, binding.on_host)
        self.runs.append(("captured" if captured else "replayed", frozen))
        with binding.frozen(frozen):
            for _ in range(3 if captured else 1):
                real.run_with_iobinding(binding.io)


class _Value(ort.OrtValue):  # type: ignore[misc]
    def numpy(self) -> Any:
        return super().numpy().copy()  # as from a GPU


class _Values:
    @staticmethod
    def ortvalue_from_numpy(array: Any, *device: Any) -> _Value:
        return _Value(ort.OrtValue.ortvalue_from_numpy(array, *device)._ortvalue, array)  # which it aliases


class _Binding:
    def __init__(self, real: Any) -> None:
        self.io = real.io_binding()
        self.values: dict[str, Any] = {}
        self.bind_input, self.bind_output = self.io.bind_input, self.io.bind_output

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.io.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        assert self.values.get(name.replace("present.", "past."), value) is value, f"{name} is not in place"
        self.io.bind_ortvalue_output(name, value)

    @property
    def on_host(self) -> Frozen:
        counts = (int(self.values[name].numpy()[0]) for name in COUNTS if name in self.values)
        return (self.values["tokens"].shape()[1], *counts)

    @contextmanager
    def frozen(self, frozen: Frozen) -> Iterator[None]:
        assert self.values["tokens"].shape()[1] == frozen[0], "a graph has one width"
        now = self.on_host[1:]
        self._write(frozen[1:])
        yield
        self._write(now)

    def _write(self, counts: Frozen) -> None:
        for name, count in zip(COUNTS, counts, strict=False):
            self.values[name].update_inplace(np.array([count]))
