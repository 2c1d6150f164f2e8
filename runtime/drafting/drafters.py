"""Where draft tokens come from: a model, a lookup in the text so far, or both: the lookup where it matches, else the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..sampling.rules import Proposer
from ..state.context import Context
from ..state.statistics import Statistics
from .guessed import SHORTEST_FOR_A_MODEL, CascadeDraft, CascadeSource, ModelCascadeSource
from .lookup import Lookup, NgramLookup, SuffixLookup
from .model_draft import ModelDraft
from .names import cascade_source_of, model_of
from .rounds import Proposal, RoundPlan, Source

LOOKUPS: dict[str, Callable[[int], Lookup]] = {"ngram": NgramLookup, "suffix": SuffixLookup}
# With a model, a match must be longer to be worth more than the model's token.
SHORTEST_ALONE = 2
SHORTEST_BESIDE_A_MODEL = 3


class Draft(Protocol):
    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        """Prepare to continue `tokens`."""
        ...

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        """Tokens that may follow, as many as the plan allows, each reported to the rule in order."""
        ...


class NoDraft:
    """Plain decoding."""

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        pass

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        return Proposal([], [])


class LookupDraft:
    """source: of its tokens; the guide is asked about those of lookups only."""

    def __init__(self, lookup: Lookup, rule: Proposer, statistics: Statistics, source: Source = "lookup") -> None:
        self._lookup, self._rule, self._statistics, self._source = lookup, rule, statistics, source

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        self._lookup.find(tokens, 0)

    def propose(self, tokens: Sequence[int], plan: RoundPlan, drafted: Sequence[int] = ()) -> Proposal:
        """drafted: tokens that were proposed already, which these follow."""
        count = plan.num_draft_tokens - len(drafted)
        found = self._lookup.find(tokens, count, drafted) if count else []
        if found and plan.guide is not None and self._source == "lookup":
            found = found[: plan.guide.looked_up(len(found), self._lookup.matched, len(drafted))]
        found = found[: self._rule.legal(found)]
        for token in found:
            self._rule.certain(token)
        self._statistics.looked_up += len(found)
        return Proposal(found, [self._source] * len(found))


class ExtendedDraft:
    """A model; as soon as one of the lookups finds a match after the model's tokens, that match continues the draft.

    Where the lookup continues depends only on tokens that are part of the draft. So each of its tokens is deterministic
    given its prefix, and the output stays the target's own.
    """

    def __init__(self, model: ModelDraft, lookups: Sequence[LookupDraft]) -> None:
        self.model, self._lookups = model, lookups
        self.prefill = model.prefill

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        drafted: list[int] = []
        sources: list[Source] = []
        for token in self.model.one_by_one(tokens, plan):
            drafted.append(token)
            sources.append("model")
            for lookup in self._lookups:
                found = lookup.propose(tokens, plan, drafted)
                if found.tokens:
                    return Proposal([*drafted, *found.tokens], [*sources, *found.sources])
        return Proposal(drafted, sources)


class FirstDraft:
    """The first of several drafts that has something to propose."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = drafts

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        for draft in self.drafts:
            draft.prefill(tokens, plan)

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        found = Proposal([], [])
        for draft in self.drafts:
            found = draft.propose(tokens, plan)
            if found.tokens:
                break
        return found


class ForcedDraft:
    """The plan's forced tokens, without a pass of any model, and then the tokens of another draft.

    After forced tokens only the model may continue: what they are verified to be is not known yet, and a lookup
    remembers all tokens that it is shown.
    """

    def __init__(self, draft: Draft, rule: Proposer, statistics: Statistics) -> None:
        self._draft, self._model, self._rule, self._statistics = draft, _model_of(draft), rule, statistics
        self.prefill = draft.prefill

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        forced, sources = list(plan.forced), list[Source](["grammar"] * len(plan.forced))
        if not forced:
            return self._draft.propose(tokens, plan)
        for token in forced:
            self._rule.certain(token)
        self._statistics.forced += len(forced)
        if self._model is None or len(forced) == plan.num_draft_tokens:
            return Proposal(forced, sources)
        rest = replace(plan, num_draft_tokens=plan.num_draft_tokens - len(forced), forced=())
        found = self._model.propose([*tokens, *forced], rest)
        return Proposal([*forced, *found.tokens], [*sources, *found.sources])


def _model_of(draft: Draft) -> ModelDraft | None:
    """The model that is part of `draft`, if any."""
    if isinstance(draft, ModelDraft):
        return draft
    if isinstance(draft, ExtendedDraft):
        return draft.model
    parts = draft.drafts if isinstance(draft, FirstDraft) else ()
    return next((model for part in parts if (model := _model_of(part)) is not None), None)


def make_draft(
    name: str, context: Context, rule: Proposer, statistics: Statistics, first: Sequence[LookupDraft] = ()
) -> Draft:
    """`name`: from `runnable_drafter`; its model, where it has one, must be open.

    first: lookups that come before all others.
    """
    lookups = [*first]
    lookup, _, _ = name.partition("+")
    if lookup in LOOKUPS:
        shortest = SHORTEST_ALONE if lookup == name else SHORTEST_BESIDE_A_MODEL
        lookups.append(LookupDraft(LOOKUPS[lookup](shortest), rule, statistics))
    drafts: list[Draft] = [*lookups]
    asked = model_of(name)
    if asked is not None:
        model = _model(name, asked, context, rule, statistics)
        drafts.append(ExtendedDraft(model, lookups) if lookups else model)
    return drafts[0] if len(drafts) == 1 else FirstDraft(*drafts)


def _model(name: str, asked: str, context: Context, rule: Proposer, statistics: Statistics) -> ModelDraft:
    """The draft model `asked` by `name`, with what drafts for it in a chain."""
    guesser = cascade_source_of(name)
    if guesser is None:
        return ModelDraft(context.drafts[asked], rule, statistics)
    guess: CascadeSource
    if guesser in LOOKUPS:
        guess = LOOKUPS[guesser](SHORTEST_FOR_A_MODEL)
    else:
        guess = ModelCascadeSource(context.drafts[guesser], context.target.decoder.vocab_size, statistics)
    return CascadeDraft(context.drafts[asked], guess, rule, statistics)
