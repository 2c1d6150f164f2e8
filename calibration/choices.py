"""Which drafters calibration chooses from, and which drafts it must record for that."""

from __future__ import annotations

from contextlib import suppress

from ..errors import ParameterError
from ..runtime.drafting.names import (
    all_chains,
    all_drafters,
    cascade_source_of,
    check_drafter,
    model_of,
    models_in,
    supports_cascade,
)
from ..runtime.session import Session
from .options import CalibrateOptions


def drafters_of(session: Session, options: CalibrateOptions) -> tuple[str, ...]:
    """The drafters to choose from, the preferred one first. Raises `ParameterError` for one that cannot run here."""
    possible, asked = possible_drafters(session), [_called(session, name) for name in options.drafters]
    for name in asked:
        if name not in (*possible, "all"):
            raise ParameterError(
                f"--drafter is {name}; with this bundle and engine it must be one of {', '.join(possible)}, or all",
                "drafter",
            )
    return possible if "all" in asked else tuple(dict.fromkeys(asked)) or possible


def possible_drafters(session: Session) -> tuple[str, ...]:
    """The drafters that the session can run, its default first, chains last. If the device runs whole rounds, only the
    model, since lookups run on the host.
    """
    names = session.drafts.names
    if names and session.engine.rounds is not None:
        return names[:1]
    chains = (chain for chain in all_chains(names) if supports_cascade(chain, session.bundle.manifest))
    return (*all_drafters(names), *chains)


def replayed_of(session: Session, options: CalibrateOptions) -> tuple[str, ...]:
    """The drafters to replay: those to choose from, and the others whose draft is recorded, without further chains."""
    chosen, models = drafters_of(session, options), models_of(session, options)
    return tuple(
        name
        for name in possible_drafters(session)
        if name in chosen or (cascade_source_of(name) is None and (model_of(name) or models[0]) in models)
    )


def models_of(session: Session, options: CalibrateOptions) -> list[str]:
    """The drafts to record with: the first, and those that the drafters to choose from use."""
    asked = (name for drafter in drafters_of(session, options) for name in models_in(drafter))
    return list(dict.fromkeys((session.drafts.first, *asked)))


def _called(session: Session, name: str) -> str:
    """A drafter's name as sessions use it; an unknown one is returned unchanged."""
    with suppress(ParameterError):
        return check_drafter(name, session.bundle.manifest.draft_names)
    return name
