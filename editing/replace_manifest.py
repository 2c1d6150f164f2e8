"""Changes of a bundle that is there: another manifest in one step, and a draft less."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..atomic import discard, locked, output_errors, sync, temporary_folder
from ..bundle import ALIAS, MANIFEST, Bundle, Manifest, write_manifest
from ..errors import OutputError, ParameterError
from ..runtime.policy.files import forget_decisions

# Where additional drafts have their folders, and engines those of their plans.
DRAFTS, ENGINES = "drafts", "engines"
UNCHANGED = "the bundle is unchanged"


def replace_manifest(
    bundle: Bundle,
    manifest: Manifest,
    scratch: Path,
    moved: Mapping[Path, Path] | None = None,
    recompiled_engine: str | None = None,
) -> Bundle:
    """In one step, and then remove the files that nobody names any more.

    scratch: a folder on the bundle's disk. moved: new files and folders, and where in the bundle each goes. recompiled:
    the engine whose earlier plans need not be whole. Until the step the bundle is unchanged. Raises `OutputError` where
    another command changes it, or changed it meanwhile.
    """
    try:
        with locked(bundle.root):
            _replace(bundle, manifest, scratch, moved or {}, recompiled_engine)
    except BlockingIOError:
        raise OutputError(
            f"{bundle.root} is being changed by another command; run this command again", code="changed_meanwhile"
        ) from None
    return Bundle(bundle.root, manifest)


def _replace(
    bundle: Bundle, manifest: Manifest, scratch: Path, moved: Mapping[Path, Path], recompiled_engine: str | None
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
        gone = set(bundle.manifest.files) - set(manifest.files)
        if bundle.manifest.drafts[:1] != manifest.drafts[:1] or any(
            not name.startswith(f"{ENGINES}/") for name in gone
        ):
            forget_decisions(bundle)  # which speak of another draft
        (scratch / MANIFEST).replace(root / MANIFEST)
        sync(root)
    except BaseException:
        named = _on_disk(root, recompiled_engine)
        for place in moved.values():
            if not _names(named, root, place):
                discard(place)
        raise
    with suppress(OSError):  # what cannot be removed only takes room
        for name in gone:
            (root / name).unlink(missing_ok=True)
        for folder in (root / DRAFTS).iterdir():
            if not folder.name.startswith(".") and not _names(manifest, root, folder):  # of another run, which is at it
                discard(folder)


def remove_draft(bundle: Bundle, name: str) -> Bundle:
    """Remove a draft other than the first; the bundle is otherwise unchanged.

    Calibration results are removed too: they may name the draft. Raises `ParameterError`, `OutputError`.
    """
    manifest = bundle.manifest
    others = manifest.draft_names[1:]
    if name not in others:
        first = "is the bundle's first, which cannot be removed; build again without it"
        problem = first if manifest.drafts and name in (manifest.first_draft, ALIAS) else "is not in the bundle"
        message = f"draft {name!r} {problem}; drafts that can be removed: {', '.join(others) or 'none'}"
        raise ParameterError(message, "draft")
    gone = set(manifest.draft_called(name).files())
    drafts = tuple(draft for draft in manifest.drafts if draft.name != name)
    files = {path: entry for path, entry in manifest.files.items() if path not in gone}
    with output_errors(UNCHANGED), temporary_folder(bundle.root / DRAFTS / name) as scratch:
        return replace_manifest(bundle, replace(manifest, drafts=drafts, files=files), scratch)


def _on_disk(root: Path, recompiled_engine: str | None) -> Manifest:
    return Bundle.open(root, check_digests=False, without_plans=recompiled_engine).manifest


def _names(manifest: Manifest, root: Path, place: Path) -> bool:
    """Whether the manifest names the file, or a file in the folder, at `place`."""
    path = place.relative_to(root).as_posix()
    return any(name == path or name.startswith(f"{path}/") for name in manifest.files)
