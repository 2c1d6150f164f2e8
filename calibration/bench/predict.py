"""The speedup that measured costs foresee for runs that were made: what a benchmark's own clock is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.policy.cost_model import Costs
from .interleaved import Pair, Predict


def predict_by(costs: Costs) -> Predict:
    """Plain rounds for every token, against the rounds that were run: h + v(n + 1) each, and d for every draft pass."""

    def predict(route: str, pairs: Sequence[Pair]) -> float | None:
        plain = speculative = 0.0
        for pair in pairs:
            run = pair.speculative
            at = costs.at(pair.prompt_tokens + run.emitted // 2)
            plain += run.emitted * at.plain
            for num_drafted, rounds in enumerate(run.rounds_by_drafted):
                speculative += rounds * (at.rounds[num_drafted] if run.device_seconds else at.looked_up(num_drafted))
            speculative += run.draft_passes * at.draft
        return plain / speculative

    return predict
