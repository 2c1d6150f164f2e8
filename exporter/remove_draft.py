"""`specexport remove-draft`: remove a draft other than the first from a bundle, which is otherwise unchanged."""

from __future__ import annotations

from dataclasses import replace

from ..bundle import ALIAS, Bundle
from ..errors import OutputError, ParameterError
from .storage.atomic_folder import temporary_sibling
from .storage.replace_manifest import DRAFTS, replace_manifest


def remove_draft(bundle: Bundle, name: str) -> Bundle:
    """Calibration results are removed too: they may name the draft. Raises `ParameterError`, `OutputError`."""
    manifest = bundle.manifest
    others = manifest.draft_names[1:]
    if name not in others:
        first = "is the bundle's first, which cannot be removed; add-draft can replace it"
        problem = first if manifest.drafts and name in (manifest.first_draft, ALIAS) else "is not in the bundle"
        raise ParameterError(f"draft {name!r} {problem}; drafts that can be removed: {', '.join(others) or 'none'}")
    gone = set(manifest.draft_called(name).files())
    files = {path: entry for path, entry in manifest.files.items() if path not in gone}
    drafts = tuple(draft for draft in manifest.drafts if draft.name != name)
    try:
        with temporary_sibling(bundle.root / DRAFTS / name) as scratch:
            return replace_manifest(bundle, replace(manifest, drafts=drafts, files=files), scratch)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{error.filename2 or error.filename}: {reason}; the bundle is unchanged") from None
