"""The files that calibration leaves in a bundle: read together, checked, and turned into a schedule for a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from ...bundle import NO_DRAFT
from ...engines.base import OpenedDraft
from ...errors import BundleError
from ..drafting.drafts import Drafts
from ..drafting.names import model_of
from ..state.cached_decoder import Cancelled
from .confidence import AcceptancePredictor, adaptive_schedule
from .controller import RouteState
from .cost_model import COSTS, Costs
from .files import read_by_draft, read_policy, read_routing, remedy, stale
from .routed_schedule import Candidate, RoutedSchedule
from .routes import GUESS, POLICY, Policy, RoutePolicy
from .routing import Routing
from .schedule import FixedSchedule, Schedule
from .survival import SURVIVAL, Survival
from .timing import Timing

LOG = logging.getLogger("specexport")


@dataclass
class Decisions:
    """policy: None without calibration with this engine. costs: by draft; those of another host are left out.

    routing: chooses the draft where no route is named, None where the default's drafter does.

    measure: called for the costs of a draft that has none, None to draft a fixed number. first_draft: the bundle's,
    whose costs those of lookups alone are. states: of this session, by route; requests with a grammar have their own.
    drafter_states: the same by drafter, where the policy does not choose it. routed_states: of requests that are
    routed, by drafter. timings: by drafter, on `clock`.

    survivals: of the drafts whose confidence is read while they draft. open_draft: opens one. looks_up: the default
    drafter looks tokens up before it asks the first draft.
    """

    policy: Policy | None = None
    costs: dict[str, Costs | None] = field(default_factory=dict)
    routing: Routing | None = None
    first_draft: str = NO_DRAFT
    looks_up: bool = False
    measure: Callable[[str], Costs | None] | None = None
    survivals: Mapping[str, Survival] = field(default_factory=dict)
    open_draft: Callable[[str], OpenedDraft] | None = None
    clock: Callable[[], float] = perf_counter
    states: dict[tuple[str | None, bool], RouteState] = field(default_factory=dict)
    drafter_states: dict[tuple[str | None, bool], RouteState] = field(default_factory=dict)
    routed_states: dict[str, RouteState] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)

    @classmethod
    def load(cls, drafts: Drafts, threads: int) -> Decisions:
        """drafts: the session's.

        Raises `BundleError` for a file that is damaged or of another bundle, or that asks for what the bundle lacks.
        """
        bundle, engine = drafts.bundle, drafts.engine
        first, host = drafts.first, (engine.name, threads, engine.device)
        policy, most = read_policy(bundle), bundle.manifest.contract.max_draft_tokens
        costs = read_by_draft(bundle, Costs, COSTS)
        for one in costs.values():
            if one.max_draft_tokens != most:
                raise BundleError(
                    f"{bundle.path(COSTS)} has rounds of up to {one.max_draft_tokens} draft tokens, the bundle "
                    f"{most}; {remedy(bundle)}"
                )
        used: dict[str, Costs | None] = {
            name: one for name, one in costs.items() if stale(bundle.manifest, one, *host) is None
        }
        if policy is not None and policy.engine != engine.name:  # which may not run its drafters, or run them slowly
            LOG.warning(
                "%s was made with --engine %s; with --engine %s it is ignored; to replace it, run "
                "specexport calibrate %s --engine %s --prompts FILE",
                bundle.path(POLICY),
                policy.engine,
                engine.name,
                bundle.root,
                engine.name,
            )
            policy = None
        if policy is None:
            return cls(costs=used, first_draft=first)
        survivals = read_by_draft(bundle, Survival, SURVIVAL)
        return cls(policy, used, read_routing(bundle), first, survivals=survivals, open_draft=drafts.open)

    def prepare(self) -> None:
        """Get the costs now, not at the first request that needs them."""
        if self.policy is None:
            self.costs_of(self.first_draft)
        for drafter in (*(entry.drafter for entry in self._entries if entry.mode == "adaptive"), *self._routed):
            self.costs_of(drafter)

    @property
    def _entries(self) -> tuple[RoutePolicy, ...]:
        return () if self.policy is None else (self.policy.default, *self.policy.routes.values())

    @property
    def _routed(self) -> tuple[str, ...]:
        """The drafters that are chosen among where no route is named, none where the default's drafter decides."""
        if self.policy is None or self.routing is None:
            return ()
        default = self.policy.default
        return tuple(self.routing.drafters) if default.mode == "adaptive" and default.verdict != "off" else ()

    @property
    def drafts(self) -> list[str]:
        """The drafts that the policy uses."""
        drafters = (*(entry.drafter for entry in self._entries), *self._routed)
        return list(dict.fromkeys(model for model in map(model_of, drafters) if model is not None))

    def costs_of(self, drafter: str) -> Costs | None:
        """Costs of rounds with the draft, which may be measured now; None where that is impossible."""
        model = model_of(drafter) or self.first_draft
        if model not in self.costs and self.measure is not None:
            with suppress(Cancelled):  # the next request measures, then
                self.costs[model] = self.measure(model)
        return self.costs.get(model)

    def acceptance_predictor(self, drafter: str) -> AcceptancePredictor | None:
        """The function that reads the confidence of this drafter's draft while it drafts, None where none does."""
        model = model_of(drafter) or self.first_draft
        survival = self.survivals.get(model)
        confidence = self.open_draft(model).confidence if survival and self.open_draft else None
        if survival is None or confidence is None:
            return None
        return lambda index, logits: survival.chance(index, confidence())

    def uncalibrated(self, drafter: str, most: int, seeded: bool, constrained: bool = False) -> Schedule:
        """The schedule of a request that names a drafter, or where there is no policy: adaptive, starting from a guess
        or from earlier requests.

        most: draft tokens per round. seeded: see `SamplingParameters`. constrained: by a
        grammar. Then the draft is judged by the acceptance of such requests, and its confidence is not read, since that
        was fitted to free text.
        """
        entry = RoutePolicy("undecided", drafter, most, "adaptive", (GUESS,) * most, None)
        return self._adaptive(entry, self.drafter_states, drafter, most, seeded, constrained) or FixedSchedule(most)

    def schedule(
        self, route: str | None, most: int, constrained: bool = False, seeded: bool = False
    ) -> tuple[str, Schedule]:
        """The drafter and the schedule of a request, by the policy. Arguments as of `uncalibrated`."""
        assert self.policy is not None
        entry = self.policy.of(route)
        if entry.mode == "adaptive":
            key = route if route in self.policy.routes else None
            if (made := self._adaptive(entry, self.states, key, most, seeded, constrained)) is not None:
                return entry.drafter, made
        return entry.drafter, FixedSchedule(entry.num_draft_tokens if entry.verdict != "off" else 0)

    def _adaptive(
        self,
        entry: RoutePolicy,
        states: dict[tuple[str | None, bool], RouteState],
        key: str | None,
        most: int,
        seeded: bool,
        constrained: bool,
    ) -> Schedule | None:
        """None where costs are unknown."""
        costs = self.costs_of(entry.drafter)
        if costs is None:
            return None
        state = RouteState(alone=True)
        if not seeded:
            timing = None if constrained else self._timing(entry.drafter, costs)
            state = states.setdefault((key, constrained), RouteState(timing=timing))
        predictor = None if constrained else self.acceptance_predictor(entry.drafter)
        return adaptive_schedule(entry, costs, predictor, state, most)

    def routed(self, prompt: Sequence[int], most: int, seeded: bool = False) -> RoutedSchedule | None:
        """The schedule of a request that names no route, if any draft that pays may draft it; None where the default
        decides.

        prompt: token ids. most, seeded: as in `schedule`.
        """
        costs = {name: known for name in self._routed if (known := self.costs_of(name)) is not None}
        if self.routing is None or len(costs) < 2:
            return None
        candidates = {}
        for name, known in costs.items():
            if self.open_draft is not None and (model := model_of(name)) is not None:
                self.open_draft(model)
            state = RouteState(alone=True)
            if not seeded:
                state = self.routed_states.setdefault(name, RouteState(timing=self._timing(name, known)))
            candidates[name] = Candidate(known, self.acceptance_predictor(name), state)
        return RoutedSchedule(self.routing, prompt, candidates, most)

    def _timing(self, drafter: str, costs: Costs) -> Timing | None:
        """The state shared by all routes with this drafter; None for lookups alone, which cost little at any
        acceptance.
        """
        if model_of(drafter) is None:
            return None
        return self.timings.setdefault(drafter, Timing([time.median for time in costs.points[0].rounds], self.clock))
