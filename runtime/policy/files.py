"""The files that calibration leaves in a bundle: read and checked, written atomically, and removed together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ...atomic import remove_left, temporary_file, write_whole
from ...bundle import Bundle
from ...errors import BundleError, OutputError
from ...strict import parse, read_json
from .cost_model import COSTS, Costs
from .host_identity import bundle_identity
from .route_belief import ROUTING, Routing
from .routes import POLICY, Policy
from .survival import SURVIVAL, Survival

T = TypeVar("T", Costs, Policy, Routing, Survival)


def read_decision(bundle: Bundle, kind: type[T], name: str) -> T | None:
    """policy.json or routing.json, None where it is missing. Raises `BundleError` for one of another bundle."""
    path = bundle.path(name)
    return _parsed(bundle, kind, read_json(path, remedy(bundle)), str(path)) if path.exists() else None


def read_by_draft(bundle: Bundle, kind: type[T], name: str) -> dict[str, T]:
    """costs.json or survival.json: what is known of each draft. Raises `BundleError` as `read_decision` does.

    `NO_DRAFT` is the key in a bundle without drafts.
    """
    path, manifest = bundle.path(name), bundle.manifest
    raw = _by_draft(bundle, name, read_json(path, remedy(bundle)) if path.exists() else {})
    known = {draft: raw[draft] for draft in manifest.draft_names or (manifest.first_draft,) if draft in raw}
    return {draft: _parsed(bundle, kind, one, f"{path}: {draft}", draft) for draft, one in known.items()}


def _by_draft(bundle: Bundle, name: str, raw: Any) -> dict[str, Any]:
    """raw: parsed JSON, empty where there is no file. Earlier versions had the first draft's at the top; of the others
    costs.json had what differs, and their survival had files of its own.
    """
    if not isinstance(raw, dict):
        raise BundleError(f"{bundle.path(name)} does not hold a JSON object; {remedy(bundle)}")
    if raw and "schema_version" not in raw:
        return raw
    manifest, others = bundle.manifest, raw.pop("drafts", {})
    found = {manifest.first_draft: raw} if raw else {}
    for draft in manifest.drafts[1:]:
        path, own = bundle.path(f"survival-{draft.name}.json"), {"bundle": bundle_identity(bundle, draft.name)}
        if name == SURVIVAL and path.exists():
            found[draft.name] = read_json(path, remedy(bundle)) | own
        one = others.get(draft.name) if isinstance(others, dict) else None
        if isinstance(one, dict) and one.pop("weights", None) == manifest.files[draft.model.weights].sha256:
            found[draft.name] = raw | one | own
    return found


def _parsed(bundle: Bundle, kind: type[T], raw: Any, where: str, draft: str | None = None) -> T:
    found = parse(kind, raw, where)
    if found.bundle != bundle_identity(bundle, draft):
        raise BundleError(f"{where} was made for another bundle; {remedy(bundle)}", code="stale")
    return found


def write_decision(bundle: Bundle, value: Policy | Routing | Mapping[str, Costs | Survival], name: str) -> None:
    """Replace the file atomically. Raises `OutputError`."""
    _replace(bundle.path(name), json.dumps(value, indent=1, ensure_ascii=False, default=asdict) + "\n")


def forget_decisions(bundle: Bundle) -> None:
    """Remove what calibration left, for a bundle that becomes another one. Raises `OutputError`."""
    # the policy first: without the others it drafts fixed numbers
    for path in (*map(bundle.path, (POLICY, ROUTING, COSTS)), *bundle.root.glob("survival*.json")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{path} cannot be removed: {error.strerror}") from None


def check_writable(bundle: Bundle) -> None:
    """Check before a long run that the bundle can be written. Removes what killed runs left. Raises `OutputError`."""
    remove_left(bundle.root)
    with _told(bundle.root), temporary_file(bundle.path(POLICY), b""):
        pass


def _replace(path: Path, text: str) -> None:
    with _told(path.parent):
        write_whole(path, text.encode())


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{folder} cannot be written: {reason}; calibration results are kept in the bundle") from None


def remedy(bundle: Bundle) -> str:
    """The error for one of these files."""
    return f"run specexport calibrate {bundle.root}, or delete the file"
