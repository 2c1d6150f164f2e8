"""The speedup that `costs.json` predicts for the rounds of a benchmark, to compare with the measured one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...runtime.drafting.names import cascade_source_of, model_of, models_in, runnable_drafter
from ...runtime.policy.checks import stale
from ...runtime.policy.cost_model import COSTS, Costs
from ...runtime.policy.files import read_by_draft
from ...runtime.session import Session
from .results import BenchOptions, PairedRun, Predict


def predict_here(session: Session, options: BenchOptions) -> Predict | None:
    """By the bundle's costs of this host; None without any."""
    engine = session.engine
    known = read_by_draft(session.bundle, Costs, COSTS)
    costs = {name: one for name, one in known.items() if not stale(one, engine.name, session.threads, engine.device)}
    return predict_by(costs, session.drafts.first, drafter_by_route(session, options)) if costs else None


def predict_by(costs: Mapping[str, Costs], first: str, drafter_of: Callable[[str], str]) -> Predict:
    """A function that predicts a route's speedup: the time of one plain round per token, divided by the time of the
    rounds that ran. A round takes h + v(n + 1), plus d for every draft pass; if a smaller draft guesses for the draft,
    also the smaller draft's d and a row of the draft's pass for every guess.

    See docs/when-it-pays.md for h, v and d. costs: by draft; lookups alone have those of `first`. drafter_of: the
    drafter of a route; without the costs of one of its drafts, nothing is predicted. Rows of guesses that were looked
    up are not counted in a run, and left out.
    """

    def predict(route: str, pairs: Sequence[PairedRun]) -> float | None:
        plain = speculative = 0.0
        drafter = drafter_of(route)
        model = model_of(drafter) or first
        small = next((name for name in models_in(drafter) if name == cascade_source_of(drafter)), model)
        if {model, small} - set(costs):
            return None
        of_draft, of_small = costs[model], costs[small]
        for pair in pairs:
            run, place = pair.speculative, pair.prompt_tokens + pair.speculative.emitted // 2
            at = of_draft.at(place)
            plain += run.emitted * at.plain
            for num_drafted, rounds in enumerate(run.rounds_by_drafted):
                speculative += rounds * (at.rounds[num_drafted] if run.device_seconds else at.looked_up(num_drafted))
            speculative += run.draft_passes * at.draft
            speculative += run.guess_passes * (of_small.at(place).draft + at.draft_row)
        return plain / speculative

    return predict


def drafter_by_route(session: Session, options: BenchOptions) -> Callable[[str], str]:
    """A function that returns the drafter of a route's requests in this session. Raises `ParameterError`."""
    policy, asked = session.decisions.policy, runnable_drafter(options.drafter, session.bundle.manifest)
    return lambda route: asked if options.drafter or policy is None else policy.of(route).drafter
