"""Which engine runs which precision: of all values (fp32, fp16, bf16), or of weights (int8, int4, fp8).

Sources, as of November 2026. ONNX Runtime: its CPU provider has kernels for int8 and for int4 in blocks
(`MatMulNBits`), and none for products in fp8 or bf16. TensorRT: its ONNX parser reads fp8 from version 9.0 and int4
from 10.0 on ("ONNX-TensorRT Changelog"), both older than what this package compiles for. GPUs: TensorRT-RTX's support
matrix ("Hardware and Precision") has weights in int8 and int4 and bf16 from Ampere on and fp8 from compute capability
8.9 on; TensorRT's guide ("Working with Quantized Types") says 8.9 for fp8 too. Measured with TensorRT-RTX 1.7.1: for
8.0 it builds int8 and int4, and refuses fp8 by name.
"""

from __future__ import annotations

Capability = tuple[int, int]

RUNS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("fp32", "fp16", "int8", "int4"),
    "onnxruntime-cuda": ("fp16", "bf16"),
    "tensorrt": ("fp32", "fp16", "bf16", "int8", "int4", "fp8"),
    "tensorrt-rtx": ("fp32", "fp16", "bf16", "int8", "int4", "fp8"),
}
# The least compute capability, where it is more than the engine's own.
LEAST: dict[str, dict[str, Capability]] = {
    "tensorrt": {"bf16": (8, 0), "fp8": (8, 9)},
    "tensorrt-rtx": {"bf16": (8, 0), "int8": (8, 0), "int4": (8, 0), "fp8": (8, 9)},
}


def formats_of(engine: str, capability: Capability | None = None) -> tuple[str, ...]:
    """What `engine` runs, on any GPU or on one of that compute capability."""
    least = LEAST.get(engine, {}) if capability is not None else {}
    return tuple(name for name in RUNS[engine] if capability is None or least.get(name, capability) <= capability)


def refusal(engine: str, precision: str, capability: Capability | None = None, option: str = "--precision") -> str:
    """Why `engine` cannot run it, in one line that says what can; empty when it can."""
    if precision in formats_of(engine, capability):
        return ""
    known = ", ".join(formats_of(engine, capability))
    if capability is not None and precision in RUNS[engine]:
        needed, given = (".".join(map(str, numbers)) for numbers in (LEAST[engine][precision], capability))
        where = f"on compute capability {given}; that takes {needed} or later"
    else:
        others = [name for name, formats in RUNS.items() if precision in formats]
        where = f"; {precision} runs on {', '.join(others)}" if others else ""
        return f"{option} is {precision}, which engine {engine} cannot run; it runs {known}{where}"
    return f"{option} is {precision}, which engine {engine} cannot run {where}; it runs {known}"
