"""Another manifest for a bundle that is there, in one step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..atomic import alone, discard, sync
from ..bundle import MANIFEST, Bundle, Manifest, write_manifest
from ..errors import OutputError

UNCHANGED = "the bundle is unchanged"


def replace_manifest(
    bundle: Bundle,
    manifest: Manifest,
    scratch: Path,
    moved: Mapping[Path, Path],
    recompiled_engine: str,
) -> Bundle:
    """In one step, and then remove the files that nobody names any more.

    scratch: a folder on the bundle's disk. moved: new files, and where in the bundle each goes. recompiled_engine: that
    whose earlier plans need not be whole. Until the step the bundle is unchanged. Raises `OutputError` where another
    command changes it, or changed it meanwhile.
    """
    try:
        with alone(bundle.root):
            _replace(bundle, manifest, scratch, moved, recompiled_engine)
    except BlockingIOError:
        raise OutputError(
            f"{bundle.root} is being changed by another command; run this command again", code="changed_meanwhile"
        ) from None
    return Bundle(bundle.root, manifest)


def _replace(
    bundle: Bundle, manifest: Manifest, scratch: Path, moved: Mapping[Path, Path], recompiled_engine: str
) -> None:
    root = bundle.root
    if _on_disk(root, recompiled_engine) != bundle.manifest:
        raise OutputError(
            f"{root} was changed by another command in the meantime; run this command again", code="changed_meanwhile"
        )
    try:
        for made, place in moved.items():
            if not _names(bundle.manifest, root, place):
                place.parent.mkdir(exist_ok=True)
                discard(place)  # of a run that was killed
                made.rename(place)
                sync(place.parent)
        write_manifest(scratch, manifest)
        sync(scratch / MANIFEST)
        (scratch / MANIFEST).replace(root / MANIFEST)
        sync(root)
    except BaseException:
        named = _on_disk(root, recompiled_engine)
        for place in moved.values():
            if not _names(named, root, place):
                discard(place)
        raise
    with suppress(OSError):  # what cannot be removed only takes room
        for name in set(bundle.manifest.files) - set(manifest.files):
            (root / name).unlink(missing_ok=True)


def _on_disk(root: Path, recompiled_engine: str) -> Manifest:
    return Bundle.open(root, check_digests=False, without_plans=recompiled_engine).manifest


def _names(manifest: Manifest, root: Path, place: Path) -> bool:
    return place.relative_to(root).as_posix() in manifest.files
