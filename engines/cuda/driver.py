"""The CUDA driver through `cuda.bindings` (12.9.1 or newer, 13): calls that raise errors, and the GPUs of this host.

From 12.9.1 on, a call releases the interpreter's lock: before, a wait for a round stopped every other thread. On a
Jetson the driver and TensorRT come with JetPack, not from pip, and the bindings must fit.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import index
from pathlib import Path
from platform import machine
from typing import Any, NamedTuple

from ...errors import EngineError, MissingPackageError
from ..catalogue import dotted, version_numbers

OLDEST = (12, 9, 1)  # of cuda-bindings
SUCCESS, OUT_OF_MEMORY, STUB_LIBRARY, NO_DEVICE = 0, 2, 34, 100  # of CUresult
_NO_LIBRARY = (
    "the NVIDIA driver's library (libcuda) was not found; install the driver, or give the container access to the GPU"
)
# Of a Jetson.
TEGRA_RELEASE = Path("/etc/nv_tegra_release")
BOARD_MODEL = Path("/proc/device-tree/model")
FROM_JETPACK = "sudo apt install nvidia-jetpack, and use a venv made with --system-site-packages (docs/jetson.md)"
FROM_PIP = "pip install 'specexport[jetson]'"


class Gpu(NamedTuple):
    """driver: the newest CUDA version that the driver supports, e.g. `13.0`. memory: total, in bytes."""

    name: str
    compute_capability: tuple[int, int]
    driver: str
    memory: int


class Driver:
    """Calls functions of `bindings`, the module `cuda.bindings.driver`, which return a status and at most one value.

    number: the number of a handle that they return, for other libraries.
    Only call functions that take the same arguments in the bindings of CUDA 12 and 13.
    """

    def __init__(self, bindings: Any, number: Callable[[Any], int] = index) -> None:
        self.bindings, self.number = bindings, number

    def call(self, function: str, *arguments: Any) -> Any:
        """The value that `function` returns, or None. Raises `EngineError` with the driver's own message."""
        status, value = self.attempt(function, *arguments)
        if status != SUCCESS:
            raise self.error(function, status)
        return value

    def attempt(self, function: str, *arguments: Any) -> tuple[int, Any]:
        """The status and the value, which is None or meaningless if the status is not `SUCCESS`."""
        status, *values = getattr(self.bindings, function)(*arguments)
        return status, values[0] if values else None

    def error(self, function: str, status: int) -> EngineError:
        _, name = self.bindings.cuGetErrorName(status)
        _, meaning = self.bindings.cuGetErrorString(status)
        known = f"{name.decode()}, {meaning.decode()}" if name and meaning else f"status {int(status)}"
        return EngineError(f"the CUDA driver refused {function}: {known}")


def on_jetson() -> bool:
    """Whether this is an aarch64 host with NVIDIA's release file, or with a board whose model names NVIDIA."""
    if machine() != "aarch64":
        return False
    try:
        return TEGRA_RELEASE.exists() or b"NVIDIA" in BOARD_MODEL.read_bytes()
    except OSError:
        return False


def missing_package(package: str, extra: str) -> MissingPackageError:
    """The error for a missing package of a GPU engine. On a Jetson, TensorRT comes with JetPack, and the CUDA bindings
    must fit its driver.
    """
    if on_jetson() and extra in ("tensorrt", "tensorrt-lean"):
        return MissingPackageError(package, extra, FROM_JETPACK)
    return MissingPackageError(package, "jetson" if on_jetson() and extra == "cuda" else extra)


def load_driver() -> Driver:
    """The installed driver bindings. Raises `MissingPackageError` without cuda-bindings, `EngineError` if too old."""
    try:
        bindings, version = import_module("cuda.bindings.driver"), import_module("cuda.bindings").__version__
    except ModuleNotFoundError:
        raise missing_package("cuda-bindings", "cuda") from None
    if version_numbers(version) < OLDEST:
        newer = FROM_PIP if on_jetson() else f"pip install 'cuda-bindings>={dotted(OLDEST)},<14'"
        raise EngineError(f"cuda-bindings {version} is too old; {newer}")
    return Driver(bindings, import_module("cuda.bindings.utils").get_cuda_native_handle)


def find_gpu(index: int = 0, driver: Driver | None = None) -> Gpu:
    """Describe GPU number `index`; also initializes the driver.

    Raises `EngineError` if a package, the driver or the GPU is missing, or the driver is too old.
    """
    driver = driver or load_driver()
    version = _version(driver)
    status, _ = driver.attempt("cuInit", 0)
    if status == NO_DEVICE:
        raise EngineError("the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    if status != SUCCESS:
        raise driver.error("cuInit", status)
    count = driver.call("cuDeviceGetCount")
    if not 0 <= index < count:
        raise EngineError(f"there is no GPU {index}; this host has {count}, counted from 0")
    device = driver.call("cuDeviceGet", index)
    attribute = driver.bindings.CUdevice_attribute
    major = driver.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = driver.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    name = driver.call("cuDeviceGetName", 256, device).partition(b"\0")[0].decode(errors="replace")
    return Gpu(name, (major, minor), _readable(version), driver.call("cuDeviceTotalMem", device))


def _version(driver: Driver) -> int:
    """The CUDA version that the driver supports, 12060 for 12.6. It can serve bindings of that major version, whatever
    their minor version, and of older ones. Raises `EngineError` if the bindings are newer, or without a driver.
    """
    try:
        status, version = driver.attempt("cuDriverGetVersion")
    except RuntimeError:  # bindings of both major versions look for the library at the first call
        raise EngineError(_NO_LIBRARY) from None
    if status == STUB_LIBRARY:
        raise EngineError(_NO_LIBRARY)
    if status != SUCCESS:
        raise driver.error("cuDriverGetVersion", status)
    needed = driver.bindings.CUDA_VERSION // 1000
    if version // 1000 < needed:
        raise EngineError(
            f"the NVIDIA driver supports CUDA {_readable(version)}, the installed cuda-bindings need {needed}.0 or "
            "newer; "
            f"update the driver, or: pip install 'cuda-bindings<{needed}'"
        )
    return int(version)


def _readable(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def out_of_memory(purpose: str, requested: int, free: int, total: int) -> EngineError:
    """The error for a failed allocation of `requested` bytes. free, total: bytes of device memory."""
    return EngineError(
        f"out of device memory for {purpose}: {size_text(requested)} requested, {size_text(free)} of "
        f"{size_text(total)} free; "
        "lower --max-seq-len, choose a smaller --precision or close other programs that use the GPU",
        code="out_of_device_memory",
    )


def size_text(size: int) -> str:
    """A number of bytes as text, e.g. `1.5 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
