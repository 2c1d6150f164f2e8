"""Where the peers' environments and converted models are: outside the repository. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SOURCE = "llama-cpp-python==0.3.36"  # its source distribution bundles llama.cpp


def base() -> Path:
    """`SPECEXPORT_PEERS`, or a folder of the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPECEXPORT_PEERS") or Path(cache) / "specexport-peers")


def environment(name: str) -> Path:
    return base() / name


@dataclass(frozen=True)
class Llamacpp:
    """source: llama.cpp's own tree; build: of cmake; program: the runner of llamacpp.cpp."""

    source: Path
    build: Path
    program: Path


def llamacpp() -> Llamacpp:
    folder = base() / "llamacpp-build"
    return Llamacpp(folder / "source/vendor/llama.cpp", folder / "build", folder / "llamacpp")
