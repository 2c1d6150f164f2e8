"""Chains, in which something cheaper guesses for a draft: the cost of the draft's tokens, and when a chain pays."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.drafting.names import cascade_source_of
from ...runtime.policy.cost_model import Costs
from ..measuring.trace_replay import replay
from ..measuring.traces import Trace, cached

# A chain must be faster than the best drafter without one by this factor, not by the 2 % of other drafters: it only
# saves passes of the draft, priced by the median cost of a row, and a smaller draft takes additional memory.
CHAIN_BETTER_BY = 1.05


def unit_of(traces: Sequence[Trace], drafter: str, costs: Costs) -> float:
    """The cost of a draft token after a round's first, in passes of the draft, at most 1; 1 if nothing guesses for the
    draft.

    Measured on replayed rounds with the largest number of draft tokens.
    """
    if cascade_source_of(drafter) is None:
        return 1.0
    at, spent, whole = cached(costs), 0.0, 0.0
    for trace in traces:
        for one in replay(trace, drafter, costs.max_draft_tokens):
            if one.num_drafted:
                price = at(one.context + 1)
                spent += (one.passes - one.saved - 1) * price.draft + one.guess_rows * price.draft_row
                spent += one.guess_seconds
                whole += (one.num_drafted - 1) * price.draft
    return round(min(1.0, spent / whole), 4) if whole else 1.0
