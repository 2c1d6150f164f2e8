"""Memory for builds that need more of it than the host has: weights in files, and what nothing uses."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor, nn


def move_to_disk(model: nn.Module, folder: Path) -> None:
    """Replace the parameters of `model` by mappings of files in `folder`, whose pages the system may write and forget.
    Those that are such mappings stay.

    The files have no names but on NFS, and their space is free again once the parameters are gone. Raises `OSError`.
    """
    for parameter in model.parameters():
        if parameter.numel() and parameter.untyped_storage().filename is None:
            parameter.data = _mapped(parameter.data, folder)


def _mapped(tensor: Tensor, folder: Path) -> Tensor:
    with NamedTemporaryFile(dir=folder) as file:
        # Written, since a store to a mapping of a full disk would kill the process.
        file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        return torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)


def give_back() -> None:
    """Return to the system what nothing uses: models and graphs refer to each other in cycles, and glibc keeps what
    matrices below 32 MiB took, where ONNX Runtime's sessions do not look.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
