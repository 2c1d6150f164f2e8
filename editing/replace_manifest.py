"""Another manifest for a bundle that is there, in one step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..atomic import alone, discard, sync
from ..bundle import MANIFEST, Bundle, Manifest, write_manifest
from ..errors import OutputError
from ..strict import parse, read_json

UNCHANGED = "the bundle is unchanged"


def replace_manifest(bundle: Bundle, manifest: Manifest, scratch: Path, made: Mapping[str, Path]) -> Bundle:
    """In one step, and then remove the files that nobody names any more.

    scratch: a folder on the bundle's disk. made: new files, by their names in the bundle. Until the step the bundle is
    unchanged. Raises `OutputError` where another command changes it, or changed it meanwhile.
    """
    try:
        with alone(bundle.root):
            _replace(bundle, manifest, scratch, made)
    except BlockingIOError:
        raise OutputError(
            f"{bundle.root} is being changed by another command; run this command again", code="changed_meanwhile"
        ) from None
    return Bundle(bundle.root, manifest)


def _replace(bundle: Bundle, manifest: Manifest, scratch: Path, made: Mapping[str, Path]) -> None:
    root = bundle.root
    if _on_disk(root) != bundle.manifest:
        raise OutputError(
            f"{root} was changed by another command in the meantime; run this command again", code="changed_meanwhile"
        )
    added = [name for name in made if name not in bundle.manifest.files]
    try:
        for name in added:
            place = root / name
            place.parent.mkdir(exist_ok=True)
            discard(place)  # of a run that was killed
            made[name].rename(place)
            sync(place.parent)
        write_manifest(scratch, manifest)
        sync(scratch / MANIFEST)
        (scratch / MANIFEST).replace(root / MANIFEST)
        sync(root)
    except BaseException:
        named = _on_disk(root).files
        for name in added:
            if name not in named:
                discard(root / name)
        raise
    with suppress(OSError):  # what cannot be removed only takes room
        for name in set(bundle.manifest.files) - set(manifest.files):
            (root / name).unlink(missing_ok=True)


def _on_disk(root: Path) -> Manifest:
    return parse(Manifest, read_json(root / MANIFEST), MANIFEST)
