"""Costs where a bundle has none of this host: a short measurement at the first request, kept in the user's cache.

A schedule needs only the cost of rounds relative to a plain one, and every k takes turns. So a busy host, which slows
whole turns down, changes little.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from ...atomic import remove_left, temporary_file
from ...errors import BundleError, EngineError, ParameterError
from ...strict import parse, read_json
from ...user_cache import user_cache
from ..policy.cost_model import Costs
from ..policy.host_identity import bundle_identity, describe_host
from .meter import CostMeter, Metered

# The context where most requests begin; the relative cost of rounds changes slowly with the context.
CONTEXT = 64
# Two rounds of each number of draft tokens in a turn, and turns for half a second, at least one.
BURST = 2
SECONDS = 0.5
MAX_TURNS = 16


def first_costs(session: Metered, draft: str) -> Costs | None:
    """The costs that were kept for this bundle, host, engine and number of threads, or else measured now.

    None where that is impossible: the capacity is too small, or random tokens give no numbers. draft: the one that
    drafts the rounds, `NO_DRAFT` in a bundle without one. The session's cached prefix is lost. Raises `Cancelled`.
    """
    path = _path(session, draft)
    if (kept := _kept(path)) is not None:
        return kept
    try:
        meter = CostMeter(session, [CONTEXT], BURST, SECONDS, draft)
    except ParameterError:
        return None
    try:
        meter.measure(MAX_TURNS)
        costs = meter.costs()
    except EngineError:  # no numbers for random tokens
        return None
    return _keep(costs, path)


def _path(session: Metered, draft: str) -> Path:
    engine = session.engine
    host = describe_host(session.bundle.manifest, engine.name, engine.device)
    made_for = [bundle_identity(session.bundle, draft), host, engine.name, session.threads]
    name = sha256(json.dumps(made_for).encode()).hexdigest()[:32]
    return user_cache() / "costs" / f"{name}.json"


def _kept(path: Path) -> Costs | None:
    try:
        return parse(Costs, read_json(path, ""), str(path))
    except BundleError:  # missing, or not readable by this version
        return None


def _keep(costs: Costs, path: Path) -> Costs:
    """Write the costs, unless another process was faster: then return its costs, so that both repeat a seed alike.

    If the cache cannot be written, the next session measures again.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left(path.parent)
        with temporary_file(path, json.dumps(asdict(costs)).encode()) as temporary:
            try:
                os.link(temporary, path)
            except OSError:  # the file exists, or the file system has no links
                if (theirs := _kept(path)) is not None:
                    return theirs
                temporary.replace(path)
    return costs
