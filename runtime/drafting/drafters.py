"""Where draft tokens come from: a model, a lookup in the text so far, or both: the lookup where it matches, else the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..sampling.rules import Rule
from ..state.context import Context
from ..state.statistics import Statistics
from .guessed import SHORTEST_FOR_A_MODEL, Guess, GuessedDraft, ModelGuess
from .guide import Guide
from .lookup import Lookup, NgramLookup, SuffixLookup
from .model_draft import ModelDraft
from .names import guesser_of, model_of

LOOKUPS: dict[str, Callable[[int], Lookup]] = {"ngram": NgramLookup, "suffix": SuffixLookup}
# With a model, a match must be longer to be worth more than the model's token.
SHORTEST_ALONE = 2
SHORTEST_BESIDE_A_MODEL = 3


class Draft(Protocol):
    def prefill(self, tokens: Sequence[int]) -> None:
        """Prepare to continue `tokens`."""
        ...

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow, each reported to the rule in order."""
        ...


class NoDraft:
    """Plain decoding."""

    def prefill(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        return []


class LookupDraft:
    def __init__(self, lookup: Lookup, rule: Rule, statistics: Statistics, guide: Guide | None = None) -> None:
        self._lookup, self._rule, self._statistics, self._guide = lookup, rule, statistics, guide

    def prefill(self, tokens: Sequence[int]) -> None:
        self._lookup.find(tokens, 0)

    def propose(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """drafted: tokens that were proposed already, which these follow."""
        found = self._lookup.find(tokens, count, drafted) if count else []
        if found and self._guide is not None:
            found = found[: self._guide.looked_up(len(found), self._lookup.matched, len(drafted))]
        found = found[: self._rule.legal(found)]
        for token in found:
            self._rule.certain(token)
        self._statistics.looked_up += len(found)
        return found


class ExtendedDraft:
    """A model; as soon as one of the lookups finds a match after the model's tokens, that match continues the draft.

    Where the lookup continues depends only on tokens that are part of the draft. So each of its tokens is deterministic
    given its prefix, and the output stays the target's own.
    """

    def __init__(self, model: ModelDraft, lookups: Sequence[LookupDraft]) -> None:
        self.model, self._lookups = model, lookups
        self.prefill = model.prefill

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        drafted: list[int] = []
        for token in self.model.one_by_one(tokens, count):
            drafted.append(token)
            for lookup in self._lookups:
                if found := lookup.propose(tokens, count - len(drafted), drafted):
                    return [*drafted, *found]
        return drafted


class FirstDraft:
    """The first of several drafts that has something to propose."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = drafts

    def prefill(self, tokens: Sequence[int]) -> None:
        for draft in self.drafts:
            draft.prefill(tokens)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        for draft in self.drafts:
            found = draft.propose(tokens, count)
            if found:
                return found
        return []


class ForcedDraft:
    """Tokens that the grammar forces, without a pass of any model, and then the tokens of another draft.

    After forced tokens only the model may continue: what they are verified to be is not known yet, and a lookup
    remembers all tokens that it is shown.
    """

    def __init__(self, draft: Draft, rule: Rule, statistics: Statistics) -> None:
        self._draft, self._model, self._rule, self._statistics = draft, _model_of(draft), rule, statistics
        self.prefill = draft.prefill

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        forced = self._rule.forced(count)
        if not forced:
            return self._draft.propose(tokens, count)
        for token in forced:
            self._rule.certain(token)
        self._statistics.forced += len(forced)
        if self._model is None or len(forced) == count:
            return forced
        return [*forced, *self._model.propose([*tokens, *forced], count - len(forced))]


def _model_of(draft: Draft) -> ModelDraft | None:
    """The model that is part of `draft`, if any."""
    if isinstance(draft, ModelDraft):
        return draft
    if isinstance(draft, ExtendedDraft):
        return draft.model
    parts = draft.drafts if isinstance(draft, FirstDraft) else ()
    return next((model for part in parts if (model := _model_of(part)) is not None), None)


def make_draft(
    name: str,
    context: Context,
    rule: Rule,
    statistics: Statistics,
    guide: Guide | None = None,
    first: Sequence[LookupDraft] = (),
) -> Draft:
    """`name`: from `runnable_drafter`; its model, where it has one, must be open.

    guide: asked between the draft model's passes. first: lookups that come before all others.
    """
    lookups = [*first]
    lookup, _, _ = name.partition("+")
    if lookup in LOOKUPS:
        shortest = SHORTEST_ALONE if lookup == name else SHORTEST_BESIDE_A_MODEL
        lookups.append(LookupDraft(LOOKUPS[lookup](shortest), rule, statistics, guide))
    drafts: list[Draft] = [*lookups]
    asked = model_of(name)
    if asked is not None:
        model = _model(name, asked, context, rule, statistics, guide)
        drafts.append(ExtendedDraft(model, lookups) if lookups else model)
    return drafts[0] if len(drafts) == 1 else FirstDraft(*drafts)


def _model(
    name: str, asked: str, context: Context, rule: Rule, statistics: Statistics, guide: Guide | None
) -> ModelDraft:
    """The draft model `asked` by `name`, with what drafts for it in a chain."""
    guesser = guesser_of(name)
    if guesser is None:
        return ModelDraft(context.drafts[asked], rule, statistics, guide)
    guess: Guess
    if guesser in LOOKUPS:
        guess = LOOKUPS[guesser](SHORTEST_FOR_A_MODEL)
    else:
        guess = ModelGuess(context.drafts[guesser], context.target.decoder.vocab_size, statistics)
    return GuessedDraft(context.drafts[asked], guess, rule, statistics, guide)
