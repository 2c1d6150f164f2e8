"""The files that calibration leaves in a bundle: read and checked, and written atomically.

They are of one bundle; costs are also of one host, engine and number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from ...atomic import output_errors, remove_left, temporary_file, write_whole
from ...bundle import Bundle, Manifest
from ...errors import BundleError, ParameterError
from ...strict import parse, read_json
from ..drafting.names import check_drafter
from .cost_model import COSTS, Costs
from .host_identity import bundle_identity, describe_host
from .routes import POLICY, Policy, RoutePolicy
from .routing import ROUTING, Routing
from .survival import Survival

REPORT = "report.md"
# The folder of those that are not finished.
JOURNALS = "calibration"
KEPT = "calibration results are kept in the bundle, so it must be writable"

T = TypeVar("T", Costs, Policy, Routing, Survival)


def read_decision(bundle: Bundle, kind: type[T], name: str) -> T | None:
    """policy.json or routing.json, None where it is missing. Raises `BundleError` for one of another bundle."""
    path = bundle.path(name)
    return _parsed(bundle, kind, read_json(path, remedy(bundle, kind)), str(path)) if path.exists() else None


def read_by_draft(bundle: Bundle, kind: type[T], name: str) -> dict[str, T]:
    """costs.json or survival.json: what is known of each draft. Raises `BundleError` for one of another bundle.

    `NO_DRAFT` is the key in a bundle without drafts.
    """
    path, manifest = bundle.path(name), bundle.manifest
    raw = read_json(path, remedy(bundle)) if path.exists() else {}
    if not isinstance(raw, dict):
        raise BundleError(f"{path} does not hold a JSON object; {remedy(bundle)}")
    known = {draft: raw[draft] for draft in manifest.draft_names or (manifest.first_draft,) if draft in raw}
    return {draft: _parsed(bundle, kind, one, f"{path}: {draft}", draft) for draft, one in known.items()}


def _parsed(bundle: Bundle, kind: type[T], raw: Any, where: str, draft: str | None = None) -> T:
    try:
        value = parse(kind, raw, where)
    except BundleError as error:
        raise BundleError(f"{error}; {remedy(bundle, kind)}", error.field) from None
    if value.bundle != bundle_identity(bundle, draft):
        raise BundleError(f"{where} was made for another bundle; {remedy(bundle)}", code="stale")
    return value


def stale(manifest: Manifest, costs: Costs, engine: str, threads: int, device: int = 0) -> str | None:
    """Why costs say nothing about this engine on this host, None where they do. manifest: of their bundle."""
    for context, theirs, ours in (
        ("with --engine", costs.engine, engine),
        ("with", _threads(costs.threads), _threads(threads)),
        ("on", costs.host, describe_host(manifest, engine, device)),
    ):
        if theirs != ours:
            return f"{COSTS} was measured {context} {theirs}, not {context} {ours}"
    return None


def calibrated_threads(bundle: Bundle, engine: str | None, device: int) -> int:
    """How many threads costs.json was measured with on this host, 0 without one. engine: None for any."""
    costs = read_by_draft(bundle, Costs, COSTS).get(bundle.manifest.first_draft)
    if costs is None or stale(bundle.manifest, costs, engine or costs.engine, costs.threads, device):
        return 0
    return costs.threads


def _threads(number: int) -> str:
    return f"--threads {number}" if number else "the engine's own number of threads"


def read_policy(bundle: Bundle) -> Policy | None:
    """The bundle's policy, None without one. Raises `BundleError` for a damaged one, and for drafters and numbers of
    draft tokens that the bundle does not have.
    """
    policy = read_decision(bundle, Policy, POLICY)
    if policy is None:
        return None
    most, path = bundle.manifest.contract.max_draft_tokens, bundle.path(POLICY)

    def checked(name: str, entry: RoutePolicy) -> RoutePolicy:
        if entry.num_draft_tokens > most:
            raise BundleError(
                f"{path}: {name}.num_draft_tokens is {entry.num_draft_tokens}; this bundle was built for 0 to {most}; "
                + remedy(bundle, Policy),
                f"{POLICY}.{name}.num_draft_tokens",
            )
        return replace(entry, drafter=_drafter(entry.drafter, bundle, Policy, f"{name}.drafter", "is"))

    routes = {route: checked(f"routes.{route}", entry) for route, entry in policy.routes.items()}
    return replace(policy, default=checked("default", policy.default), routes=routes)


def read_routing(bundle: Bundle) -> Routing | None:
    """The bundle's routing, None without one. Raises `BundleError` as `read_policy` does."""
    routing = read_decision(bundle, Routing, ROUTING)
    if routing is None:
        return None
    return routing.renamed({name: _drafter(name, bundle, Routing, "drafters", "has") for name in routing.drafters})


def _drafter(name: str, bundle: Bundle, kind: type[Policy | Routing], key: str, verb: str) -> str:
    """Its name in this bundle: people may call the first draft `model`."""
    file = POLICY if kind is Policy else ROUTING
    try:
        return check_drafter(name, bundle.manifest.draft_names)
    except ParameterError as error:
        reason = f"{key} {verb}{str(error).removeprefix('drafter is')}"
        raise BundleError(f"{bundle.path(file)}: {reason}; {remedy(bundle, kind)}", f"{file}.{key}") from None


def write_decision(bundle: Bundle, value: Policy | Routing | Mapping[str, Costs | Survival], name: str) -> None:
    """Replace the file atomically. Raises `OutputError`."""
    with output_errors(KEPT, bundle.root):
        text = json.dumps(value, indent=1, ensure_ascii=False, default=asdict) + "\n"
        write_whole(bundle.path(name), text.encode())


def check_writable(bundle: Bundle) -> None:
    """Check before a long run that the bundle can be written. Removes what killed runs left. Raises `OutputError`."""
    remove_left(bundle.root)
    with output_errors(KEPT, bundle.root), temporary_file(bundle.path(POLICY), b""):
        pass


def remedy(bundle: Bundle, kind: type | None = None) -> str:
    """What to do about one of these files. kind: of its content; only a policy is edited by hand."""
    edited = "correct what was edited, or " * (kind is Policy)
    return f"{edited}run specexport calibrate {bundle.root} --prompts FILE, or delete the file"
