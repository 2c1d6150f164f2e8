"""What is known about each engine without loading it, and versions as numbers that can be compared. A new engine is one
entry here and one module (docs/contributing.md).

Sources of the precisions, as of November 2026. ONNX Runtime: its CPU provider has kernels for int8 and for int4 in
blocks (`MatMulNBits`), and none for products in fp8 or bf16; its CUDA provider has the latter for weights in int8 too,
no attention in fp32, and in bf16 no `Pad`, which states need. TensorRT: its ONNX parser reads fp8 from version 9.0 and
int4 from 10.0 on ("ONNX-TensorRT Changelog"), both older than the versions that this package compiles for. GPUs:
TensorRT-RTX's support matrix ("Hardware and Precision") lists weights in int8 and int4, and bf16, from Ampere on, and
fp8 from compute capability 8.9 on; TensorRT's guide ("Working with Quantized Types") says 8.9 for fp8 too. Measured
with TensorRT-RTX 1.7.1: for 8.0 it builds int8 and int4, and refuses fp8 by name; for 7.5 it builds fp16, and has no
matrix products in fp32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..bundle import Family, HiddenDraftKind
from ..errors import EngineError

Capability = tuple[int, int]


@dataclass(frozen=True)
class EngineInfo:
    """module: in this folder, an `EngineModule`. family: the family whose graphs it runs for quantized models.

    formats: precisions that it runs, of all values (fp32, fp16, bf16) or of weights (int8, int4, fp8).
    on_gpu: takes a `device`, pads prompt chunks, and may give a row other bits in another place of a pass.
    library: the library that compiles its plans, a name of `engines/tensorrt/api.py`; empty if it runs graphs as they
    are.
    least: the lowest compute capability for a precision, where it is higher than the engine's own.
    states: the precisions, of everything but quantized weights, in which it runs models whose layers keep states in
    addition to keys and values.
    hidden_drafts: the kinds of drafts that read the target's hidden states that it runs.
    kernels: whether it runs graphs with the operators of specexport-kernels. trees: whether it has `Engine.trees`.
    extra: the one of specexport that installs it, if it is not called like the engine.
    """

    module: str
    family: Family
    formats: tuple[str, ...]
    on_gpu: bool = True
    library: str = ""
    least: Mapping[str, Capability] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    hidden_drafts: tuple[HiddenDraftKind, ...] = ("eagle3", "mtp")
    kernels: bool = False
    trees: bool = False
    extra: str = ""


ENGINES = {
    "onnxruntime": EngineInfo(
        "onnxruntime.cpu",
        "onnxruntime",
        ("fp32", "fp16", "int8", "int4"),
        on_gpu=False,
        states=("fp32", "fp16"),
        hidden_drafts=("eagle3", "mtp", "dflash", "dspark", "assistant"),
        kernels=True,
        trees=True,
    ),
    "onnxruntime-cuda": EngineInfo(
        "onnxruntime.cuda",
        "onnxruntime-cuda",
        ("fp16", "bf16", "int8", "int4"),
        states=("fp16",),
        extra="onnxruntime-gpu",
    ),
    "tensorrt": EngineInfo(
        "tensorrt.enterprise",
        "tensorrt",
        ("fp32", "fp16", "bf16", "int8", "int4", "fp8"),
        library="tensorrt",
        states=("fp32", "fp16", "bf16"),
        least={"bf16": (8, 0), "fp8": (8, 9)},
    ),
    "tensorrt-rtx": EngineInfo(
        "tensorrt.rtx",
        "tensorrt",
        ("fp32", "fp16", "bf16", "int8", "int4", "fp8"),
        library="tensorrt_rtx",
        states=("fp32", "fp16", "bf16"),
        least={"fp32": (8, 0), "bf16": (8, 0), "int8": (8, 0), "int4": (8, 0), "fp8": (8, 9)},
    ),
}
# The engines that run plans, and the library that compiles them.
LIBRARIES = {name: info.library for name, info in ENGINES.items() if info.library}


def info_of(engine: str) -> EngineInfo:
    """Raises `EngineError` for an unknown name."""
    if engine not in ENGINES:
        raise EngineError(
            f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}", "engine", code="unknown_engine"
        )
    return ENGINES[engine]


def capability_of(text: str) -> Capability | None:
    """`8.9` as numbers; None for one that is none, which the compiler's own check names."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def formats_of(engine: str, capability: Capability | None = None) -> tuple[str, ...]:
    """What `engine` runs, on any GPU or on one of that compute capability."""
    return tuple(one for one in ENGINES[engine].formats if capability is None or not too_old(engine, one, capability))


def too_old(engine: str, precision: str, capability: Capability) -> str:
    """Why a GPU of that compute capability does not run a precision of the engine's; empty if it does."""
    least = ENGINES[engine].least.get(precision, capability)
    needed, available = dotted(least), dotted(capability)
    return f"on compute capability {available}; that takes {needed} or later" if least > capability else ""


def lacks_states(engine: str, precision: str) -> str:
    """Why `engine` cannot run a model whose layers keep states, and what to do; empty if it can."""
    runs = info_of(engine).states
    remedy = f"--precision {runs[-1]}" if runs else "--engine onnxruntime"
    return "" if precision in runs else f"which {engine} does not run in {precision}; build it with {remedy}"


def version_numbers(text: str) -> tuple[int, ...]:
    """Of a package: `10.3.0` -> (10, 3, 0); at most four numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def dotted(version: tuple[int, ...]) -> str:
    """(10, 3, 0) -> `10.3.0`."""
    return ".".join(map(str, version))
