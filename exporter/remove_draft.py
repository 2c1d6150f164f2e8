"""`specexport remove-draft`: remove a draft other than the first from a bundle, which is otherwise unchanged."""

from __future__ import annotations

from dataclasses import replace

from ..bundle import Bundle
from ..errors import OutputError, ParameterError
from ..runtime.drafting.names import FIRST
from .storage.atomic_folder import temporary_sibling
from .storage.replace_manifest import DRAFTS, replace_manifest


def remove_draft(bundle: Bundle, name: str) -> Bundle:
    """Calibration results are removed too: they may name the draft. Raises `ParameterError`, `OutputError`."""
    manifest = bundle.manifest
    if name not in manifest.more_drafts:
        others = ", ".join(manifest.more_drafts) or "none"
        first = manifest.draft is not None and name in (manifest.draft_name, FIRST)
        found = (
            "is the bundle's first, which cannot be removed; add-draft can replace it"
            if first
            else "is not in the bundle"
        )
        raise ParameterError(f"draft {name!r} {found}; drafts that can be removed: {others}", "draft")
    more = {other: draft for other, draft in manifest.more_drafts.items() if other != name}
    gone = set(manifest.more_drafts[name].files())
    files = {path: entry for path, entry in manifest.files.items() if path not in gone}
    try:
        with temporary_sibling(bundle.root / DRAFTS / name) as scratch:
            return replace_manifest(bundle, replace(manifest, more_drafts=more, files=files), scratch)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{error.filename2 or error.filename}: {reason}; the bundle is unchanged") from None
