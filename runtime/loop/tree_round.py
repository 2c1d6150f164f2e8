"""Rounds whose verify pass is a tree: the draft, and leaves that may be the token that follows.

No row is ever moved. The cache row of a caught leaf lies in the wrong place, so it does not count, and the next pass
begins with that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ...bundle import Contract
from ...engines.base import Logits, TakesTrees
from ..drafting.drafters import Draft
from ..drafting.rounds import RoundOutcome, RoundPlan
from ..sampling.leaves import Leaf, Leaves, matching_leaf
from ..sampling.rules import Rule
from ..state.context import Context
from ..state.statistics import Statistics
from .speculate import HostRound, logprobs_of


class TreeRound(HostRound):
    """Pass by pass, like `HostRound`, with the leaves or the candidates of the rule."""

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
        """rule: with leaves or siblings. likeliest: see `HostRound`."""
        super().__init__(context, draft, rule, statistics, likeliest)
        leaves = rule.leaves or rule.siblings
        assert leaves is not None
        self._leaves: Leaves = leaves
        self._trees, self._contract = trees, contract

    def run(self, tokens: Sequence[int], plan: RoundPlan) -> RoundOutcome:
        self._leaves.begin(plan.num_draft_tokens)
        draft_tokens, sources = self._draft.propose(tokens, plan)
        start, position = perf_counter(), min(self._target.rows, len(tokens) - 1)
        fed = tokens[position:]  # the last token, and the leaf that the round before caught
        chain = [*fed, *draft_tokens]
        max_leaves = min(self._contract.widest_step, self._contract.capacity - position) - len(chain)
        leaves = self._leaves.take(max_leaves if plan.num_leaves is None else min(max_leaves, plan.num_leaves))
        logits = self._step(chain, leaves, position, len(fed) - 1)
        self._statistics.target_seconds += perf_counter() - start
        self._statistics.leaves += len(leaves)
        self._statistics.fed_again += len(fed) - 1
        logits = logits[len(fed) - 1 :]
        num_accepted, following = self._rule.accept_tree(logits, draft_tokens, leaves)
        logprobs = logprobs_of(logits, [*draft_tokens[:num_accepted], following[0]], self._likeliest)
        leaf = matching_leaf(leaves, num_accepted, following[0])
        if leaf is not None:
            logprobs += logprobs_of(logits[len(draft_tokens) + 1 + leaf :], following[1:], self._likeliest)
        return RoundOutcome(
            tuple(draft_tokens),
            tuple(sources),
            num_accepted,
            tuple(following),
            plan.drafter,
            len(leaves),
            logprobs,
        )

    def _step(self, chain: list[int], leaves: Sequence[Leaf], position: int, last: int) -> Logits:
        """last: the index of the sequence's last token in `chain`, the parent of draft tokens."""
        if not leaves:
            return self._target.step(chain, position)
        parents = [last + leaf.place for leaf in leaves]
        logits = self._trees.step_tree([*chain, *(leaf.token for leaf in leaves)], parents, position)
        self._target.rows = position + len(chain)
        return logits
