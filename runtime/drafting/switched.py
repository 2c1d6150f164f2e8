"""Several drafters of one request, one of which drafts each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..state.context import Context
from .drafters import Draft
from .names import model_of


class SwitchedDraft:
    """Drafts with the one that `chosen` returns when the round begins. The caches of the others lag behind, and catch
    up when it is their turn.
    """

    def __init__(self, drafts: Mapping[str, Draft], chosen: Callable[[], str], context: Context) -> None:
        """drafts: by drafter, over caches of `context`."""
        self._drafts, self._chosen, self._context = drafts, chosen, context
        self._models = {name: model_of(name) or next(iter(context.drafts)) for name in drafts}

    def prefill(self, tokens: Sequence[int]) -> None:
        self._turn().prefill(tokens)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        return self._turn().propose(tokens, count)

    def _turn(self) -> Draft:
        name = self._chosen()
        self._context.drafts_with = self._models[name]
        return self._drafts[name]
