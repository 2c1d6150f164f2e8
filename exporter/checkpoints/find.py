"""A checkpoint by what the user typed: a folder, a GGUF file, or one of the hub, which is downloaded."""

from __future__ import annotations

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ...errors import CheckpointError
from .checkpoint import Checkpoint
from .gguf import GgufCheckpoint
from .source import check_folder, check_gguf, download, find_local, is_gguf

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


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
            path = download(hub_id, [file]) / file
            if not path.exists():
                raise CheckpointError(
                    f"{hub_id} on the hub has no file {file}; see the list of files on its page",
                    code="checkpoint_not_found",
                )
            check_gguf(source, path)
        return GgufCheckpoint(source, path.parent, path.name)
    if path is None:
        path = download(source, WANTED)
        check_folder(source, path)
    return Checkpoint(source, path)
