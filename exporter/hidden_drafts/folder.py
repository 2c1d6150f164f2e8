"""What a folder holds of a draft that reads the target: its format and its tensors, without loading any.

Imports nothing slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import CheckpointError, UnsupportedModelError
from ..checkpoints.source import ALIKE, OTHER_FORMATS, WEIGHTS, find_weights, read_config, read_headers
from .fit import Published, module_name
from .kinds import recognize


def published(source: str, folder: Path) -> Published | None:
    """The draft in `folder`, where it is one that reads the target. Raises `CheckpointError`."""
    config, names = read_config(source, folder, "draft"), _names(source, folder)
    format = recognize(source, config, names)
    return Published(source, format, config, tensors_of(find_weights(source, folder))) if format else None


def _names(source: str, folder: Path) -> tuple[str, ...]:
    """Of its tensors, without what NeMo puts before those of a draft."""
    return tuple(name.removeprefix("model.") for name in read_headers(find_weights(source, folder)))


def tensors_of(files: Sequence[Path]) -> dict[str, tuple[Path, str, list[int]]]:
    """By the module's name of a tensor: its file, its name there and its shape. Raises `CheckpointError`."""
    return {module_name(name): (path, name, shape) for name, (path, shape) in read_headers(files).items()}


@contextmanager
def pickled_named(source: str) -> Iterator[None]:
    """Says of a folder without weights that it is such a draft, in files that are not read."""
    try:
        yield
    except CheckpointError:
        if pickled := _pickled(os.path.expanduser(source)):  # noqa: PTH111 - of Path, it refuses an unknown user
            raise CheckpointError(
                f"{source} is a draft with pickled weights ({pickled}), which are not read; save them as "
                f"{WEIGHTS} (safetensors.torch.save_file), or choose a draft that has it",
                "draft",
            ) from None
        raise


def _pickled(source: str) -> str | None:
    """The first of the files, where there is such a draft. Raises `UnsupportedModelError` for one of another kind."""
    if not os.path.isfile(os.path.join(source, "config.json")):  # noqa: PTH113, PTH118 - of names too long, too
        return None
    folder = Path(source)
    files = [path.name for kind in OTHER_FORMATS for path in sorted(folder.glob(kind))]
    if not files or any(folder.glob(ALIKE)):
        return None
    return files[0] if recognize(source, read_config(source, folder, "draft"), ()) else None


def refuse_as_target(source: str, folder: Path) -> None:
    """Raises `CheckpointError` for a draft of these."""
    names, config = _names(source, folder), read_config(source, folder)
    with suppress(UnsupportedModelError):  # of kinds that are no drafts here, some are whole models
        if recognize(source, config, names):
            raise CheckpointError(
                f"{source} is a draft that reads a target's hidden states; give it as --draft, and its target as "
                "--target",
                "target",
            )
