"""Finished stages of earlier builds, kept by what they were made from.

A stage is a folder of files under the cache folder, named by a digest of everything its content depends on: checkpoint,
contract, the sources that make it and the versions of the packages that trace. It is written next to its place and
renamed, so one that is there is whole; its files are compared with their recorded digests before they are used again.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..atomic import FULL, discard, remove_left, temporary_folder
from ..bundle import list_files
from ..errors import OutputError

# Of the packages whose behaviour ends up in a bundle.
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "ml_dtypes",
    "gguf",
)


def package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


UNUSED_DAYS = 7
STAGE = "stage.json"
KEY = re.compile(r"[0-9a-f]{32}")


def open_cache(cache: Path) -> Path:
    """Make the folder if need be. Raises `OutputError` when it is none, or cannot be written."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file is in its way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        problem, code = f"created: {reason}", "disk_full" if error.errno in FULL else None
    else:
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
        problem, code = "written", None
    raise OutputError(f"the cache folder {cache} cannot be {problem}; choose another --cache", "cache", code=code)


def stage_key(maker: str, **inputs: Any) -> str:
    """Digest of `inputs` (JSON values), of the sources that make the stage, and of the tracing packages' versions.

    maker: `__file__` of the module whose code makes it.
    """
    inputs["sources"] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources(maker)]
    inputs["packages"] = package_versions()
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


@functools.cache
def sources(maker: str) -> tuple[Path, ...]:
    """The file `maker`, and all of the package that it imports, however deep."""
    known, left = set[Path](), {Path(maker)}
    while left:
        path = left.pop()
        known.add(path)
        left |= _imported(path) - known
    return tuple(sorted(known))


def _imported(path: Path) -> set[Path]:
    """The files that the relative imports of a file run."""
    places = set[Path]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            start, names = path.parents[node.level - 1], (node.module or "").split(".")
            module = start.joinpath(*names)
            places |= {module, *(module / alias.name for alias in node.names)}
            places |= {start.joinpath(*names[:count]) for count in range(1, len(names))}
    files = {file for place in places for file in (place.with_name(f"{place.name}.py"), place / "__init__.py")}
    return {file for file in files if file.is_file()}


def finished_stage(cache: Path, key: str) -> Path | None:
    """The stage's folder when it is there and unharmed; a harmed one is removed."""
    folder = cache / key
    try:
        recorded = json.loads((folder / STAGE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        discard(folder)
        return None
    present = {name: asdict(entry) for name, entry in list_files(folder).items() if name != STAGE}
    if present != recorded:
        discard(folder)
        return None
    try:
        os.utime(folder)
    except FileNotFoundError:  # another build took it for long unused, meanwhile
        return None
    return folder


def make_stage(cache: Path, key: str, make: Callable[[Path], None]) -> Path:
    """Run `make(folder)` in a temporary folder and keep the result under `key`."""
    _prune(open_cache(cache))
    folder = cache / key
    with temporary_folder(folder) as temporary:
        make(temporary)
        recorded = {name: asdict(entry) for name, entry in list_files(temporary).items()}
        (temporary / STAGE).write_text(json.dumps(recorded), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if finished_stage(cache, key) is None:  # else another process was first, with the same content
                raise
    return folder


def _prune(cache: Path) -> None:
    """Discard what killed builds left, and what is ours and long unused. The folder is the user's choice and may hold
    anything else.

    Stages are dated by the wall clock: if it was wrong, some are made once more, or kept for longer.
    """
    remove_left(cache, KEY)
    limit = time.time() - UNUSED_DAYS * 86400
    for folder in cache.iterdir():
        with suppress(FileNotFoundError):  # discarded by another build
            if KEY.fullmatch(folder.name) and folder.is_dir() and folder.stat().st_mtime < limit:
                discard(folder)
