"""Starts `gpucheck`, or says in one line which package is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path


def _find_package() -> None:
    """Make the checkout's root importable as `specexport`, if that is not installed, whatever the root's name is."""
    if find_spec("specexport") is not None:
        return
    root = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location("specexport", root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["specexport"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    _find_package()  # also in the processes that this one starts, which run this file again
    from gpucheck.command import main  # type: ignore[import-not-found]  # this file's own folder is on the path when it runs
except ModuleNotFoundError as error:
    sys.exit(
        f"Error: the package {error.name} is not installed; docs/gpu.md says how to install specexport for each engine"
    )

if __name__ == "__main__":
    main(prog_name="gpu_check")
