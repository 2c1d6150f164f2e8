"""Starts `gpucheck`, or says in one line which package it lacks."""

from __future__ import annotations

import sys

try:
    from gpucheck.command import main  # type: ignore[import-not-found]  # this file's own folder is on the path when it runs
except ModuleNotFoundError as error:
    sys.exit(
        f"Error: the package {error.name} is not installed; from the checkout: pip install -e '.[export,tensorrt]'"
    )

if __name__ == "__main__":
    main(prog_name="gpu_check")
