"""Replays a cascade, in which something cheaper drafts for the draft (`runtime/drafting/model_draft.py`): the draft
tokens are the same, and the replay says how many passes they take.

Up to its first miss, the draft's tokens are the text. After a miss they are known only if the request was recorded
greedily, and only as far as the recorded round went; any other guess counts as wrong. So the replay never counts too
few passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...bundle.drafts import LOOKUP
from ...engines.base import Logits
from ...runtime.drafting.lookup import NgramLookup
from ...runtime.drafting.model_draft import GUESSES, SHORTEST_FOR_A_MODEL
from ...runtime.drafting.names import cascade_source_of
from ...runtime.drafting.rounds import DraftStop
from .traces import Trace, agreeing, known, matching

# A guess that was not recorded; it equals no token id.
UNKNOWN = -1


@dataclass(frozen=True)
class ModelDraft:
    """What a draft model did in a round. drafted: tokens. passes: as many, plus one if a token was left out. In a
    cascade: saved, passes that it did not need; rows, guesses in its passes; seconds, the time of the guessing.
    """

    drafted: int
    passes: int
    saved: int = 0
    rows: int = 0
    seconds: float = 0.0


class DraftTokens:
    """The draft's greedy tokens at any place of its trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._agrees, self._missed = trace, known(trace), {one[0]: one[1:] for one in trace.missed}

    def at(self, place: int, count: int) -> list[int]:
        """The `count` tokens that the draft proposes after `tokens[:place]` of the trace."""
        start = place - self._trace.prompt_tokens
        right = agreeing(self._agrees[start:], count)
        tokens = [*self._trace.tokens[place : place + right], *self._missed.get(start + right, ())][:count]
        return tokens + [UNKNOWN] * (count - len(tokens))


class _SmallerDraft:
    """A smaller draft that guesses, replayed from a record of the request, and the time that it takes."""

    def __init__(self, trace: Trace, name: str) -> None:
        self._source, self._tokens, self._rows = trace.smaller[name], trace.tokens, trace.prompt_tokens
        self._drafts = DraftTokens(self._source.trace)
        self._same = matching(trace.tokens, self._source.trace.tokens)
        self.seconds = 0.0

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """`count` guesses after `tokens` and `drafted`. The time includes feeding the rows that its cache lacks."""
        place = len(tokens) + len(drafted)
        costs, lacks = self._source.at(place), max(1, place - min(self._rows, len(tokens)))
        self.seconds += count * costs.draft + (lacks - 1) * costs.draft_row
        self._rows = place
        if drafted and list(drafted) == list(self._tokens[len(tokens) : place]) and place <= self._same:
            return self._drafts.at(place, count)
        guesses = self._drafts.at(len(tokens), len(drafted) + count)
        if guesses[: len(drafted)] != list(drafted) or len(tokens) > self._same:
            return [UNKNOWN] * count  # not recorded after such a text
        return guesses[len(drafted) :]


class CascadeReplay:
    """Replays one request as `CascadeDraft` runs it, except that a pass that catches up on rows has no guesses here."""

    def __init__(self, trace: Trace, drafter: str) -> None:
        source = cascade_source_of(drafter)
        assert source is not None
        self._tokens, self._drafts = trace.tokens, DraftTokens(trace)
        self._smaller = None if source == LOOKUP else _SmallerDraft(trace, source)
        self._source = self._smaller or NgramLookup(SHORTEST_FOR_A_MODEL)

    def draft(
        self, place: int, count: int, missing_rows: int, draft_stop: DraftStop | None, seen: Sequence[Logits]
    ) -> ModelDraft:
        """Draft up to `count` tokens after `tokens[:place]`. behind: see `ReplayedRound`. seen: by token, the logits
        that a `DraftStop` that reads the draft's confidence gets.
        """
        text, tokens = self._tokens[:place], self._drafts.at(place, count)
        before = self._smaller.seconds if self._smaller else 0.0
        drafted = tried = passes = rows = 0
        out = False
        while not out and drafted < count and (draft_stop is None or draft_stop.go_on(drafted)):
            room = 0 if missing_rows and not passes else min(GUESSES, count - drafted - 1)
            guesses = self._source.find(text, room, tokens[:drafted]) if room else []
            passes, rows = passes + 1, rows + len(guesses)
            for guess in (*guesses, UNKNOWN):
                tried += 1
                out = draft_stop is not None and not draft_stop.include(drafted, seen[drafted])
                drafted += not out
                if out or tokens[drafted - 1] != guess or guess == UNKNOWN or drafted == count:
                    break
        seconds = self._smaller.seconds - before if self._smaller else 0.0
        return ModelDraft(drafted, tried, tried - passes, rows, seconds)
