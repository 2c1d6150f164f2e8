"""A checkpoint by what the user typed: a folder, a GGUF file, or one of the hub, which is downloaded."""

from __future__ import annotations

from pathlib import Path

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ...errors import CheckpointError
from ...runtime.hub import hub_reason
from .checkpoint import Checkpoint
from .gguf import GgufCheckpoint
from .source import check_folder, check_gguf, find_local, is_gguf

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
UNWANTED = ["consolidated*", "*/*.safetensors"]  # the same weights again, in forms that transformers does not load


def find_checkpoint(source: str) -> Checkpoint:
    """A local folder or GGUF file, or else a hub id (of a file: `hub-id:file.gguf`).

    Raises `CheckpointError`, and `MissingPackageError` where a GGUF file cannot be read.
    """
    disable_progress_bar()  # the build shows its own
    set_verbosity_error()
    path = find_local(source)
    if is_gguf(source):
        if path is None:
            hub_id, _, file = source.partition(":")
            path = _download(hub_id, [file]) / file
            if not path.exists():
                raise CheckpointError(
                    f"{hub_id} on the hub has no file {file}; see the list of files on its page",
                    code="checkpoint_not_found",
                )
            check_gguf(source, path)
        return GgufCheckpoint(source, path.parent, path.name)
    if path is None:
        path = _download(source, WANTED)
        check_folder(source, path)
    return Checkpoint(source, path)


def _download(source: str, wanted: list[str]) -> Path:
    """The folder of a hub id, with the files that `wanted` names. Raises `CheckpointError`."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=wanted, ignore_patterns=UNWANTED))
    except Exception as error:  # network, permission and name errors, each of another type
        raise CheckpointError(
            f"{source} is no folder here, and it could not be downloaded from the hub: {hub_reason(error)}; check "
            "the path or name",
            code="checkpoint_not_found",
        ) from None
