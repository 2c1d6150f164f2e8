"""Writes a Triton model repository with a bundle: `specexport triton-repository`."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from ...bundle import Bundle
from ...bundle.files import clone_or_copy
from ...bundle.output import check_free, new_folder
from ...errors import OutputError
from .config import streaming_config, whole_config
from .layout import BUNDLE, CONFIG, ENTRY, PATHS
from .options import RepositoryOptions

WHOLE = "_whole"  # suffix of the name of the model for whole answers


def write_repository(bundle: Path, output: Path, options: RepositoryOptions) -> tuple[str, str]:
    """Make the folder `output`, whole or not at all; returns the names of its models, the one that streams first.

    Raises `BundleError`, `ParameterError`, and `OutputError` if `output` exists or cannot be written.
    """
    check_free(output, None)
    opened = Bundle.open(bundle)
    options.check(opened)
    name = options.model_name(opened)
    whole = name + WHOLE
    with new_folder(output, None) as folder:
        _write_model(folder / name, streaming_config(name, options), options)
        _write_model(folder / whole, whole_config(whole, name, options), options)
        for source in sorted(path for path in bundle.rglob("*") if path.is_file()):
            _place(source, folder / name / BUNDLE / source.relative_to(bundle), options.hard_links)
    return name, whole


def _write_model(folder: Path, config: str, options: RepositoryOptions) -> None:
    entry = folder / ENTRY
    entry.parent.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("entry.py"), entry)
    (folder / CONFIG).write_text(config, encoding="utf-8")
    if options.python_path:
        lines = [f"{one.resolve()}\n" for one in options.python_path]
        (folder / PATHS).write_text("".join(lines), encoding="utf-8")


def _place(source: Path, destination: Path, hard_links: bool) -> None:
    if not hard_links:
        clone_or_copy(source, destination)
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise OutputError(f"{source} is on another file system than the output; leave out --hard-links") from None
