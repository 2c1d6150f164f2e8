"""Replays a draft model for which something cheaper guesses tokens (`runtime/drafting/model_draft.py`): the draft
tokens are the same, and the replay tells how many passes they take.

Up to its first miss, the draft's tokens are the text. After a miss they are known only if the request was recorded
greedily, and only as far as the recorded round went; any other guess counts as wrong. So the replay never counts too
few passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.base import Logits
from ...runtime.drafting.drafters import LOOKUPS
from ...runtime.drafting.model_draft import GUESSES, SHORTEST_FOR_A_MODEL
from ...runtime.drafting.names import cascade_source_of
from ...runtime.drafting.rounds import Guide
from .traces import Trace, agreeing, known

# A guess that was not recorded; it equals no token id.
UNKNOWN = -1


@dataclass(frozen=True)
class CascadeTokens:
    """drafted: how many tokens were drafted. asked: the same, plus one if the last one was left out. saved: by how many
    passes the draft took fewer than `asked`. rows: rows of guesses in its passes. seconds: time of the guessing.
    """

    drafted: int
    asked: int
    saved: int
    rows: int
    seconds: float


class Said:
    """The draft's greedy tokens at any place of its trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._agrees, self._missed = trace, known(trace), {one[0]: one[1:] for one in trace.missed}

    def at(self, place: int, count: int) -> list[int]:
        """The `count` tokens that the draft proposes after `tokens[:place]` of the trace."""
        start = place - self._trace.prompt_tokens
        right = agreeing(self._agrees[start:], count)
        said = [*self._trace.tokens[place : place + right], *self._missed.get(start + right, ())][:count]
        return said + [UNKNOWN] * (count - len(said))


class _Recorded:
    """A smaller draft that guesses, replayed from its own record of the request, and the time that it takes."""

    def __init__(self, trace: Trace, guesser: str) -> None:
        self._recorded, self._tokens, self._rows = trace.guessers[guesser], trace.tokens, trace.prompt_tokens
        self._said = Said(self._recorded.trace)
        self._same = agreeing([a == b for a, b in zip(trace.tokens, self._recorded.trace.tokens, strict=False)], 2**62)
        self.seconds = 0.0

    def find(self, tokens: Sequence[int], count: int, drafted: Sequence[int] = ()) -> list[int]:
        """`count` guesses after `tokens` and `drafted`. The time includes feeding the rows that its cache lacks."""
        place = len(tokens) + len(drafted)
        costs, lacks = self._recorded.at(place), max(1, place - min(self._rows, len(tokens)))
        self.seconds += count * costs.draft + (lacks - 1) * costs.draft_row
        self._rows = place
        if drafted and list(drafted) == list(self._tokens[len(tokens) : place]) and place <= self._same:
            return self._said.at(place, count)
        said = self._said.at(len(tokens), len(drafted) + count)
        if said[: len(drafted)] != list(drafted) or len(tokens) > self._same:
            return [UNKNOWN] * count  # not recorded after such a text
        return said[len(drafted) :]


class CascadeReplay:
    """Replays one request as `CascadeDraft` runs it, except that a pass that catches up on rows has no guesses here."""

    def __init__(self, trace: Trace, drafter: str) -> None:
        guesser = cascade_source_of(drafter)
        assert guesser is not None
        self._tokens, self._said = trace.tokens, Said(trace)
        self._recorded = None if guesser in LOOKUPS else _Recorded(trace, guesser)
        self._guess = self._recorded or LOOKUPS[guesser](SHORTEST_FOR_A_MODEL)

    def draft(self, place: int, count: int, behind: int, guide: Guide | None, seen: Sequence[Logits]) -> CascadeTokens:
        """Draft up to `count` tokens after `tokens[:place]`. behind: see `ReplayedRound`. seen: by token, the logits
        that a guide which reads the draft's confidence gets.
        """
        text, said = self._tokens[:place], self._said.at(place, count)
        before = self._recorded.seconds if self._recorded else 0.0
        drafted = asked = passes = rows = 0
        out = False
        while not out and drafted < count and (guide is None or guide.go_on(drafted)):
            room = 0 if behind and not passes else min(GUESSES, count - drafted - 1)
            guesses = self._guess.find(text, room, said[:drafted]) if room else []
            passes, rows = passes + 1, rows + len(guesses)
            for guess in (*guesses, UNKNOWN):
                asked += 1
                out = guide is not None and not guide.include(drafted, seen[drafted])
                drafted += not out
                if out or said[drafted - 1] != guess or guess == UNKNOWN or drafted == count:
                    break
        seconds = self._recorded.seconds - before if self._recorded else 0.0
        return CascadeTokens(drafted, asked, asked - passes, rows, seconds)
