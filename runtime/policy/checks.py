"""Whether what calibration left in a bundle is of this bundle, this engine and this host."""

from __future__ import annotations

from dataclasses import replace

from ...bundle import Bundle
from ...errors import BundleError, ParameterError
from ..drafting.names import runnable_drafter
from .cost_model import COSTS, Costs
from .files import read_decision
from .host_identity import describe_host
from .route_belief import ROUTING, Routing
from .routes import POLICY, Policy, RoutePolicy


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
                f"{path}: {name}.num_draft_tokens is {entry.num_draft_tokens}; this bundle was built for 0 to {most}",
                f"{POLICY}.{name}.num_draft_tokens",
            )
        return replace(entry, drafter=_drafter(entry.drafter, bundle, f"{path}: {name}"))

    routes = {route: checked(f"routes.{route}", entry) for route, entry in policy.routes.items()}
    return replace(policy, default=checked("default", policy.default), routes=routes)


def read_routing(bundle: Bundle) -> Routing | None:
    """The bundle's routing, None without one. Raises `BundleError` as `read_policy` does."""
    routing = read_decision(bundle, Routing, ROUTING)
    if routing is None:
        return None
    return routing.renamed({name: _drafter(name, bundle, str(bundle.path(ROUTING))) for name in routing.drafters})


def _drafter(name: str, bundle: Bundle, where: str) -> str:
    """Its name today: earlier versions, and people, call the first draft `model`."""
    try:
        return runnable_drafter(name, bundle.manifest)
    except ParameterError as error:
        raise BundleError(f"{where}: {error}", "drafter") from None
