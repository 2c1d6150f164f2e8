"""TensorRT-RTX's builder, which needs no GPU, and the kernels that it says a plan has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.engines.tensorrt import compile as compiling
from specexport.engines.tensorrt.compile import CompileOptions, Profile

trt = pytest.importorskip("tensorrt_rtx")
NO_KERNEL = re.compile(r"LayerType: (shape_call|signal|wait)\b")


class Listener(trt.ILogger):  # type: ignore[misc, name-defined]
    """Keeps what the builder tells of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[str] = []
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        self.layers += re.findall(r"^Name: .*", message, re.MULTILINE)
        if severity <= trt.ILogger.Severity.ERROR:
            self.errors.append(message)


@dataclass(frozen=True)
class Kernel:
    """One launch of a plan. name: what it is made of, e.g. `CastMulSum`. reads: the names of what it is given."""

    name: str
    reads: tuple[str, ...]


def build(
    path: Path, capability: str, profiles: Sequence[Profile] = ({"tokens": ((1, 1), (1, 1), (1, 4))},)
) -> tuple[int | None, Listener]:
    """Bytes of the plan, None where there is none, and what was said. As `specexport compile` builds it."""
    listener = Listener()
    lib: Any = SimpleNamespace(trt=trt, logger=listener, forget=lambda: None, title="TensorRT-RTX")
    builder = trt.Builder(listener)
    network, _parser = compiling._parse(lib, builder, path)
    compiling._allow_decomposition(network, trt)
    text = f"{capability[2:-1]}.{capability[-1]}"
    config = compiling._config(lib, builder, CompileOptions((text,)))
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, limits in shapes.items():
            profile.set_shape(name, *limits)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return (plan.nbytes if plan is not None else None), listener


def kernels(path: Path, *profiles: Profile, capability: str = "SM89") -> list[Kernel]:
    """What a pass launches, in its order."""
    size, said = build(path, capability, profiles)
    assert size is not None, said.errors
    found = []
    for layer in said.layers:
        if NO_KERNEL.search(layer) is None:
            name = re.sub(r"^__myl_|_myl\d.*$", "", layer.removeprefix("Name: ").split(",")[0])
            name = re.sub(r"__mye\d+|[^+]*MatMul[^+]*", "product", name)
            inputs = layer.partition("Inputs: ")[2].partition("Outputs: ")[0]
            found.append(Kernel(name, tuple(re.findall(r"Name: ([^,]+),", inputs))))
    return found
