"""Rounds whose verify pass is a tree: the draft, and candidates that may be the token that follows.

No row is ever moved. The cache row of an accepted candidate lies in the wrong place, so it does not count, and the next
pass begins with that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ...bundle import Contract
from ...engines.base import Logits, TakesTrees
from ..drafting.drafters import Draft
from ..drafting.rounds import RoundOutcome, RoundPlan
from ..sampling.rules import Rule
from ..sampling.spectr import Candidate, matching_candidate
from ..state.context import Context
from ..state.statistics import Statistics
from .speculate import HostRound, logprobs_of


class TreeRound(HostRound):
    """Pass by pass, like `HostRound`, with the candidates of the rule."""

    def __init__(
        self,
        context: Context,
        draft: Draft,
        rule: Rule,
        statistics: Statistics,
        trees: TakesTrees,
        contract: Contract,
        likeliest: int | None = None,
    ) -> None:
        """rule: with candidates. likeliest: see `HostRound`."""
        super().__init__(context, draft, rule, statistics, likeliest)
        assert rule.candidates is not None
        self._candidates, self._trees, self._contract = rule.candidates, trees, contract

    def run(self, tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
        self._candidates.begin(plan.num_draft_tokens)
        draft_tokens, sources = self._draft.propose(tokens, plan)
        start, position = perf_counter(), min(self._target.rows, len(tokens) - 1)
        fed = tokens[position:]  # the last token, and before it the candidate that the last round accepted
        chain = [*fed, *draft_tokens]
        room = min(self._contract.widest_step, self._contract.capacity - position) - len(chain)
        candidates = self._candidates.take(room)
        logits = self._step(chain, candidates, position, len(fed) - 1)
        self._statistics.target_seconds += perf_counter() - start
        self._statistics.candidates += len(candidates)
        self._statistics.fed_again += len(fed) - 1
        logits = logits[len(fed) - 1 :]
        num_accepted, following = self._rule.accept_tree(logits, draft_tokens, candidates)
        logprobs = logprobs_of(logits, [*draft_tokens[:num_accepted], following[0]], self._likeliest)
        found = matching_candidate(candidates, num_accepted, following[0])
        if found is not None:
            logprobs += logprobs_of(logits[len(draft_tokens) + 1 + found :], following[1:], self._likeliest)
        return RoundOutcome(
            tuple(draft_tokens),
            tuple(sources),
            num_accepted,
            tuple(following),
            plan.drafter,
            len(candidates),
            logprobs,
        )

    def _step(self, chain: list[int], candidates: Sequence[Candidate], position: int, last: int) -> Logits:
        """last: the index of the sequence's last token in `chain`, the parent of draft tokens."""
        if not candidates:
            return self._target.step(chain, position)
        parents = [last + one.place for one in candidates]
        logits = self._trees.step_tree([*chain, *(one.token for one in candidates)], parents, position)
        self._target.rows = position + len(chain)
        return logits
