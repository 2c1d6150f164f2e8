"""The names of drafters: a draft, a lookup, or `lookup+draft`, which looks tokens up where there is a match, and else
uses the draft. Requests may call the bundle's first draft `model`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...bundle import ALIAS
from ...bundle.drafts import LOOKUP
from ...errors import ParameterError


def drafters_of(model: str) -> tuple[str, ...]:
    """The names of the drafters that use the draft `model`."""
    return model, f"{LOOKUP}+{model}"


def model_of(drafter: str) -> str | None:
    """The draft that `drafter` uses, None if it only looks up."""
    _lookup, plus, model = drafter.partition("+")
    if plus:
        return model
    return None if drafter == LOOKUP else drafter


def all_drafters(drafts: Sequence[str]) -> tuple[str, ...]:
    """The drafters of a bundle whose drafts have these names, the draft alone first."""
    with_lookups = (name for draft in drafts[:1] for name in drafters_of(draft)[1:])
    others = (name for draft in drafts[1:] for name in drafters_of(draft))
    return (*drafts[:1], LOOKUP, *with_lookups, *others)


def check_drafter(name: str | None, drafts: Sequence[str]) -> str:
    """The name of a drafter, by default the first draft where there is one. Raises `ParameterError`.

    drafts: the names of the bundle's drafts. `ALIAS` becomes that of the first; nothing else knows it.
    """
    usable = all_drafters(drafts)
    if name is None:
        return usable[0]
    parts = name.split("+") if isinstance(name, str) else []
    drafter = "+".join(drafts[0] if part == ALIAS and drafts else part for part in parts)
    if drafter in usable:
        return drafter
    if name == "lookup":
        raise ParameterError(f"drafter is 'lookup'; it is called {LOOKUP}", "drafter")
    first = f" ({ALIAS} is the draft {drafts[0]!r})" if drafts else ", since this bundle was built without --draft"
    raise ParameterError(f"drafter is {name!r}; it must be one of {', '.join(usable)}{first}", "drafter")
