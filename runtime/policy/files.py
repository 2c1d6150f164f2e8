"""The files that calibration leaves in a bundle: read and checked, written atomically, and removed together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from ...atomic import remove_left, temporary_file, write_whole
from ...bundle import Bundle
from ...errors import BundleError, OutputError
from ...strict import parse, read_json
from .cost_model import COSTS, Costs
from .host_identity import bundle_identity
from .route_belief import ROUTING, Routing
from .routes import POLICY, Policy
from .survival import Survival

T = TypeVar("T", Costs, Policy, Routing, Survival)


def read_decision(bundle: Bundle, kind: type[T], name: str) -> T | None:
    """costs.json, policy.json, routing.json or survival.json, None where it is missing.

    Raises `BundleError` for one of another bundle.
    """
    path = bundle.path(name)
    if not path.exists():
        return None
    found = parse(kind, read_json(path, remedy(bundle)), str(path))
    if found.bundle != bundle_identity(bundle):
        raise BundleError(f"{path} was made for another bundle; {remedy(bundle)}", code="stale")
    return found


def write_decision(bundle: Bundle, value: Costs | Policy | Routing | Survival, name: str) -> None:
    """Replace the file atomically. Raises `OutputError`."""
    _replace(bundle.path(name), json.dumps(asdict(value), indent=1, ensure_ascii=False) + "\n")


def forget_decisions(bundle: Bundle) -> None:
    """Remove what calibration left, for a bundle that becomes another one. Raises `OutputError`."""
    survival = sorted(path.name for path in bundle.root.glob("survival*.json"))
    for name in (POLICY, *survival, ROUTING, COSTS):  # the policy first: without the others it drafts fixed numbers
        try:
            bundle.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{bundle.path(name)} cannot be removed: {error.strerror}") from None


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
