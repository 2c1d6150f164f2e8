"""Whether this host is a Jetson, whose TensorRT and driver come with JetPack and not from pip."""

from __future__ import annotations

from pathlib import Path
from platform import machine

from ..errors import MissingPackageError

RELEASE = Path("/etc/nv_tegra_release")
MODEL = Path("/proc/device-tree/model")
FROM_JETPACK = "sudo apt install nvidia-jetpack, and use a venv made with --system-site-packages (docs/jetson.md)"
FROM_PIP = "pip install 'specexport[jetson]'"


def on_jetson() -> bool:
    """An aarch64 host with NVIDIA's release file, or whose board calls itself NVIDIA's."""
    if machine() != "aarch64":
        return False
    try:
        return RELEASE.exists() or b"NVIDIA" in MODEL.read_bytes()
    except OSError:
        return False


def missing_package(package: str, extra: str) -> MissingPackageError:
    """The error for a package of a GPU engine: on a Jetson TensorRT is JetPack's, and bindings are for its driver."""
    if on_jetson() and extra in ("tensorrt", "tensorrt-lean"):
        return MissingPackageError(package, extra, FROM_JETPACK)
    return MissingPackageError(package, "jetson" if on_jetson() and extra == "cuda" else extra)
