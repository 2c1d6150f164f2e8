"""ONNX Runtime on an NVIDIA GPU, for hosts without TensorRT: the `ort` dialect, one CUDA graph per width.

Sessions are opened with CUDA graphs, so ONNX Runtime refuses a model of which any part would run on the CPU: no bundle
is silently slow. docs/internals/onnxruntime-cuda.md says what is known about its kernels and versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle import Bundle, ModelSpec
from ...errors import BundleError, EngineError
from ..base import Availability, Engine, OpenedDraft
from ..cuda.device import CudaDevice
from ..tensorrt.engine import _engine as engine_of
from .cuda_decoder import OrtCudaDecoder, OrtDevice, explain, reason
from .graphs import OrtGraph
from .hidden import fuse_signatures
from .plan import OrtPlan
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
# Severities of ONNX Runtime's loggers.
WARNING, FATAL = 2, 4


def availability() -> Availability:
    """Whether onnxruntime-gpu is installed, is new enough, and can use a GPU."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Availability(False, "onnxruntime-gpu is not installed", INSTALL)
    try:
        import onnxruntime as ort
    except ImportError as error:  # a shared library that is missing or built for another system
        return Availability(
            False, f"onnxruntime is installed, but cannot be imported: {reason(error)}", "install it again"
        )
    name = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        if _missing(DRIVER):  # another package would gain nothing here, and this one runs bundles on the CPU
            return Availability(False, f"there is no NVIDIA driver ({DRIVER})", INSTALL_DRIVER)
        remedy = f"pip uninstall onnxruntime onnxruntime-gpu, then {INSTALL}; only one of the two can be installed"
        return Availability(False, f"{name} is installed without its CUDA provider", remedy)
    release = re.match(r"(\d+)\.(\d+)", ort.__version__)
    if release is None or (int(release[1]), int(release[2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        return Availability(
            False,
            f"{name} replays CUDA graphs wrongly, {needed} or newer is needed",
            f"pip install 'onnxruntime-gpu>={needed}'",
        )
    _preload(ort)
    return _probe(ort, OrtDevice("cuda", 0)) or Availability(True, f"{name}, CUDA")


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
    place = OrtDevice("cuda", device)
    if device and (problem := _probe(ort, place)):  # `availability` has already probed the first one
        raise EngineError(f"GPU {device}: {problem.detail}; {problem.remedy}")

    if not manifest.target.has_states:
        return _load_rounds(ort, bundle, threads, device)

    def decoder(spec: ModelSpec, drafts: bool) -> OrtCudaDecoder:
        if DIALECT not in spec.graphs:
            raise BundleError(f"{bundle.root} has no {DIALECT} graph of {spec.source}; build the bundle again")
        path, fuse = bundle.path(spec.graphs[DIALECT]), None
        if (reads := spec.reads) is not None and DIALECT in reads.fuse:
            fusing = bundle.path(reads.fuse[DIALECT])
            fuse = OrtGraph(fusing, _session(ort, fusing, threads, device, captures=False))
            fuse.check(fuse_signatures(reads, manifest.target.tap_width))
        session = _session(ort, path, threads, device)
        return OrtCudaDecoder(ort, session, place, path, spec, manifest.contract, drafts, fuse)

    target = decoder(manifest.target, drafts=False)  # the larger one first
    draft = decoder(manifest.drafts[0].model, drafts=True) if manifest.drafts else None

    def warm_up() -> None:
        for decoder in filter(None, (target, draft)):
            decoder.warm_up()

    def close() -> None:
        for decoder in filter(None, (draft, target)):
            decoder.close()

    opened = OpenedDraft(draft, draft.head, draft.reader) if draft else None
    return Engine(NAME, DIALECT, target, opened, close=close, device=device, taps=target.taps, warm_up=warm_up)


def _load_rounds(ort: Any, bundle: Bundle, threads: int, number: int) -> Engine:
    manifest = bundle.manifest
    device, loaded = CudaDevice(number), {}

    def close() -> None:
        device.synchronize()
        for plan in loaded.values():
            plan.close()
        device.close()

    graphs = [model.graphs[DIALECT] for model in manifest.pair.values()]
    graphs += [model.reads.fuse[DIALECT] for model in manifest.pair.values() if model.reads and model.reads.fuse]
    rules = [rule.graph for rule in manifest.rules]
    import sys
    if os.environ.get("SPECX_NO_RULES"):
        rules = []
    with device.entered():
        for graph in graphs + rules:
            try:
                session = _session(ort, bundle.path(graph), threads, number, stream=device.stream)
            except EngineError as error:
                if graph not in rules: raise
                print("RULE", graph, error, file=sys.stderr)
                continue
            loaded[graph] = OrtPlan(ort, session, bundle.path(graph), device, manifest.contract.capacity)
        if any(graph not in loaded for graph in rules):
            for graph in rules: loaded.pop(graph, None)
        return engine_of(NAME, bundle, device, loaded, close)


def _preload(ort: Any) -> None:
    """Load the CUDA libraries that pip installed, if any: ONNX Runtime does not look there by itself."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find; `_probe` reports that
        ort.preload_dlls()


def _probe(ort: Any, place: OrtDevice) -> Availability | None:
    """Why ONNX Runtime cannot copy a number to that GPU; None if it can."""
    ort.set_default_logger_severity(FATAL)  # what it logs is reported below
    try:
        ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), *place)
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


def _session(ort: Any, path: Path, threads: int, device: int = 0, captures: bool = True, stream: int = 0) -> Any:
    """captures: whether its passes are CUDA graphs."""
    options = ort.SessionOptions()
    configure(options, threads)
    options.log_severity_level = FATAL  # its errors are raised anyway
    # Its arena would take up to twice the memory of the weights.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    settings = {"device_id": str(device), "enable_cuda_graph": str(int(captures))}
    if stream:
        settings["user_compute_stream"] = str(stream)
        options.enable_mem_pattern = False  # its second run would allocate, which no capture allows
        if os.environ.get("SPECX_SDPA"): settings["sdpa_kernel"] = os.environ["SPECX_SDPA"]
    providers = [(PROVIDER, settings), "CPUExecutionProvider"]
    try:
        ort.set_default_logger_severity(FATAL)  # 1.31 warns of a plugin for the provider that it does not need
        session = ort.InferenceSession(path, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises its own types straight from C++
        raise explain(error, f"ONNX Runtime cannot load {path}") from None
    finally:
        ort.set_default_logger_severity(WARNING)
    if PROVIDER not in session.get_providers():  # it continues without the provider, and says so only in its log
        raise EngineError(f"ONNX Runtime loaded {path} on the CPU instead of the GPU; see: specexport doctor")
    return session
