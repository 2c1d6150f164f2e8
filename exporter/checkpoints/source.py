"""Where a checkpoint is: a folder, a GGUF file, or one of the hub.

Imports nothing slow, so that typing errors show at once.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from ...errors import CheckpointError, MissingPackageError
from .weight_files import ALIKE, find_weights, refuse_adapter

GGUF = ".gguf"
MAGIC = b"GGUF"
NEEDED = ("gguf", "accelerate")  # by transformers' loader
INSTEAD = "give the safetensors checkpoint that it was made from"


def find_local(source: str) -> Path | None:
    """The folder or GGUF file that `source` is, looked at; None for one of the hub.

    Raises `CheckpointError`, and `MissingPackageError` where a GGUF file cannot be read.
    """
    try:
        path = Path(source).expanduser()
        found = path.exists()
    except (RuntimeError, OSError) as error:  # ~nobody; a name too long
        raise CheckpointError(f"{source} cannot be looked up: {first_line(error)}") from None
    if is_gguf(source):
        if not found:
            hub_id, colon, _ = source.partition(":")
            if not colon or hub_id.count("/") > 1 or hub_id.startswith((".", "/", "~")):
                raise CheckpointError(
                    f"there is no file {source}; give a GGUF file, or one on the hub as hub-id:file.gguf"
                )
            return None
        check_gguf(source, path)
        return path
    if not found:
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            told = f"there is no folder {source}; give a Hugging Face checkpoint: a folder or a hub id"
            raise CheckpointError(told, code="checkpoint_not_found")
        return None
    check_folder(source, path)
    return path


def is_gguf(source: str) -> bool:
    return source.lower().endswith(GGUF)


def check_gguf(source: str, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{source} is a folder; give a GGUF file")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name):
        raise CheckpointError(f"{source} is one part of several, which transformers cannot read; {INSTEAD}")
    for name in NEEDED:
        if find_spec(name) is None:
            raise MissingPackageError(name, "gguf")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}") from None
    if magic != MAGIC:
        found = f"starts with {magic!r}" if magic else "is empty"
        raise CheckpointError(f"{source} is not a GGUF file: it {found}, expected {MAGIC!r}")


def check_folder(source: str, folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{source} is a file; give the folder that holds config.json and *.safetensors, or a *.gguf file"
        )
    refuse_adapter(source, folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{source} has no config.json; give a Hugging Face checkpoint: a folder or a hub id")
    if not any(folder.glob(ALIKE)) and (files := sorted(folder.glob(f"*{GGUF}"))):
        raise CheckpointError(f"{source} has no {ALIKE}; give its GGUF file: {files[0]}")
    find_weights(source, folder)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
