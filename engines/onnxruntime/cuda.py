"""ONNX Runtime on an NVIDIA GPU, for hosts without TensorRT: the `ort` dialect, whole rounds as CUDA graphs.

Sessions are opened with CUDA graphs, so ONNX Runtime refuses a model of which any part would run on the CPU: no bundle
is silently slow. docs/internals/onnxruntime-cuda.md says what is known about its kernels and versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle import Bundle
from ...errors import BundleError, EngineError
from ..base import Availability, Engine
from ..catalogue import dotted, version_numbers
from ..cuda.device import CudaDevice
from ..cuda.driver import find_gpu
from ..cuda.engine import assemble, release
from .device_graph import OrtDeviceGraph, explain, reason
from .installed import not_importable
from .session_options import check_threads, configure

NAME = "onnxruntime-cuda"
DIALECT = "ort"
PROVIDER = "CUDAExecutionProvider"
# Graphs captured by older versions read host memory that has been freed when they are replayed:
# microsoft/onnxruntime#32120, #32121.
OLDEST = (1, 31)
INSTALL = "pip install 'specexport[onnxruntime-gpu]'"
DRIVER = "libcuda.so.1"
INSTALL_DRIVER = "install the driver, or give the container access to the GPU"
# From this compute capability on, attention by flash alone. cuDNN, which ONNX Runtime would take for several tokens,
# does not split a long cache among multiprocessors: 2 % of a pass over 1024 rows of an 8B model on an H100.
FLASH = ((8, 0), "1")
# Other kernels for weights in blocks of 32. Passes of an 8B model in int4 over 1, 5 and 8 tokens take 4.1, 4.1 and
# 4.9 ms with them on an H100, and 3.1, 6.0 and 6.7 without.
BLOCKS_OF_SEVERAL = ("ep.cuda.fpa_intb_gemm", "1")
# Severities of ONNX Runtime's loggers.
WARNING, FATAL = 2, 4


def availability() -> Availability:
    """Whether onnxruntime-gpu is installed, is new enough, and can use a GPU."""
    if (problem := not_importable("onnxruntime-gpu")) is not None:
        return problem
    import onnxruntime as ort

    name = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        if _missing(DRIVER):  # another package would gain nothing here, and this one runs bundles on the CPU
            return Availability(False, f"there is no NVIDIA driver ({DRIVER})", INSTALL_DRIVER)
        remedy = f"pip uninstall onnxruntime onnxruntime-gpu, then {INSTALL}; only one of the two can be installed"
        return Availability(False, f"{name} is installed without its CUDA provider", remedy)
    if version_numbers(ort.__version__)[:2] < OLDEST:
        needed = dotted(OLDEST)
        return Availability(
            False,
            f"{name} replays CUDA graphs wrongly, {needed} or newer is needed",
            f"pip install 'onnxruntime-gpu>={needed}'",
        )
    try:
        find_gpu()
    except EngineError as error:  # also for bindings that are missing or newer than the driver
        detail, _, remedy = str(error).partition("; ")
        return Availability(False, detail, remedy)
    _preload(ort)
    return _probe(ort, 0) or Availability(True, f"{name}, CUDA")


def load(bundle: Bundle, threads: int = 0, device: int = 0) -> Engine:
    """Load the bundle's models onto GPU `device`. threads: of ONNX Runtime's CPU pool.

    Raises `ParameterError` for a number of threads out of range, `BundleError` for a graph that does not fit the
    manifest, and `EngineError` for a bundle in fp32, and where the GPU cannot be used or lacks the memory.
    """
    check_threads(threads)
    manifest = bundle.manifest
    if manifest.contract.precision == "fp32":  # attention would run on the CPU
        raise EngineError(
            f"{bundle.root} is in fp32, for which ONNX Runtime has no CUDA attention; build it with --precision fp16"
        )
    import onnxruntime as ort

    _preload(ort)
    if device and (problem := _probe(ort, device)):  # `availability` has already probed the first one
        raise EngineError(f"GPU {device}: {problem.detail}; {problem.remedy}")

    return _load(ort, bundle, threads, CudaDevice(device))


def _load(ort: Any, bundle: Bundle, threads: int, device: CudaDevice) -> Engine:
    """If anything fails, everything is released, `device` included."""
    manifest = bundle.manifest
    loaded: dict[str, OrtDeviceGraph] = {}  # by its path within the bundle

    def open_graph(name: str, wide: bool = False) -> OrtDeviceGraph:
        path = bundle.path(name)
        loaded[name] = OrtDeviceGraph(ort, _session(ort, path, threads, device, wide), path, device)
        return loaded[name]

    close = partial(release, device, loaded)
    try:
        with device.entered():
            for role, spec in manifest.pair.items():  # the larger one first
                if DIALECT not in spec.graphs:
                    raise BundleError(f"{bundle.root} has no {DIALECT} graph of {spec.source}; build the bundle again")
                verifies = role == "target" and "draft" in manifest.pair
                open_graph(spec.graphs[DIALECT], verifies).check(spec, manifest.contract)
                if spec.reads is not None and DIALECT in spec.reads.fuse:
                    open_graph(spec.reads.fuse[DIALECT]).check_fuse(spec.reads, manifest.target.tap_width)
            return assemble(NAME, bundle, device, loaded, close, on_device=not manifest.has_states)
    except BaseException:
        close()
        raise


def _preload(ort: Any) -> None:
    """Load the CUDA libraries that pip installed, if any: ONNX Runtime does not look there by itself."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find; `_probe` reports that
        ort.preload_dlls()


def _probe(ort: Any, number: int) -> Availability | None:
    """Why ONNX Runtime cannot copy a number to that GPU; None if it can."""
    ort.set_default_logger_severity(FATAL)  # what it logs is reported below
    try:
        ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", number)
        return None
    except Exception as error:  # onnxruntime raises its own types straight from C++
        found = reason(error)
    finally:
        ort.set_default_logger_severity(WARNING)
    library = _missing_library(Path(ort.__file__).parent / "capi")
    if library is None:
        remedy = "check nvidia-smi, CUDA_VISIBLE_DEVICES and the driver's version"
        return Availability(False, f"no GPU can be used: {found}", remedy)
    if "libcuda." in library or "nvcuda." in library:
        return Availability(False, f"there is no NVIDIA driver: {library}", INSTALL_DRIVER)
    remedy = "pip install 'onnxruntime-gpu[cuda,cudnn]', or install the CUDA toolkit of this major version"
    return Availability(False, f"the CUDA provider cannot be loaded: {library}", remedy)


def _missing_library(folder: Path) -> str | None:
    """Why the provider's library cannot be loaded, None if it can. Call it only after ONNX Runtime itself has tried."""
    return next((why for path in folder.glob("*onnxruntime_providers_cuda.*") if (why := _missing(str(path)))), None)


def _missing(library: str) -> str | None:
    """Why a shared library cannot be loaded, None if it can."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return reason(error)
    return None


def _session(ort: Any, path: Path, threads: int, device: CudaDevice, wide: bool = False) -> Any:
    """wide: whether most passes are over two to eight tokens."""
    options = ort.SessionOptions()
    configure(options, threads)
    options.log_severity_level = FATAL  # its errors are raised anyway
    # With a pattern of the first run's memory, the second would allocate, which no capture allows.
    options.enable_mem_pattern = False
    # Its arena would take up to twice the memory of the weights.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if wide:
        options.add_session_config_entry(*BLOCKS_OF_SEVERAL)
    # It captures nothing (`RUN_OPTIONS`), but with the first setting it refuses what would run on the CPU.
    settings = {"enable_cuda_graph": "1", "device_id": str(device.index), "user_compute_stream": str(device.stream)}
    if device.compute_capability >= FLASH[0]:
        settings["sdpa_kernel"] = FLASH[1]
    ort.set_default_logger_severity(FATAL)  # 1.31 warns of a plugin for the provider that it does not need
    try:
        session = ort.InferenceSession(
            path, options, providers=[(PROVIDER, settings), "CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # onnxruntime raises its own types straight from C++
        raise explain(error, f"ONNX Runtime cannot load {path}") from None
    finally:
        ort.set_default_logger_severity(WARNING)
    if PROVIDER not in session.get_providers():  # it continues without the provider, and says so only in its log
        raise EngineError(f"ONNX Runtime loaded {path} on the CPU instead of the GPU; see: specexport doctor")
    return session
