"""Starts `gpukit`, or says in one line which package is missing."""

from __future__ import annotations

import sys

try:
    from gpukit.command import main  # type: ignore[import-not-found]  # this file's own folder is on the path when it runs
except ModuleNotFoundError as error:
    sys.exit(f"Error: the package {error.name} is not installed; run: pip install {error.name}")

if __name__ == "__main__":
    main(prog_name="gpu_kit")
