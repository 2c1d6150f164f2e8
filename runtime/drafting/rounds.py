"""What a schedule wants of a round, and what the round did. The order of calls, in `runtime/loop/speculate.py`:

plan = schedule.plan(sequence)      before each round
outcome = round.run(tokens, plan)   asks the plan's draft_stop while it drafts, if the host runs the passes
schedule.observe(outcome)           after each round that ran
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from ...engines.base import Logits
from ..sampling.logprobs import TokenLogprobs

Source = Literal["model", "lookup", "prediction", "grammar"]


class DraftStop(Protocol):
    """Asked while a round drafts."""

    def include(self, index: int, logits: Logits) -> bool:
        """Whether to take draft token `index`, from 0, which the last row of `logits` gives; asked before it is
        drawn.
        """
        ...

    def go_on(self, num_drafted: int) -> bool:
        """Whether to run another draft pass after `num_drafted` tokens of the model, 0 for the round's first."""
        ...

    def looked_up(self, odds: Sequence[float], drafted: int) -> int:
        """How many to take of the tokens that were looked up after `drafted` draft tokens.

        odds: of each of them, see `Lookup`.
        """
        ...


@dataclass(frozen=True)
class SequenceState:
    """What a schedule may look at before a round, apart from earlier outcomes.

    length: tokens of the sequence. missing_rows: how many of its rows the cache of a drafter's model lacks, by the
    drafter's name; 0 without a model.
    """

    length: int
    missing_rows: Callable[[str], int]


@dataclass(frozen=True)
class RoundPlan:
    """What a schedule wants of the next round.

    num_draft_tokens: at most, `forced` included. drafter: one of the request's, None for its first. forced: tokens that
    begin the draft, since the grammar allows no others. draft_stop: asked between draft passes, None to draft on.
    """

    num_draft_tokens: int
    drafter: str | None = None
    forced: tuple[int, ...] = ()
    draft_stop: DraftStop | None = None

    def limited(self, most: int) -> RoundPlan:
        """With no more than `most` draft tokens."""
        if self.num_draft_tokens <= most:
            return self
        return replace(self, num_draft_tokens=most, forced=self.forced[:most])


class Proposal(NamedTuple):
    """A round's draft. sources: where each of the tokens came from."""

    tokens: list[int]
    sources: list[Source]


@dataclass(frozen=True)
class RoundOutcome:
    """What a round did.

    sources: where each draft token came from. following: the target's own tokens after the accepted ones: one, or two
    where the first of them was a candidate. drafter: as in the plan. num_candidates: those with a row. logprobs: of the
    tokens, where the request wants them.
    """

    draft_tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    num_accepted: int
    following: tuple[int, ...] = ()
    drafter: str | None = None
    num_candidates: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def num_drafted(self) -> int:
        return len(self.draft_tokens)

    @property
    def tokens(self) -> list[int]:
        """What the round adds to the sequence."""
        return [*self.draft_tokens[: self.num_accepted], *self.following]

    @property
    def of_model(self) -> tuple[int, int]:
        """(tokens that the draft model drafted, how many of them were accepted), where none of another source precede
        them.
        """
        drafted = self.sources.count("model")
        return drafted, min(self.num_accepted, drafted)

    def part(self, start: int, stop: int) -> RoundOutcome:
        """As if the round had drafted `draft_tokens[start:stop]` only, all before `start` being accepted."""
        accepted = min(self.num_accepted, stop) - start
        tokens, sources = self.draft_tokens[start:stop], self.sources[start:stop]
        return replace(self, draft_tokens=tokens, sources=sources, num_accepted=accepted)
