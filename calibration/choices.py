"""Which drafters calibration chooses from, and which drafts it must record for that."""

from __future__ import annotations

from contextlib import suppress

from ..errors import ParameterError
from ..runtime.drafting.names import (
    FIRST,
    LOOKUP_NAMES,
    all_chains,
    all_drafters,
    beside_first,
    check_drafter,
    guessable,
    guesser_of,
    model_of,
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
    if session.engine.draft is None:
        return LOOKUP_NAMES
    if session.engine.rounds is not None:
        return (FIRST,)
    names = session.bundle.manifest.draft_names
    names = names if session.engine.open_draft is not None else names[:1]
    chains = (chain for chain in all_chains(names) if guessable(chain, session.bundle.manifest))
    return (*all_drafters(names), *chains)


def replayed_of(session: Session, options: CalibrateOptions) -> tuple[str, ...]:
    """The drafters to replay: those to choose from, and the others whose draft is recorded, without further chains."""
    chosen, models = drafters_of(session, options), models_of(session, options)
    return tuple(
        name
        for name in possible_drafters(session)
        if name in chosen or (guesser_of(name) is None and (model_of(name) or FIRST) in models)
    )


def models_of(session: Session, options: CalibrateOptions) -> list[str]:
    """The drafts to record with: the first, and those that the drafters to choose from use."""
    asked = (name for drafter in drafters_of(session, options) for name in beside_first(drafter))
    return list(dict.fromkeys((FIRST, *asked)))


def _called(session: Session, name: str) -> str:
    """A drafter's name as sessions use it, where the first draft is `model`; an unknown name is returned unchanged."""
    manifest = session.bundle.manifest
    with suppress(ParameterError):
        return check_drafter(name, manifest.draft is not None, manifest.draft_names)
    return name
