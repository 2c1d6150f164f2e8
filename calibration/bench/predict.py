"""Speedup that `costs.json` predicts for the rounds of a benchmark, to compare with the measured one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...runtime.drafting.names import FIRST, model_of
from ...runtime.policy.cost_model import Costs
from ...runtime.session import Session
from .results import BenchOptions, PairedRun, Predict


def predict_by(costs: Costs, drafter_of: Callable[[str], str] = lambda route: FIRST) -> Predict:
    """One plain round per token, over the rounds that ran: h + v(n + 1) each, plus d for every draft pass.

    See docs/when-it-pays.md for h, v and d. drafter_of: a route's; nothing is predicted where no costs are of its
    draft.
    """

    def predict(route: str, pairs: Sequence[PairedRun]) -> float | None:
        plain = speculative = 0.0
        model = model_of(drafter_of(route)) or FIRST
        if model != FIRST and model not in costs.drafts:
            return None
        of_draft = costs if model == FIRST else costs.of(model)
        for pair in pairs:
            run = pair.speculative
            at = of_draft.at(pair.prompt_tokens + run.emitted // 2)
            plain += run.emitted * at.plain
            for num_drafted, rounds in enumerate(run.rounds_by_drafted):
                speculative += rounds * (at.rounds[num_drafted] if run.device_seconds else at.looked_up(num_drafted))
            speculative += run.draft_passes * at.draft
        return plain / speculative

    return predict


def drafter_by_route(session: Session, options: BenchOptions) -> Callable[[str], str]:
    """What the session drafts a route's requests with."""
    policy = session.decisions.policy

    def drafter_of(route: str) -> str:
        return options.drafter or (FIRST if policy is None else policy.of(route).drafter)

    return drafter_of
