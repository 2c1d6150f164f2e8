"""Another manifest for a bundle that is there, in one step. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from ...bundle import MANIFEST, Bundle, Manifest, write_manifest
from ...errors import OutputError
from ...runtime.policy.decisions import forget_decisions
from .atomic_folder import discard

# Where drafts beside the first have their folders.
DRAFTS = "drafts"


def replace_manifest(bundle: Bundle, manifest: Manifest, scratch: Path) -> Bundle:
    """In one step, and then remove the files that nobody names any more. scratch: a folder on the bundle's disk."""
    write_manifest(scratch, manifest)
    if Bundle.open(bundle.root, check_digests=False).manifest != bundle.manifest:
        raise OutputError(f"{bundle.root} was changed by another command meanwhile; run this one again")
    gone = set(bundle.manifest.files) - set(manifest.files)
    if gone or bundle.manifest.draft != manifest.draft:
        forget_decisions(bundle)  # which speak of another draft
    (scratch / MANIFEST).replace(bundle.root / MANIFEST)
    for name in gone:
        (bundle.root / name).unlink(missing_ok=True)
    used = {name.split("/")[1] for name in manifest.files if name.startswith(f"{DRAFTS}/")}
    for folder in (bundle.root / DRAFTS).iterdir():
        if folder.name not in used and not folder.name.startswith("."):  # of another run, which is at it
            discard(folder)
    return Bundle(bundle.root, manifest)
