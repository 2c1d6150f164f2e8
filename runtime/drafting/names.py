"""The names of drafters: a model, a lookup, or both; `model` is the bundle's first draft.

`lookup+model` looks tokens up for the target where there is a match, and else uses the model. `lookup:model` is a
chain: the model drafts, and the lookup drafts for the model; in `small:model` a smaller draft does that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...bundle import Manifest
from ...bundle.drafts import LOOKUPS
from ...errors import ParameterError

LOOKUP_NAMES = LOOKUPS
FIRST = "model"
SHOWN_CHAINS = 4


def drafters_of(model: str) -> tuple[str, ...]:
    """The names of the drafters that use the draft `model`."""
    return (model, *(f"{lookup}+{model}" for lookup in LOOKUP_NAMES))


DRAFTERS = (FIRST, *LOOKUP_NAMES, *drafters_of(FIRST)[1:])


def model_of(drafter: str) -> str | None:
    """The draft that `drafter` uses, None if it only looks up."""
    if ":" in drafter:
        return unguessed(drafter)
    lookup, plus, model = drafter.partition("+")
    if plus:
        return model
    return None if lookup in LOOKUP_NAMES else drafter


def guesser_of(drafter: str) -> str | None:
    """What drafts for the model of `drafter` in a chain, a lookup or another draft; None if it is no chain."""
    return drafter.partition(":")[0] if ":" in drafter else None


def beside_first(drafter: str) -> list[str]:
    """The drafts that it uses, in a chain too, without the bundle's first."""
    asked = model_of(drafter), guesser_of(drafter)
    return [model for model in asked if model is not None and model not in (FIRST, *LOOKUP_NAMES)]


def unguessed(drafter: str) -> str:
    """The same drafter without the chain, which changes what its tokens cost but not which they are."""
    return drafter.partition(":")[2] if ":" in drafter else drafter


def all_drafters(drafts: Sequence[str]) -> tuple[str, ...]:
    """The drafters of a bundle whose drafts have these names, the first one's first; that one is called `model`."""
    if not drafts:
        return LOOKUP_NAMES
    return (*DRAFTERS, *(name for draft in drafts[1:] for name in drafters_of(draft)))


def all_chains(drafts: Sequence[str]) -> tuple[str, ...]:
    """The chains of the same bundle: every draft with a lookup, or another draft, that drafts for it."""
    models = (FIRST, *drafts[1:]) if drafts else ()
    return tuple(f"{guesser}:{model}" for model in models for guesser in (*LOOKUP_NAMES, *models) if guesser != model)


def check_drafter(name: str | None, has_model: bool, drafts: Sequence[str] = ()) -> str:
    """The name of a drafter, by default the first draft where there is one. Raises `ParameterError`.

    drafts: the names of the drafts, the first one's first, which becomes `model`; that name may be left out.
    """
    if name is None:
        return FIRST if has_model else LOOKUP_NAMES[0]
    if has_model and isinstance(name, str) and ":" in name:
        guesser, model = name.partition(":")[0], unguessed(name)
        models = (FIRST, *drafts)
        if model in models and guesser in (*LOOKUP_NAMES, *models):
            model = check_drafter(model, has_model, drafts)
            guesser = guesser if guesser in LOOKUP_NAMES else check_drafter(guesser, has_model, drafts)
            if guesser != model:
                return f"{guesser}:{model}"
    usable = all_drafters(drafts or (FIRST,)) if has_model else LOOKUP_NAMES
    first = dict(zip(drafters_of(drafts[0]), drafters_of(FIRST), strict=True)) if drafts and has_model else {}
    found = first.get(name, name) if isinstance(name, str) else name
    if found not in usable:
        lacking = "" if has_model else ", since this bundle was built without --draft"
        several = all_chains(drafts or (FIRST,)) if has_model else ()
        more = " and so on" if len(several) > SHOWN_CHAINS else ""
        chains = f", or a chain: {', '.join(several[:SHOWN_CHAINS])}{more}" if several else ""
        own = f" ({FIRST} is the draft {drafts[0]!r})" if first else ""
        if name == "lookup":
            raise ParameterError(f"drafter is 'lookup'; the lookups are called {' and '.join(LOOKUP_NAMES)}", "drafter")
        raise ParameterError(
            f"drafter is {name!r}; it must be one of {', '.join(usable)}{own}{chains}{lacking}", "drafter"
        )
    return found


def guessable(drafter: str, manifest: Manifest) -> bool:
    """Whether something can draft for the model of `drafter`, a chain: not if it keeps states, which cannot be rolled
    back to any row within a round.
    """
    model = unguessed(drafter)
    draft = manifest.draft if model == FIRST else manifest.more_drafts[model].model
    return draft is not None and not draft.has_states


def runnable_drafter(name: str | None, manifest: Manifest) -> str:
    """`check_drafter` for the drafts of a bundle. Raises `ParameterError` also for a chain that cannot run."""
    found = check_drafter(name, manifest.draft is not None, manifest.draft_names)
    if guesser_of(found) is not None and not guessable(found, manifest):
        model = unguessed(found)
        raise ParameterError(
            f"drafter is {found!r}, but the layers of {model!r} keep recurrent or convolution states, so nothing can "
            f"draft for it; name {model!r} alone",
            "drafter",
        )
    return found
