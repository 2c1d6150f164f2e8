"""Which wheels a GPU host needs, and their download by pip."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .install import KitError

# Each engine's library. onnxruntime-gpu 1.31 is built with CUDA 13.0; TensorRT and TensorRT-RTX need only the driver.
ENGINES = {
    "onnxruntime-cuda": ("onnxruntime-gpu>=1.31",),
    "tensorrt-rtx": ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13", "tensorrt-rtx-cu13-libs"),
    "tensorrt": ("tensorrt-cu13-bindings", "tensorrt-cu13"),
}
# TensorRT's libraries, which PyPI does not have: a file to bring, of the version that the others then have.
BROUGHT = "tensorrt_cu13_libs-*.whl"
# Needed by the command line and gpu_check, in addition to what an installation of torch and transformers has anyway.
COMMAND_LINE = ("click", "rich", "markdown-it-py", "mdurl", "pygments")
# The parts of CUDA 13 that onnxruntime-gpu needs, and the engines' driver bindings. torch for CUDA 13 requires all of
# them.
CUDA = (
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc",
    "nvidia-nvjitlink",
    "nvidia-curand",
    "nvidia-cufft",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
)
# Published only as source distributions, which name their parts and import them: their wheels are built here.
BUILT_HERE = ("tensorrt-cu13", "tensorrt-rtx-cu13")


@dataclass(frozen=True)
class Host:
    """python: e.g. `3.12`. platform: the newest one that the host supports, e.g. `manylinux_2_28_x86_64`."""

    python: str
    platform: str

    @property
    def platforms(self) -> Iterator[str]:
        """All platforms that the host supports, since pip needs each by its exact name."""
        match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", self.platform)
        if match is None:
            yield self.platform
            return
        minor, machine = int(match[1]), match[2]
        yield from (f"manylinux_2_{older}_{machine}" for older in range(minor, 4, -1))
        yield from (f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1"))


def packages(engines: Sequence[str], cuda: bool, brought: Path | None) -> list[str]:
    """The packages to download, the largest last, so that an interrupted transfer has brought whole wheels.

    brought: TensorRT's libraries, whose version the others then have; needed for `tensorrt` alone.
    """
    libraries = [name for engine in engines if engine != "tensorrt" for name in ENGINES[engine]]
    if "tensorrt" in engines:
        assert brought is not None, "TensorRT's libraries are brought"
        libraries += [f"{name}=={brought.name.split('-')[1]}" for name in ENGINES["tensorrt"]]
    return [*COMMAND_LINE, *(CUDA if cuda else ()), *libraries]


def find_brought(folder: Path) -> Path:
    """TensorRT's libraries in `folder`. Raises `KitError`."""
    found = sorted(folder.glob(BROUGHT))
    if len(found) != 1:
        raise KitError(
            f"{folder} has {len(found)} files {BROUGHT}, one is needed; NVIDIA's own package index alone has them: put "
            "the one for the GPU host's platform there, or leave out --engine tensorrt for a host that has TensorRT"
        )
    return found[0]


def download(package: str, host: Host, folder: Path) -> Path:
    """Download the newest wheel of `package` for the host into `folder`, unless there is one. Raises `KitError`."""
    if package.partition("=")[0] in BUILT_HERE:
        arguments = ["wheel", "--wheel-dir", str(folder)]
    else:
        kind = ["--only-binary=:all:", "--implementation=cp", f"--python-version={host.python}"]
        arguments = ["download", *kind, *(f"--platform={name}" for name in host.platforms), "--dest", str(folder)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        *arguments,
        "--no-deps",
        package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    found = re.search(r"(?:Saved|File was already downloaded|filename=).*?([^/=\s]+\.whl)", done.stdout)
    if done.returncode or found is None:
        lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise KitError(f"pip gives no wheel of {package}: {errors[-1] if errors else 'it says nothing'}")
    return folder / found[1]
