"""Where draft tokens come from: a model, the text so far, or both: the text wherever it matches, and else the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

from ..sampling.rules import Rule
from ..state.context import CachedDecoder, Context
from ..state.statistics import Statistics
from .guide import Guide
from .lookup import Lookup, NgramLookup, SuffixLookup
from .names import model_of

LOOKUPS: dict[str, Callable[[int], Lookup]] = {"ngram": NgramLookup, "suffix": SuffixLookup}
# Beside a model, a match must be longer to be worth more than the model's guess.
SHORTEST_ALONE = 2
SHORTEST_BESIDE_A_MODEL = 3
# Tokens that a model catches up with in the first pass of its draft, rather than in one more.
AT_ONCE = 8


class Draft(Protocol):
    def prefill(self, tokens: Sequence[int]) -> None:
        """Get ready to continue `tokens`."""
        ...

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow, every one told to the rule in order."""
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
        """drafted: what was proposed already, which these tokens stand behind."""
        found = self._lookup.find(tokens, count, drafted) if count else []
        if found and self._guide is not None:
            found = found[: self._guide.looked_up(len(found), self._lookup.matched, len(drafted))]
        found = found[: self._rule.legal(found)]
        for token in found:
            self._rule.certain(token)
        self._statistics.looked_up += len(found)
        return found


class ModelDraft:
    """The draft model.

    Its first pass of a round feeds two tokens at least: after full acceptance it lacks the last one's row; after rounds
    that were looked up it lacks more.
    """

    def __init__(self, cached: CachedDecoder, rule: Rule, statistics: Statistics, guide: Guide | None = None) -> None:
        self._cached, self._rule, self._statistics, self._guide = cached, rule, statistics, guide
        self._at_once = max(2, min(AT_ONCE, cached.chunk))

    def prefill(self, tokens: Sequence[int]) -> None:
        if self._guide is None or self._guide.go_on(0):
            self._cached.prefill(tokens, len(tokens) - 2)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        return list(self.one_by_one(tokens, count))

    def one_by_one(self, tokens: Sequence[int], count: int) -> Iterator[int]:
        """As `propose`; no pass is run before its token is asked for."""
        if not count or (self._guide is not None and not self._guide.go_on(0)):
            return
        start = perf_counter()
        # What rounds without the model have left out is fed by the first pass too, where it is little.
        # Where the pass begins is what states must be able to go on behind.
        self._cached.prefill(tokens, max(len(tokens) - self._at_once, min(self._cached.rows, len(tokens) - 2)))
        place = max(0, min(self._cached.rows, len(tokens) - 2))
        logits = self._cached.step(tokens[place:], place)
        drafted = 0
        while True:
            self._statistics.draft_seconds += perf_counter() - start
            self._statistics.draft_passes += 1
            if self._guide is not None and not self._guide.include(drafted, logits):
                return
            token = self._rule.propose(logits[-1])
            if token is None:
                return
            drafted += 1
            yield token
            if drafted == count or (self._guide is not None and not self._guide.go_on(drafted)):
                return
            start = perf_counter()
            logits = self._cached.step([token], len(tokens) + drafted - 1)


class ExtendedDraft:
    """A model, and behind its tokens, as soon as one of the lookups finds something, what that has.

    All that decides where the lookup goes on are tokens that are part of the draft, so each of its tokens is one
    without chance behind its prefix, and the output stays the target's own.
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
    """What the grammar forces, without a pass of any model, and then what another draft proposes.

    Behind forced tokens only the model may go on: what they are verified to be is still open, and a lookup keeps all
    that it is shown.
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
    """The model among what `draft` is made of."""
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
    """`name`: from `check_drafter`; its model, where it has one, must be open.

    guide: asked between the draft model's passes. first: lookups before all others.
    """
    lookups = [*first]
    lookup, _, _ = name.partition("+")
    if lookup in LOOKUPS:
        shortest = SHORTEST_ALONE if lookup == name else SHORTEST_BESIDE_A_MODEL
        lookups.append(LookupDraft(LOOKUPS[lookup](shortest), rule, statistics, guide))
    drafts: list[Draft] = [*lookups]
    asked = model_of(name)
    if asked is not None:
        model = ModelDraft(context.of(asked), rule, statistics, guide)
        drafts.append(ExtendedDraft(model, lookups) if lookups else model)
    return drafts[0] if len(drafts) == 1 else FirstDraft(*drafts)
