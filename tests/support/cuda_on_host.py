"""The kernels of `engines/cuda/rules.cu` on the CPU: the same source, compiled by the host's compiler."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Threads of a block, so few that small vocabularies have several blocks and a barrier costs little.
THREADS = 16

SOURCE = Path(__file__).parents[2] / "engines/cuda/rules.cu"
RUNNER = Path(__file__).with_suffix(".cpp")
NAMES = (
    "extremes",
    "search",
    "weigh",
    "leave",
    "select_drawn",
    "select_best",
    "accept_drawn",
    "accept_best",
)
FLAGS = (
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-DTHREADS={THREADS}",
    "-shared",
    "-fPIC",
)


def compiled(source: str) -> ctypes.CDLL:
    """A library of the kernels that `source` has; kept for later processes."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    text = source + RUNNER.read_text() + " ".join(FLAGS)
    folder = Path(tempfile.gettempdir()) / f"specexport-rules-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if not library.exists():
        (kernels := folder / f"{name}-{os.getpid()}.cu").write_text(source)
        made = kernels.with_suffix(".so")
        command = [compiler, *FLAGS, f'-DRULES="{kernels}"', str(RUNNER), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(library)
        kernels.unlink()
    return ctypes.CDLL(str(library))


@cache
def _library() -> ctypes.CDLL:
    return compiled(SOURCE.read_text())


def kernel(name: str, library: Callable[[], ctypes.CDLL] = _library) -> Callable[..., None]:
    """A function as those of `fake_kernels.py`. library: gives the one to run."""

    def run(memory: Any, grid: tuple[int, int, int], block: tuple[int, int, int], *arguments: int) -> None:
        values = (ctypes.c_uint64 * len(arguments))(*arguments)
        assert library().launch(name.encode(), grid[0], grid[1], block[0], values) == 0, f"there is no {name}"

    return run
