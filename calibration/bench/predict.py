"""Speedup that `costs.json` predicts for the rounds of a benchmark, to compare with the measured one."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.policy.cost_model import Costs
from .results import PairedRun, Predict


def predict_by(costs: Costs) -> Predict:
    """One plain round per token, over the rounds that ran: h + v(n + 1) each, plus d for every draft pass.

    See docs/when-it-pays.md for h, v and d.
    """

    def predict(route: str, pairs: Sequence[PairedRun]) -> float | None:
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
