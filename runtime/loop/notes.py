"""What a round did, for reports: where its draft came from, and the target's log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...engines.base import Logits
from ..sampling.distribution import Row
from ..sampling.leaves import Leaf, caught
from ..sampling.logprobs import TokenLogprobs, token_logprobs
from ..sampling.rules import Rule
from .speculate import Round

Source = Literal["model", "lookup", "prediction", "grammar"]


@dataclass
class Notes:
    """Of a request's newest round. likeliest: for how many alternatives to each token log-probabilities are kept, None
    for no log-probabilities at all. sources: one for each of draft_tokens; num_accepted: how many of them were
    accepted. logprobs: one for each token that the round gave.
    """

    likeliest: int | None
    draft_tokens: Sequence[int] = ()
    num_accepted: int = 0
    sources: list[Source] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class NotedRule:
    """A rule whose drafts and rows are recorded. certain_source: the source of deterministic draft tokens."""

    def __init__(self, rule: Rule, notes: Notes, certain_source: Source = "lookup") -> None:
        self._rule, self._notes, self._certain_source = rule, notes, certain_source
        self.constrained, self.legal, self.forced = rule.constrained, rule.legal, rule.forced
        self.siblings = rule.siblings

    def propose(self, draft_logits: Row) -> int | None:
        token = self._rule.propose(draft_logits)
        if token is not None:
            self._notes.sources.append("model")
        return token

    def certain(self, draft_token: int) -> None:
        self._rule.certain(draft_token)
        self._notes.sources.append(self._certain_source)

    def accept(self, target_logits: Logits, draft_tokens: Sequence[int]) -> tuple[int, int]:
        count, token = self._rule.accept(target_logits, draft_tokens)
        self._note(target_logits, [*draft_tokens[:count], token])
        return count, token

    def accept_tree(
        self, target_logits: Logits, draft_tokens: Sequence[int], leaves: Sequence[Leaf]
    ) -> tuple[int, list[int]]:
        count, following = self._rule.accept_tree(target_logits, draft_tokens, leaves)
        self._note(target_logits, [*draft_tokens[:count], following[0]])
        leaf = caught(leaves, count, following[0])
        if leaf is not None:
            before, row = self._notes.logprobs, len(draft_tokens) + 1 + leaf
            self._note(target_logits[row:], following[1:])
            self._notes.logprobs = before + self._notes.logprobs
        return count, following

    def _note(self, rows: Logits, kept: Sequence[int]) -> None:
        """kept: tokens, each from the row of its position."""
        likeliest = self._notes.likeliest
        if likeliest is not None:
            # The rule changes copies of the rows, so these are the target's own.
            logprobs = [token_logprobs(row, token, likeliest) for row, token in zip(rows, kept, strict=False)]
            self._notes.logprobs = logprobs


class NotedRound:
    """A round that reports what it drafted; rounds on the device know of no rule, and draft with the model only."""

    def __init__(self, round: Round, notes: Notes) -> None:
        self._round, self._notes = round, notes
        self.prefill = round.prefill

    def run(self, tokens: Sequence[int], count: int) -> tuple[list[int], int, list[int]]:
        notes = self._notes
        notes.sources = []
        draft_tokens, num_accepted, following = self._round.run(tokens, count)
        notes.draft_tokens, notes.num_accepted = draft_tokens, num_accepted
        notes.sources += ["model"] * (len(draft_tokens) - len(notes.sources))
        return draft_tokens, num_accepted, following
