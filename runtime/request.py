"""A request, checked against the bundle that will serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ..bundle import Bundle
from ..bundle.drafts import LOOKUP
from ..errors import ParameterError
from .drafting.names import check_drafter, model_of
from .grammar.constraint import Matcher
from .policy.decisions import Decisions
from .policy.schedule import FixedSchedule, Schedule, WithForcedTokens, WithPrediction
from .sampling.parameters import SamplingParameters
from .sampling.rules import Rule, make_rule


@dataclass(frozen=True)
class Request:
    """prompt: token ids. limit: most tokens to emit. drafters: the schedule chooses among several; none for plain
    decoding. prediction: token ids, in which drafts are looked up first. matcher: tells where the grammar is complete,
    None without one. num_candidates: per round, at most.
    """

    prompt: list[int]
    parameters: SamplingParameters
    rule: Rule
    limit: int
    stop_tokens: frozenset[int]
    drafters: tuple[str, ...]
    schedule: Schedule
    prediction: Sequence[int] = ()
    matcher: Matcher | None = None
    num_candidates: int = 0

    @property
    def drafter(self) -> str | None:
        return next(iter(self.drafters), None)

    @property
    def stops(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.parameters.stop)


def make_request(
    bundle: Bundle,
    decisions: Decisions,
    prompt: list[int],
    prediction: Sequence[int],
    matcher: Matcher | None,
    parameters: SamplingParameters,
    schedule: Schedule | None,
) -> Request:
    """prompt, prediction: token ids. matcher: at the start of the grammar. schedule: decides how many tokens are
    drafted, instead of parameters and policy. Raises `ParameterError`.
    """
    manifest = bundle.manifest
    parameters = parameters.with_defaults(manifest.defaults)
    stops = parameters.stop_token_ids
    stop_tokens = frozenset(manifest.text.stop_token_ids if stops is None else cast(Sequence[int], stops))
    rule = make_rule(parameters, manifest.target.vocab_size, prompt, stop_tokens, matcher and matcher.copy())
    drafters, chosen = _schedule(bundle, decisions, parameters, schedule, rule, prompt)
    candidates = _candidates(bundle, parameters, drafters)
    limit = min(parameters.max_new_tokens, manifest.longest - len(prompt))
    return Request(prompt, parameters, rule, limit, stop_tokens, drafters, chosen, prediction, matcher, candidates)


def _schedule(
    bundle: Bundle,
    decisions: Decisions,
    parameters: SamplingParameters,
    schedule: Schedule | None,
    rule: Rule,
    prompt: Sequence[int],
) -> tuple[tuple[str, ...], Schedule]:
    """The drafters, none for plain decoding, and what plans their rounds."""
    most, k = bundle.manifest.contract.max_draft_tokens, parameters.num_draft_tokens
    if k is not None and k > most:
        raise ParameterError(
            f"num_draft_tokens is {k}; this bundle was built for 0 to {most} (--max-draft-tokens)", "num_draft_tokens"
        )
    name = _drafter(bundle, decisions, parameters, rule.candidates is not None, schedule is not None)
    if not parameters.speculate or k == 0:
        return (), FixedSchedule(0)
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ParameterError(
            f"schedule is {schedule!r}; it must implement Schedule; for a number use num_draft_tokens", "schedule"
        )
    if schedule is None and k is not None:
        schedule = FixedSchedule(k)
    if schedule is not None:
        return (name,), WithForcedTokens(schedule, rule, most) if rule.constrained else schedule
    seeded = parameters.seeded
    named = decisions.policy is not None and parameters.route in decisions.policy.routes
    asked = parameters.drafter is not None
    if not (named or asked or rule.constrained or parameters.prediction or rule.candidates is not None):
        routed = decisions.routed(prompt, most, seeded)
        if routed is not None:
            return tuple(routed.schedules), routed
    if decisions.policy is None or asked:
        decided, chosen = name, decisions.uncalibrated(name, most, seeded, rule.constrained)
    else:
        decided, chosen = decisions.schedule(parameters.route, most, rule.constrained, seeded)
    if parameters.prediction:
        chosen = WithPrediction(chosen, most, model_of(decided) is not None)
    return (decided,), WithForcedTokens(chosen, rule, most, on_top=True) if rule.constrained else chosen


def _drafter(
    bundle: Bundle, decisions: Decisions, parameters: SamplingParameters, candidates: bool, scheduled: bool
) -> str:
    """The drafter that the request names. Else the policy's for its route; without a policy the first draft, after
    lookups where the session looks up. The first draft alone with candidates, and where there is a policy but the
    caller has a schedule. Where the policy plans the rounds too, its drafter goes before this.
    """
    first = check_drafter(parameters.drafter, bundle.manifest.draft_names)
    if parameters.drafter is not None or candidates:
        return first
    if decisions.policy is not None:
        return first if scheduled else decisions.policy.of(parameters.route).drafter
    return f"{LOOKUP}+{first}" if decisions.looks_up and bundle.manifest.drafts else first


def _candidates(bundle: Bundle, parameters: SamplingParameters, drafters: Sequence[str]) -> int:
    """How many a round has, in addition to its draft tokens. Raises `ParameterError` where there can be none."""
    most, wanted = bundle.manifest.contract.tree_rows, parameters.num_candidates
    spectr = parameters.verification == "spectr"
    if not (drafters and not parameters.greedy if spectr else wanted):
        return 0
    models = [bundle.manifest.draft_called(name).model for name in map(model_of, drafters) if name is not None]
    able = [draft.name for draft in bundle.manifest.drafts if draft.model.reads is None]
    named = f"ask for drafter {' or '.join(map(repr, able))}"
    for refused, reason in (
        (not bundle.manifest.drafts, ", and this bundle has no draft model; build it with --draft"),
        (
            not able,
            ", and no draft of this bundle can give them: after a candidate there are no hidden states of the target "
            "for it to read; leave it and num_candidates out",
        ),
        (not most, f", but this bundle has no rows for them; {_rows_by(bundle, wanted or 8)}"),
        (
            parameters.drafter is not None and not models,
            f"; drafter {parameters.drafter!r} only looks tokens up; {named}",
        ),
        (any(model.reads is not None for model in models), f"; the draft reads the target's hidden states; {named}"),
        (parameters.grammar is not None, ", and a grammar allows only one; leave one of them out"),
        (not spectr, "; ask for it, or leave num_candidates out"),
    ):
        if refused:
            asked = "verification is" if spectr else f"num_candidates is {wanted}, for verification"
            raise ParameterError(
                f"{asked} 'spectr', which judges several draws of a draft model per position{reason}",
                "verification" if spectr else "num_candidates",
            )
    if wanted is not None and wanted > most:
        raise ParameterError(
            f"num_candidates is {wanted}; this bundle was built for 0 to {most} (--tree-rows)", "num_candidates"
        )
    return (most if wanted is None else wanted) if models else 0


def _rows_by(bundle: Bundle, count: int) -> str:
    """How to build such a bundle with rows for `count` candidates, or why there can be none."""
    target = bundle.manifest.target
    if target.format != "float" and "kernels" not in target.graphs:
        return f"targets in {target.format} can have some only where specexport-kernels were installed at the build"
    if target.has_states:
        return "models with recurrent or convolution states cannot have any"
    return f"build it with --tree-rows {count}"
