"""A request, checked against the bundle that is to serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ..bundle import Bundle
from ..errors import ParameterError
from .drafting.drafters import check_drafter
from .grammar.compiler import GrammarCompiler
from .grammar.matcher import Matcher
from .policy.decisions import Decisions
from .policy.forced import BesideForced
from .policy.schedule import FixedSchedule, Schedule
from .sampling.parameters import SamplingParameters
from .sampling.rules import Rule, make_rule


@dataclass(frozen=True)
class Request:
    """prompt: token ids. limit: most tokens to emit. drafter: None for plain decoding.

    matcher: at the start of the request's grammar, for who says where the output ends; None without one.
    """

    prompt: list[int]
    parameters: SamplingParameters
    rule: Rule
    limit: int
    stop_tokens: frozenset[int]
    drafter: str | None
    schedule: Schedule
    matcher: Matcher | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return cast(tuple[str, ...], self.parameters.stop)


def make_request(
    bundle: Bundle,
    decisions: Decisions,
    prompt: list[int],
    parameters: SamplingParameters,
    schedule: Schedule | None = None,
    grammars: GrammarCompiler | None = None,
) -> Request:
    """schedule: decides how many tokens are drafted, instead of parameters and policy. grammars: None where the request
    has no grammar.

    Raises `ParameterError`, of which `GrammarError` is one, and `MissingPackageError`.
    """
    manifest = bundle.manifest
    given = parameters.stop_token_ids
    stop_tokens = frozenset(manifest.text.stop_token_ids if given is None else cast(Sequence[int], given))
    matcher = None
    if parameters.grammar is not None:
        assert grammars is not None
        matcher = grammars.compile(parameters.grammar)
    rule = make_rule(parameters, manifest.target.vocab_size, prompt, stop_tokens, matcher and matcher.copy())
    drafter, chosen = _schedule(bundle, decisions, parameters, schedule, rule)
    limit = min(parameters.max_new_tokens, manifest.longest - len(prompt))
    return Request(prompt, parameters, rule, limit, stop_tokens, drafter, chosen, matcher)


def _schedule(
    bundle: Bundle, decisions: Decisions, parameters: SamplingParameters, schedule: Schedule | None, rule: Rule
) -> tuple[str | None, Schedule]:
    """The drafter, None for plain decoding, and how many tokens it drafts."""
    most, k = bundle.manifest.contract.max_draft_tokens, parameters.num_draft_tokens
    if k is not None and k > most:
        raise ParameterError(f"num_draft_tokens is {k}; this bundle was built for 0 to {most} (--max-draft-tokens)")
    name = check_drafter(parameters.drafter, bundle.manifest.draft is not None)
    if not parameters.speculate or k == 0:
        return None, FixedSchedule(0)
    if schedule is not None:
        if not isinstance(schedule, Schedule):
            raise ParameterError(
                f"schedule is {schedule!r}; it must have all that Schedule has; num_draft_tokens takes a number"
            )
        return name, schedule
    if parameters.drafter is not None or k is not None:
        return name, FixedSchedule(most if k is None else k)
    decided, chosen = decisions.schedule(parameters.route, most, rule.constrained)
    return decided or name, BesideForced(chosen, rule, most) if rule.constrained else chosen
