"""Whether this host is a Jetson, where TensorRT and the driver come with JetPack, not from pip."""

from __future__ import annotations

from pathlib import Path
from platform import machine

from ..errors import MissingPackageError

RELEASE = Path("/etc/nv_tegra_release")
MODEL = Path("/proc/device-tree/model")
FROM_JETPACK = "sudo apt install nvidia-jetpack, and use a venv made with --system-site-packages (docs/jetson.md)"
FROM_PIP = "pip install 'specexport[jetson]'"


def on_jetson() -> bool:
    """Whether this is an aarch64 host with NVIDIA's release file, or with a board whose model names NVIDIA."""
    if machine() != "aarch64":
        return False
    try:
        return RELEASE.exists() or b"NVIDIA" in MODEL.read_bytes()
    except OSError:
        return False


def missing_package(package: str, extra: str) -> MissingPackageError:
    """The error for a missing package of a GPU engine. On a Jetson, TensorRT comes with JetPack, and the CUDA bindings
    must fit its driver.
    """
    if on_jetson() and extra in ("tensorrt", "tensorrt-lean"):
        return MissingPackageError(package, extra, FROM_JETPACK)
    return MissingPackageError(package, "jetson" if on_jetson() and extra == "cuda" else extra)
