"""Another manifest for a bundle that is there, in one step. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...bundle import MANIFEST, Bundle, Manifest, write_manifest
from ...errors import OutputError
from ...locks import lock
from ...runtime.policy.files import forget_decisions
from .atomic_folder import discard

# Where additional drafts have their folders.
DRAFTS = "drafts"


def replace_manifest(
    bundle: Bundle, manifest: Manifest, scratch: Path, moved: tuple[Path, Path] | None = None
) -> Bundle:
    """In one step, and then remove the files that nobody names any more.

    scratch: a folder on the bundle's disk. moved: a folder of new files, and where in the bundle it goes. Until the
    step the bundle is unchanged. Raises `OutputError` where another command changes it, or changed it meanwhile.
    """
    with _alone(bundle.root):
        if _on_disk(bundle) != bundle.manifest:
            raise OutputError(f"{bundle.root} was changed by another command in the meantime; run this command again")
        try:
            if moved is not None and moved[1].name not in _folders(bundle.manifest):
                discard(moved[1])  # of a run that was killed
                moved[0].rename(moved[1])
            write_manifest(scratch, manifest)
            if set(bundle.manifest.files) - set(manifest.files) or bundle.manifest.drafts[:1] != manifest.drafts[:1]:
                forget_decisions(bundle)  # which speak of another draft
            (scratch / MANIFEST).replace(bundle.root / MANIFEST)
        except BaseException:
            if moved is not None and moved[1].name not in _folders(_on_disk(bundle)):
                discard(moved[1])
            raise
        with suppress(OSError):  # what cannot be removed only takes room
            _remove_unnamed(bundle, manifest)
    return Bundle(bundle.root, manifest)


def _remove_unnamed(bundle: Bundle, manifest: Manifest) -> None:
    for name in set(bundle.manifest.files) - set(manifest.files):
        (bundle.root / name).unlink(missing_ok=True)
    for folder in (bundle.root / DRAFTS).iterdir():
        if folder.name not in _folders(manifest) and not folder.name.startswith("."):  # of another run, which is at it
            discard(folder)


def _folders(manifest: Manifest) -> set[str]:
    return {name.split("/")[1] for name in manifest.files if name.startswith(f"{DRAFTS}/")}


def _on_disk(bundle: Bundle) -> Manifest:
    return Bundle.open(bundle.root, check_digests=False).manifest


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Raises `OutputError` while another command is at the same bundle."""
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            lock(folder)
        except BlockingIOError:
            raise OutputError(f"{root} is being changed by another command; run this command again") from None
        yield
    finally:
        os.close(folder)
