"""The names of drafters: a draft, a lookup, or both. Requests may call the bundle's first draft `model`.

`lookup+draft` looks tokens up for the target where there is a match, and else uses the draft. `lookup:draft` is a
cascade: the draft drafts, and the lookup drafts for the draft; in `small:draft` a smaller draft does that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...bundle import ALIAS, Manifest
from ...bundle.drafts import LOOKUP
from ...errors import ParameterError

SHOWN_CASCADES = 4


def drafters_of(model: str) -> tuple[str, ...]:
    """The names of the drafters that use the draft `model`."""
    return model, f"{LOOKUP}+{model}"


def model_of(drafter: str) -> str | None:
    """The draft that `drafter` uses, None if it only looks up."""
    if ":" in drafter:
        return strip_cascade(drafter)
    _lookup, plus, model = drafter.partition("+")
    if plus:
        return model
    return None if drafter == LOOKUP else drafter


def cascade_source_of(drafter: str) -> str | None:
    """What drafts for the model of `drafter` in a cascade, a lookup or another draft; None if it is no cascade."""
    return drafter.partition(":")[0] if ":" in drafter else None


def models_in(drafter: str) -> list[str]:
    """The drafts that it uses, in a cascade too."""
    parts = model_of(drafter), cascade_source_of(drafter)
    return [part for part in parts if part is not None and part != LOOKUP]


def strip_cascade(drafter: str) -> str:
    """The same drafter without the cascade, which changes what its tokens cost but not which they are."""
    return drafter.partition(":")[2] if ":" in drafter else drafter


def all_drafters(drafts: Sequence[str]) -> tuple[str, ...]:
    """The drafters of a bundle whose drafts have these names, the default first."""
    with_lookups = (name for draft in drafts[:1] for name in drafters_of(draft)[1:])
    others = (name for draft in drafts[1:] for name in drafters_of(draft))
    return (*drafts[:1], LOOKUP, *with_lookups, *others)


def all_cascades(drafts: Sequence[str]) -> tuple[str, ...]:
    """The cascades of the same bundle: every draft with a lookup, or another draft, that drafts for it."""
    return tuple(f"{source}:{model}" for model in drafts for source in (LOOKUP, *drafts) if source != model)


def check_drafter(name: str | None, drafts: Sequence[str], cascaded: Sequence[str] | None = None) -> str:
    """The name of a drafter, by default the first draft where there is one. Raises `ParameterError`.

    drafts: the names of the bundle's drafts. `ALIAS` becomes that of the first; nothing else knows it. cascaded: those
    that can stand in a cascade, by default all; errors tell of these.
    """
    usable, cascades = all_drafters(drafts), all_cascades(drafts)
    if name is None:
        return usable[0]
    parts = re.split("([+:])", name) if isinstance(name, str) else []
    drafter = "".join(drafts[0] if part == ALIAS and drafts else part for part in parts)
    if drafter in (*usable, *cascades):
        return drafter
    if name == "lookup":
        raise ParameterError(f"drafter is 'lookup'; it is called {LOOKUP}", "drafter")
    cascades = all_cascades(drafts if cascaded is None else cascaded)
    first = f" ({ALIAS} is the draft {drafts[0]!r})" if drafts else ", since this bundle was built without --draft"
    more = " and so on" if len(cascades) > SHOWN_CASCADES else ""
    several = f", or a cascade: {', '.join(cascades[:SHOWN_CASCADES])}{more}" if cascades else ""
    raise ParameterError(f"drafter is {name!r}; it must be one of {', '.join(usable)}{first}{several}", "drafter")


def supports_cascade(cascade: str, manifest: Manifest) -> bool:
    """Whether something can draft for the model of a cascade: not if it keeps states, which cannot be rolled back to
    any row within a round. A draft that reads the target's hidden states has a place at neither end.
    """
    models = [manifest.draft_called(name).model for name in models_in(cascade)]
    return not models[0].has_states and all(model.reads is None for model in models)


def runnable_drafter(name: str | None, manifest: Manifest) -> str:
    """`check_drafter` for the drafts of a bundle. Raises `ParameterError` also for a cascade that cannot run."""
    own = [draft.name for draft in manifest.drafts if draft.model.reads is None]
    drafter = check_drafter(name, manifest.draft_names, own)
    if cascade_source_of(drafter) is not None and not supports_cascade(drafter, manifest):
        model = strip_cascade(drafter)
        for name in models_in(drafter):
            if manifest.draft_called(name).model.reads is not None:
                raise ParameterError(
                    f"drafter is {drafter!r}, but {name!r} reads the target's hidden states, which only the target's "
                    f"passes give, so it can stand in no cascade; name {name!r} or 'ngram+{name}'",
                    "drafter",
                )
        raise ParameterError(
            f"drafter is {drafter!r}, but the layers of {model!r} keep recurrent or convolution states, so nothing can "
            f"draft for it; name {model!r} alone",
            "drafter",
        )
    return drafter
