"""The files that calibration leaves in a bundle: read together, checked, and turned into a schedule for a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import numpy as np

from ...bundle import Bundle
from ...engines.base import Engine, Head, Logits, OpenedDraft
from ...errors import BundleError, ParameterError
from ..drafting.names import FIRST, beside_first, model_of
from ..state.cancellation import Cancelled
from .checks import check_policy, check_routing, is_of, stale
from .confidence import Chance, adaptive_schedule
from .controller import RouteState, Timing
from .cost_model import COSTS, Costs
from .files import read_decision, remedy
from .route_belief import ROUTING, Routing
from .routed_schedule import Candidate, Purse, RoutedSchedule
from .routes import GUESS, POLICY, Policy, RoutePolicy
from .schedule import FixedSchedule, Schedule
from .survival import SURVIVAL, Survival, survival_file, top_logit

LOG = logging.getLogger("specexport")


@dataclass
class Decisions:
    """policy: None without calibration. costs: None too if they are from another host.

    routing: chooses the draft where no route is named, None where the default's drafter does. chance: reads the first
    draft's confidence while it drafts, None where that is not known; read_chance: the same for another draft.
    open_draft: opens one; it raises `ParameterError` if that draft is no longer in the bundle. measure: measures costs
    for an uncalibrated session, None to draft the maximum. states: of this session, by route, or by drafter where there
    is no policy or no route is named; requests with a grammar have their own. routed_states: of requests that are
    routed, by drafter; purse: what these have saved. timings: by drafter, on `clock`.
    """

    policy: Policy | None = None
    costs: Costs | None = None
    routing: Routing | None = None
    chance: Chance | None = None
    measure: Callable[..., Costs | None] | None = None
    read_chance: Callable[[str], Chance | None] | None = None
    open_draft: Callable[[str], object] | None = None
    clock: Callable[[], float] = perf_counter
    states: dict[tuple[str | None, bool], RouteState] = field(default_factory=dict)
    routed_states: dict[str, RouteState] = field(default_factory=dict)
    purse: Purse = field(default_factory=Purse)
    timings: dict[str, Timing] = field(default_factory=dict)
    _costs: dict[str, Costs | None] = field(default_factory=dict)
    _chances: dict[str, Chance | None] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _measured: bool = False

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        engine: Engine,
        threads: int,
        open_draft: Callable[[str], OpenedDraft] | None = None,
    ) -> Decisions:
        """open_draft: opens a draft other than the first, whose confidence is read.

        Raises `BundleError` for a file that is damaged or of another bundle, or that asks for what the bundle lacks.
        """
        policy = read_decision(bundle, Policy, POLICY)
        if policy is None:
            return cls()
        check_policy(policy, bundle)
        routing = read_decision(bundle, Routing, ROUTING)
        if routing is not None:
            check_routing(routing, bundle)
        most = bundle.manifest.contract.max_draft_tokens
        if engine.open_draft is None:
            policy = policy.with_first_draft(most, whole_rounds=engine.rounds is not None)
        costs = read_decision(bundle, Costs, COSTS)
        survival = read_decision(bundle, Survival, SURVIVAL)
        reason = stale(costs, engine.name, threads, engine.device)
        entries = (policy.default, *policy.routes.values())
        if reason and any(entry.mode == "adaptive" or (costs and entry.verdict != "off") for entry in entries):
            LOG.warning(
                "%s; until specexport calibrate %s%s is run here, its policy drafts fixed numbers of tokens",
                reason,
                bundle.root,
                (f" --engine {engine.name}" if costs and costs.engine != engine.name else "")
                + (f" --threads {threads}" if threads else ""),
            )
        if costs is not None and costs.max_draft_tokens != most:
            raise BundleError(
                f"{bundle.path(COSTS)} has rounds of up to {costs.max_draft_tokens} draft tokens, the bundle "
                f"{most}; {remedy(bundle)}"
            )
        if costs is not None:
            costs = replace(costs, drafts={name: one for name, one in costs.drafts.items() if is_of(one, name, bundle)})
        others = partial(read_chance, bundle, open_draft) if open_draft else None
        first = chance_of(survival, engine.head, bundle) if survival else None
        if engine.open_draft is None:
            routing = None
        return cls(policy, None if reason else costs, routing, first, read_chance=others, open_draft=open_draft)

    def prepare(self) -> None:
        """Get the costs now, not at the first request that needs them."""
        if self.measure is not None and not self._measured:
            with suppress(Cancelled):  # the next request measures, then
                self.costs, self._measured = self.measure(), True

    @property
    def drafts(self) -> list[str]:
        """The drafts that the policy uses, without the bundle's first."""
        entries = () if self.policy is None else (self.policy.default, *self.policy.routes.values())
        drafters = [entry.drafter for entry in entries] + list(self.routing.drafters if self.routing else ())
        return list(dict.fromkeys(model for drafter in drafters for model in beside_first(drafter)))

    def costs_of(self, drafter: str) -> Costs | None:
        """Costs of rounds with the draft; None where unknown. For an uncalibrated session they may be measured now."""
        self.prepare()
        model = model_of(drafter)
        if model in (None, FIRST) or self.costs is None:
            return self.costs
        if model not in self._costs:
            known = self.costs.of(model) if model in self.costs.drafts else None
            try:
                self._costs[model] = self.measure(model) if known is None and self.measure else known
            except Cancelled:  # the next request measures, then
                return None
        return self._costs[model]

    def chance_of(self, drafter: str) -> Chance | None:
        """The function that reads the confidence of this drafter's draft."""
        model = model_of(drafter)
        if model in (None, FIRST):
            return self.chance
        if model not in self._chances:
            self._chances[model] = self.read_chance(model) if self.read_chance else None
        return self._chances[model]

    def uncalibrated(self, drafter: str, most: int, seeded: bool, constrained: bool = False) -> Schedule:
        """The schedule of a request where there is no policy: adaptive, starting from a guess or from earlier requests.

        most: draft tokens per round. seeded: the request samples with a seed, so it learns nothing from others: it must
        be reproducible, and what others with its seed accepted reveals the noise that judges it. constrained: by a
        grammar. Then the draft is judged by the acceptance of such requests, and its confidence is not read, since that
        was fitted to free text.
        """
        entry = RoutePolicy("undecided", drafter, most, "adaptive", (GUESS,) * most, None)
        return self._adaptive(entry, drafter, most, seeded, constrained) or FixedSchedule(most)

    def schedule(
        self, route: str | None, most: int, constrained: bool = False, seeded: bool = False
    ) -> tuple[str, Schedule]:
        """The drafter and the schedule of a request, by the policy. Arguments as of `uncalibrated`."""
        assert self.policy is not None
        entry = self.policy.of(route)
        if entry.mode == "adaptive":
            key = route if route in self.policy.routes else None
            if (found := self._adaptive(entry, key, most, seeded, constrained)) is not None:
                return entry.drafter, found
        return entry.drafter, FixedSchedule(entry.num_draft_tokens if entry.verdict != "off" else 0)

    def _adaptive(
        self, entry: RoutePolicy, key: str | None, most: int, seeded: bool, constrained: bool
    ) -> Schedule | None:
        """None where costs are unknown."""
        costs = self.costs_of(entry.drafter)
        if costs is None:
            return None
        state = RouteState(alone=True)
        if not seeded:
            timing = None if constrained else self._timing(entry.drafter)
            state = self.states.setdefault((key, constrained), RouteState(timing=timing))
        chance = None if constrained else self.chance_of(entry.drafter)
        # With a grammar there are no chains.
        return adaptive_schedule(entry, costs if constrained else costs.chained(entry.unit), chance, state, most)

    def routed(self, prompt: Sequence[int], most: int, seeded: bool = False) -> RoutedSchedule | None:
        """The schedule of a request that names no route, if any draft that pays may draft it; None where the default
        decides.

        prompt: token ids. most, seeded: as in `schedule`.
        """
        if self.policy is None or self.routing is None or self.policy.default.mode != "adaptive":
            return None
        usable = [name for name in self.routing.drafters if self._opens(name)]
        costs = {name: known for name in usable if (known := self.costs_of(name)) is not None}
        if self.policy.default.verdict == "off" or len(costs) < 2:
            return None
        candidates = {}
        for name, known in costs.items():
            state = RouteState(alone=True)
            if not seeded:
                state = self.routed_states.setdefault(name, RouteState(timing=self._timing(name)))
            candidates[name] = Candidate(known.chained(self.routing.unit(name)), self.chance_of(name), state)
        return RoutedSchedule(self.routing, prompt, candidates, most, None if seeded else self.purse)

    def _opens(self, drafter: str) -> bool:
        """Whether the drafts that it uses are still in the bundle; then they are open."""
        if self.open_draft is None:
            return True
        for model in beside_first(drafter):
            try:
                self.open_draft(model)
            except ParameterError as error:
                if model not in self._left:
                    LOG.warning("%s; requests without a route do not use it", error)
                self._left.add(model)
                return False
        return True

    def _timing(self, drafter: str) -> Timing | None:
        """The state shared by all routes with this drafter; None for lookups alone, which cost little at any
        acceptance.
        """
        return self.timings.setdefault(drafter, Timing(self.clock)) if model_of(drafter) else None


def read_chance(bundle: Bundle, open_draft: Callable[[str], OpenedDraft], model: str) -> Chance | None:
    """The confidence of a draft other than the first, which is opened for its head. Raises `BundleError`."""
    survival = read_decision(bundle, Survival, survival_file(model))
    return chance_of(survival, open_draft(model).head, bundle) if survival is not None else None


def chance_of(survival: Survival, head: Head | None, bundle: Bundle) -> Chance | None:
    """A function that reads the draft's confidence; None where the head is the signal and there is none. Raises
    `BundleError`.
    """
    if survival.signal == "probability":
        return lambda index, logits: survival.chance(index, top_logit(logits[-1]))
    if head is None:
        return None  # engines that run whole rounds have none
    both = survival.signal == "both"
    if len(survival.head) != head.size + 1 + both:
        raise BundleError(
            f"{bundle.path(SURVIVAL)} has a head of {len(survival.head)} weights, expected "
            f"{head.size + 1 + both}; {remedy(bundle)}"
        )
    *weights, bias = survival.head
    head.set_weights(np.array([*weights[: head.size], bias], np.float32))

    def chance(index: int, logits: Logits) -> float:
        signal = head.confidence(len(logits) - 1)  # the pass of a chain has rows of guesses after these
        return survival.chance(index, signal + weights[-1] * top_logit(logits[-1]) if both else signal)

    return chance
