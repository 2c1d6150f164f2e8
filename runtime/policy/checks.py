"""Whether what calibration left in a bundle is of this bundle, this engine and this host."""

from __future__ import annotations

from ...bundle import Bundle
from ...errors import BundleError, ParameterError
from ..drafting.names import runnable_drafter
from .cost_model import COSTS, Costs, DraftCosts
from .host_identity import describe_host
from .route_belief import ROUTING, Routing
from .routes import POLICY, Policy


def stale(costs: Costs | None, engine: str, threads: int, device: int = 0) -> str | None:
    """Why costs say nothing about this engine on this host, None where they do."""
    if costs is None:
        return f"there is no {COSTS}"
    for place, theirs, ours in (
        ("with --engine", costs.engine, engine),
        ("with", _threads(costs.threads), _threads(threads)),
        ("on", costs.host, describe_host(engine, device)),
    ):
        if theirs != ours:
            return f"{COSTS} was measured {place} {theirs}, not {place} {ours}"
    return None


def _threads(number: int) -> str:
    return f"--threads {number}" if number else "the engine's own number of threads"


def is_of(costs: DraftCosts, name: str, bundle: Bundle) -> bool:
    """Whether they were measured with the draft that the bundle has now."""
    draft = bundle.manifest.more_drafts.get(name)
    return draft is not None and bundle.manifest.files[draft.model.weights].sha256 == costs.weights


def check_policy(policy: Policy, bundle: Bundle) -> None:
    """Raises `BundleError` for drafters and numbers of draft tokens that the bundle does not have."""
    most, path = bundle.manifest.contract.max_draft_tokens, bundle.path(POLICY)
    for name, entry in (
        ("default", policy.default),
        *((f"routes.{route}", entry) for route, entry in policy.routes.items()),
    ):
        if entry.num_draft_tokens > most:
            raise BundleError(
                f"{path}: {name}.num_draft_tokens is {entry.num_draft_tokens}; this bundle was built for 0 to {most}",
                f"{POLICY}.{name}.num_draft_tokens",
            )
        _check_drafter(entry.drafter, bundle, f"{path}: {name}")


def check_routing(routing: Routing, bundle: Bundle) -> None:
    """Raises `BundleError` for drafters that the bundle does not have."""
    for name in routing.drafters:
        _check_drafter(name, bundle, f"{bundle.path(ROUTING)}")


def _check_drafter(name: str, bundle: Bundle, where: str) -> None:
    try:
        runnable_drafter(name, bundle.manifest)
    except ParameterError as error:
        raise BundleError(f"{where}: {error}", "drafter") from None
