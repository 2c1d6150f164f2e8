"""`specexport remove-draft`: a draft beside the first leaves a bundle, which is otherwise as it was."""

from __future__ import annotations

from dataclasses import replace

from ..bundle import Bundle
from ..errors import OutputError, ParameterError
from .storage.atomic_folder import temporary_sibling
from .storage.replace_manifest import DRAFTS, replace_manifest


def remove_draft(bundle: Bundle, name: str) -> Bundle:
    """What was calibrated goes too: it may name the draft. Raises `ParameterError`, `OutputError`."""
    manifest = bundle.manifest
    if name not in manifest.more_drafts:
        others = ", ".join(manifest.more_drafts) or "none"
        first = (
            "is the bundle's first, which add-draft can replace"
            if name == manifest.draft_name
            else "is not in the bundle"
        )
        raise ParameterError(f"draft {name!r} {first}; the additional drafts are {others}")
    more = {other: draft for other, draft in manifest.more_drafts.items() if other != name}
    gone = set(manifest.more_drafts[name].files())
    files = {path: entry for path, entry in manifest.files.items() if path not in gone}
    try:
        with temporary_sibling(bundle.root / DRAFTS / name) as scratch:
            return replace_manifest(bundle, replace(manifest, more_drafts=more, files=files), scratch)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{error.filename2 or error.filename}: {reason}; the bundle is unchanged") from None
