"""Where draft tokens come from: a model, a lookup in the text so far and in earlier answers, or both: the lookup where
it matches, else the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ...bundle.drafts import LOOKUP
from ..sampling.rules import Proposer
from ..state.context import Context
from ..state.hidden_rows import HiddenDecoder
from ..state.statistics import Statistics
from .lookup import Lookup, NgramLookup, PredictionLookup
from .model_draft import HiddenDraft, ModelDraft
from .names import model_of
from .ngram_cache import AnswerLookup
from .rounds import Proposal, RoundPlan, Source

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


class Drafter:
    """The draft of one drafter: what the first of the lookups finds, else the model's tokens.

    As soon as a lookup finds a match after tokens of the model, that match continues the draft. Where it continues
    depends only on tokens that are part of the draft. So each of its tokens is deterministic given its prefix, and the
    output stays the target's own.
    """

    def __init__(
        self,
        rule: Proposer,
        model: ModelDraft | None = None,
        lookups: Sequence[Lookup] = (),
    ) -> None:
        """Without a model and lookups it decodes plainly."""
        self._rule, self._model, self._lookups = rule, model, lookups

    def prefill(self, tokens: Sequence[int], plan: RoundPlan) -> None:
        for lookup in self._lookups:
            lookup.find(tokens, 0)
        if self._model is not None:
            self._model.prefill(tokens, plan)

    def propose(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        if plan.forced:
            return self._after_forced(tokens, plan)
        drafted: list[int] = []
        matched = self._look_up(tokens, plan, drafted)
        if matched.tokens or self._model is None:
            return matched
        for token in self._model.one_by_one(tokens, plan):
            drafted.append(token)
            if self._lookups and (matched := self._look_up(tokens, plan, drafted)).tokens:
                break
        return Proposal([*drafted, *matched.tokens], [*list[Source](["model"] * len(drafted)), *matched.sources])

    def _look_up(self, tokens: Sequence[int], plan: RoundPlan, drafted: Sequence[int]) -> Proposal:
        """What the first lookup that finds something proposes after `drafted`."""
        count = plan.num_draft_tokens - len(drafted)
        for lookup in self._lookups if count else ():
            matched = lookup.find(tokens, count, drafted)
            if matched and plan.draft_stop is not None and lookup.source == "lookup":
                matched = matched[: plan.draft_stop.looked_up(lookup.odds, len(drafted))]
            matched = matched[: self._rule.legal(matched)]
            if matched:
                for token in matched:
                    self._rule.record_deterministic(token)
                return Proposal(matched, [lookup.source] * len(matched))
        return Proposal([], [])

    def _after_forced(self, tokens: Sequence[int], plan: RoundPlan) -> Proposal:
        """The plan's forced tokens, without a pass of any model, and then the model's.

        Only the model may continue: what forced tokens are verified to be is not known yet, and a lookup remembers all
        tokens that it is shown.
        """
        forced, rest = list(plan.forced), plan.num_draft_tokens - len(plan.forced)
        for token in forced:
            self._rule.record_deterministic(token)
        drafted = list[int]()
        if self._model is not None and rest:
            left = replace(plan, num_draft_tokens=rest, forced=())
            drafted = list(self._model.one_by_one([*tokens, *forced], left))
        sources: list[Source] = ["grammar" for _ in forced]
        sources += ["model" for _ in drafted]
        return Proposal([*forced, *drafted], sources)


class SwitchedDraft:
    """Several drafters of one request; the plan's drafts the round. The caches of the others lag behind, and catch up
    when it is their turn.
    """

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


def make_draft(
    names: Sequence[str],
    context: Context,
    rule: Proposer,
    statistics: Statistics,
    prediction: PredictionLookup | None = None,
    answers: AnswerLookup | None = None,
) -> Draft:
    """names: from `check_drafter`, none for plain decoding; their models must be open. prediction: comes before all
    lookups. answers: comes after them.
    """
    first = [prediction] if prediction is not None else []
    drafts = {name: _drafter(name, context, rule, statistics, first, answers) for name in names}
    if len(drafts) > 1:
        return SwitchedDraft(drafts, context)
    return drafts[names[0]] if drafts else Drafter(rule)


def lookups_of(drafter: str, answers: AnswerLookup | None) -> list[Lookup]:
    """The lookups that are part of `drafter`: in the text, then in earlier answers."""
    if drafter.partition("+")[0] != LOOKUP:
        return []
    text = NgramLookup(SHORTEST_ALONE if drafter == LOOKUP else SHORTEST_BESIDE_A_MODEL)
    return [text] if answers is None else [text, answers]


def _drafter(
    name: str,
    context: Context,
    rule: Proposer,
    statistics: Statistics,
    first: Sequence[Lookup],
    answers: AnswerLookup | None,
) -> Drafter:
    lookups, used, model = [*first, *lookups_of(name, answers)], model_of(name), None
    if used is not None:
        cached = context.drafts[used]
        model = (HiddenDraft if isinstance(cached, HiddenDecoder) else ModelDraft)(cached, rule, statistics)
    return Drafter(rule, model, lookups)
