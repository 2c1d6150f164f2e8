"""TensorRT-RTX's builder, which needs no GPU, and what it says of its layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

trt = pytest.importorskip("tensorrt_rtx")


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


def build(path: Path, capability: str) -> tuple[int | None, Listener]:
    """Bytes of the plan, None where there is none, and what was said."""
    listener = Listener()
    builder = trt.Builder(listener)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, listener)
    assert parser.parse_from_file(str(path)), listener.errors
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    profile = builder.create_optimization_profile()
    profile.set_shape("tokens", (1, 1), (1, 1), (1, 4))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return (plan.nbytes if plan is not None else None), listener
