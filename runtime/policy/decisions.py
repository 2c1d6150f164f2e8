"""The files of a bundle that calibration leaves: read together, checked, and turned into a schedule for a request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

from ...bundle import Bundle
from ...engines.base import Engine, Head, OpenedDraft
from ...errors import BundleError, OutputError, ParameterError
from ...strict import parse, read_json
from ...temporary_files import remove_left, temporary_file, write_whole
from ..drafting.names import FIRST, check_drafter, model_of
from ..state.cancellation import Cancelled
from .cost_model import COSTS, Costs, DraftCosts
from .host_identity import bundle_identity, describe_host
from .lookup_schedule import adaptive_schedule
from .pace import Pace
from .routes import GUESS, POLICY, Policy, RoutePolicy
from .schedule import Chance, FixedSchedule, RouteState, Schedule
from .survival import SURVIVAL, Survival, survival_file, top_logit

T = TypeVar("T", Costs, Policy, Survival)
LOG = logging.getLogger("specexport")


@dataclass
class Decisions:
    """policy: None where nobody calibrated. costs: None too where they are of another host.

    measure: costs for sessions that nobody calibrated, asked for once, None for rounds of the maximum; measure_draft:
    the same function afterwards, for drafts beside the first by name. states: of this session, by route, or by drafter
    where there is no policy. bounded: those of requests with a grammar. paces: what rounds take, by drafter, on
    `clock`.

    chance: reads the draft's confidence while it drafts, None where that is not known; read_chance: the same for a
    draft beside the first.
    """

    policy: Policy | None = None
    costs: Costs | None = None
    chance: Chance | None = None
    measure: Callable[..., Costs | None] | None = None
    measure_draft: Callable[[str], Costs | None] | None = None
    read_chance: Callable[[str], Chance | None] | None = None
    states: dict[str | None, RouteState] = field(default_factory=dict)
    bounded: dict[str | None, RouteState] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)
    clock: Callable[[], float] = perf_counter
    _costs: dict[str, Costs | None] = field(default_factory=dict)
    _chances: dict[str, Chance | None] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        engine: Engine,
        threads: int,
        open_draft: Callable[[str], OpenedDraft] | None = None,
    ) -> Decisions:
        """open_draft: opens a draft beside the first, whose confidence is read.

        Raises `BundleError` for a file that is damaged, of another bundle, or asks for what the bundle lacks.
        """
        policy = read_decision(bundle, Policy, POLICY)
        if policy is None:
            return cls()
        check_policy(policy, bundle)
        if engine.open_draft is None:
            policy = policy.with_first_draft(bundle.manifest.contract.max_draft_tokens)
        costs = read_decision(bundle, Costs, COSTS)
        survival = read_decision(bundle, Survival, SURVIVAL)
        reason = stale(costs, engine.name, threads, engine.device)
        entries = (policy.default, *policy.routes.values())
        if reason and any(entry.mode == "adaptive" or (costs and entry.verdict != "off") for entry in entries):
            LOG.warning(
                "%s; until specexport calibrate %s is run here, its policy drafts fixed numbers of tokens",
                reason,
                bundle.root,
            )
        if costs is not None and costs.max_draft_tokens != bundle.manifest.contract.max_draft_tokens:
            most = bundle.manifest.contract.max_draft_tokens
            raise BundleError(
                f"{bundle.path(COSTS)} has rounds of up to {costs.max_draft_tokens} draft tokens, the bundle "
                f"{most}; {_remedy(bundle)}"
            )
        if costs is not None:
            costs = replace(
                costs, drafts={name: one for name, one in costs.drafts.items() if _is_of(one, name, bundle)}
            )
        others = partial(read_chance, bundle, open_draft) if open_draft else None
        first = chance_of(survival, engine.head, bundle) if survival else None
        return cls(policy, None if reason else costs, first, read_chance=others)

    def prepare(self) -> None:
        """Ask for the costs now, not at the first request that needs them."""
        measure = self.measure
        if measure is not None:
            self.measure_draft = measure
            with suppress(Cancelled):  # the next request measures, then
                self.costs, self.measure = measure(), None

    @property
    def drafts(self) -> list[str]:
        """Those beside the bundle's first that the policy uses."""
        entries = () if self.policy is None else (self.policy.default, *self.policy.routes.values())
        models = dict.fromkeys(model_of(entry.drafter) for entry in entries)
        return [model for model in models if model not in (None, FIRST)]

    def costs_of(self, drafter: str) -> Costs | None:
        """Of rounds with it; None where nobody knows. Where nobody calibrated they may be measured now."""
        self.prepare()
        model = model_of(drafter)
        if model in (None, FIRST) or self.costs is None:
            return self.costs
        if model not in self._costs:
            known = self.costs.of(model) if model in self.costs.drafts else None
            try:
                self._costs[model] = self.measure_draft(model) if known is None and self.measure_draft else known
            except Cancelled:  # the next request measures, then
                return None
        return self._costs[model]

    def chance_of(self, drafter: str) -> Chance | None:
        """Reads the confidence of the draft that it asks."""
        model = model_of(drafter)
        if model in (None, FIRST):
            return self.chance
        if model not in self._chances:
            self._chances[model] = self.read_chance(model) if self.read_chance else None
        return self._chances[model]

    def uncalibrated(self, drafter: str, most: int, seeded: bool, constrained: bool = False) -> Schedule:
        """What a request follows where there is no policy: it adapts, from a guess or what earlier requests have shown.

        most: draft tokens a round. seeded: the request samples with a seed, so it learns nothing from others: it is to
        repeat itself, and what others with its seed accepted tells of the noise that is to judge it. constrained: by a
        grammar; it learns from such requests only.
        """
        costs = self.costs_of(drafter)
        if costs is None:
            return FixedSchedule(most)
        entry = RoutePolicy("undecided", drafter, most, "adaptive", (GUESS,) * most, None)
        states = self.bounded if constrained else self.states
        pace = None if constrained else self._pace(drafter)
        state = RouteState(alone=True) if seeded else states.setdefault(drafter, RouteState(pace=pace))
        return adaptive_schedule(entry, costs, None, state, most)

    def schedule(
        self, route: str | None, most: int, constrained: bool = False, seeded: bool = False
    ) -> tuple[str, Schedule]:
        """By the policy, the drafter and the schedule of a request.

        most: draft tokens a round. constrained: by a grammar. Then a draft is trusted by what such requests have shown,
        and nobody reads its confidence: what that promises was fitted to free text. seeded: as in `uncalibrated`.
        """
        assert self.policy is not None
        entry = self.policy.of(route)
        if entry.mode == "adaptive" and (costs := self.costs_of(entry.drafter)) is not None:
            states, chance, pace = self.states, self.chance_of(entry.drafter), self._pace(entry.drafter)
            if constrained:
                states, chance, pace = self.bounded, None, None
            key = route if route in self.policy.routes else None
            state = RouteState(alone=True) if seeded else states.setdefault(key, RouteState(pace=pace))
            return entry.drafter, adaptive_schedule(entry, costs, chance, state, most)
        return entry.drafter, FixedSchedule(entry.num_draft_tokens if entry.verdict != "off" else 0)

    def _pace(self, drafter: str) -> Pace | None:
        """Of all routes with this drafter; None for lookups alone, whose drafts cost little whatever is believed."""
        return self.paces.setdefault(drafter, Pace(self.clock)) if model_of(drafter) else None


def stale(costs: Costs | None, engine: str, threads: int, device: int = 0) -> str | None:
    """Why costs say nothing about this engine on this host, None where they do."""
    if costs is None:
        return f"there is no {COSTS}"
    for name, theirs, ours in (
        ("engine", costs.engine, engine),
        ("threads", costs.threads, threads),
        ("host", costs.host, describe_host(engine, device)),
    ):
        if theirs != ours:
            return f"{COSTS} was measured with {name} {theirs}, this is {ours}"
    return None


def _is_of(costs: DraftCosts, name: str, bundle: Bundle) -> bool:
    """Whether they were measured with the draft that the bundle has now."""
    draft = bundle.manifest.more_drafts.get(name)
    return draft is not None and bundle.manifest.files[draft.model.weights].sha256 == costs.weights


def check_policy(policy: Policy, bundle: Bundle) -> None:
    """Raises `BundleError` for drafters and numbers of draft tokens that the bundle does not have."""
    most, path = bundle.manifest.contract.max_draft_tokens, bundle.path(POLICY)
    for name, entry in (
        ("default", policy.default),
        *((f"routes.{route}", entry) for route, entry in policy.routes.items()),
    ):
        if entry.num_draft_tokens > most:
            raise BundleError(
                f"{path}: {name}.num_draft_tokens is {entry.num_draft_tokens}; this bundle was built for 0 to {most}"
            )
        try:
            check_drafter(entry.drafter, bundle.manifest.draft is not None, bundle.manifest.draft_names)
        except ParameterError as error:
            raise BundleError(f"{path}: {name}: {error}") from None


def read_decision(bundle: Bundle, kind: type[T], name: str) -> T | None:
    """costs.json, policy.json or survival.json, None where it is missing.

    Raises `BundleError` for one of another bundle.
    """
    path, remedy = bundle.path(name), _remedy(bundle)
    if not path.exists():
        return None
    found = parse(kind, read_json(path, remedy), str(path))
    if found.bundle != bundle_identity(bundle):
        raise BundleError(f"{path} was made for another bundle; {remedy}")
    return found


def write_decision(bundle: Bundle, value: Costs | Policy | Survival, name: str) -> None:
    """Replace the file as a whole. Raises `OutputError`."""
    _replace(bundle.path(name), json.dumps(asdict(value), indent=1, ensure_ascii=False) + "\n")


def forget_decisions(bundle: Bundle) -> None:
    """Remove what calibration left, for a bundle that becomes another one. Raises `OutputError`."""
    survival = sorted(path.name for path in bundle.root.glob("survival*.json"))
    for name in (POLICY, *survival, COSTS):  # the policy first: without the others it drafts fixed numbers
        try:
            bundle.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{bundle.path(name)} cannot be removed: {error.strerror}") from None


def check_writable(bundle: Bundle) -> None:
    """Before a long run, not behind it. What killed runs left goes. Raises `OutputError`."""
    remove_left(bundle.root)
    with _told(bundle.root), temporary_file(bundle.path(POLICY), b""):
        pass


def _replace(path: Path, text: str) -> None:
    with _told(path.parent):
        write_whole(path, text.encode())


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{folder} cannot be written: {reason}; what calibration finds is kept in the bundle"
        ) from None


def _remedy(bundle: Bundle) -> str:
    return f"run specexport calibrate {bundle.root}, or delete the file"


def read_chance(bundle: Bundle, open_draft: Callable[[str], OpenedDraft], model: str) -> Chance | None:
    """Of a draft beside the first, which is opened for its head. Raises `BundleError`."""
    survival = read_decision(bundle, Survival, survival_file(model))
    return chance_of(survival, open_draft(model).head, bundle) if survival is not None else None


def chance_of(survival: Survival, head: Head | None, bundle: Bundle) -> Chance | None:
    """Reads the draft's confidence; None where the signal is the head's and there is none. Raises `BundleError`."""
    if survival.signal == "probability":
        return lambda index, logits: survival.chance(index, top_logit(logits[-1]))
    if head is None:
        return None  # on engines whose rounds run whole there is none
    both = survival.signal == "both"
    if len(survival.head) != head.size + 1 + both:
        raise BundleError(
            f"{bundle.path(SURVIVAL)} has a head of {len(survival.head)} weights, expected "
            f"{head.size + 1 + both}; {_remedy(bundle)}"
        )
    *weights, bias = survival.head
    head.set_weights(np.array([*weights[: head.size], bias], np.float32))
    if both:
        return lambda index, logits: survival.chance(index, head.confidence() + weights[-1] * top_logit(logits[-1]))
    return lambda index, logits: survival.chance(index, head.confidence())
