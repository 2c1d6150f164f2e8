"""Several drafters of one request, one of which drafts each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..state.context import Context
from .drafters import Draft
from .names import model_of
from .rounds import Proposal, RoundPlan


class SwitchedDraft:
    """Drafts with the plan's drafter. The caches of the others lag behind, and catch up when it is their turn."""

    def __init__(self, drafts: Mapping[str, Draft], context: Context) -> None:
        """drafts: by drafter, over caches of `context`."""
        self._drafts, self._context = drafts, context
        self._models = {name: model_of(name) or next(iter(context.drafts)) for name in drafts}

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        self._of(plan).prefill(tokens, plan)

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        return self._of(plan).propose(tokens, plan)

    def _of(self, plan: RoundPlan) -> Draft:
        name = plan.drafter or next(iter(self._drafts))
        self._context.drafts_with = self._models[name]
        return self._drafts[name]
