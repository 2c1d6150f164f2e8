"""The whole of `calibrate` over fake decoders: what it writes, what it decides, and how it goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specexport.bundle import Contract
from specexport.calibration import calibrate as module
from specexport.calibration import steps
from specexport.calibration.calibrate import calibrate, journal_path
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.options import CalibrateOptions, possible_drafters
from specexport.calibration.verdicts.verdict import Criteria
from specexport.engines.base import Logits, OpenedDraft
from specexport.errors import OutputError, ParameterError
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.policy.cost_model import COSTS, Costs
from specexport.runtime.policy.files import read_by_draft, read_decision
from specexport.runtime.policy.routes import POLICY, Policy
from specexport.runtime.policy.survival import SURVIVAL, Survival
from specexport.runtime.session import Session
from support.calibrated import priced, requests
from support.doubles import FakeDecoder, fake_session
from support.refusals import refused

LONG = Contract(capacity=320, max_draft_tokens=3, prompt_chunk=16, precision="fp32")
OPTIONS = CalibrateOptions(bursts=1)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("calibration.calibrate", "runtime.costs.meter", "runtime.policy.files"):
        monkeypatch.setattr(f"specexport.{name}.describe_host", lambda *_: "a host")


class Telling(FakeDecoder):
    """A draft that knows how sure it is, as DSpark's do."""

    told = 0.0

    def step(self, tokens: Sequence[int], position: int) -> Logits:
        logits = super().step(tokens, position)
        second, first = np.partition(logits[-1], -2)[-2:]
        self.told = float(first - second)
        return logits


@pytest.fixture
def session(tmp_path: Path) -> Session:
    draft = Telling(LONG, seed=1, noise=0.3)
    made = fake_session(tmp_path, FakeDecoder(LONG, seed=1), draft)
    return Session(made.bundle, replace(made.engine, draft=OpenedDraft(draft, lambda: draft.told)))


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The price of a draft pass, to be changed by the test."""
    price = [0.1]
    real = CostMeter.costs
    monkeypatch.setattr(CostMeter, "costs", lambda meter: priced(real(meter), price[0]))
    return price


def test_everything_is_written_and_followed(session: Session, prices: list[float]) -> None:
    analysis = calibrate(session, requests(48), OPTIONS, "specexport calibrate x", lambda done, total: None)
    bundle = session.bundle
    policy, survival = read_decision(bundle, Policy, POLICY), read_by_draft(bundle, Survival, SURVIVAL)["draft"]
    assert isinstance(policy, Policy)
    assert read_by_draft(bundle, Costs, COSTS) == {"draft": analysis.costs}
    assert analysis.estimate is not None
    assert analysis.estimate.auc > 0.6
    assert analysis.reads_confidence
    assert len(survival.curves) == LONG.max_draft_tokens
    assert set(policy.routes) == {"code", "prose"}
    assert policy.routes["code"] == next(one.policy for one in analysis.routes if one.route == "code")
    assert {one.route: one.requests for one in analysis.routes} == {"code": 24, "prose": 24}
    assert not bundle.path("calibration").exists()
    assert json.loads(json.dumps(analysis.as_dict()))["routes"][0]["route"] == "code"
    again = Session(bundle, session.engine)
    assert again.generate([5, 6, 7], max_new_tokens=12, route="code").statistics.rounds > 0


def test_a_confidence_that_does_not_pay_is_not_read(
    session: Session, prices: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "worth_reading", lambda *_: False)
    analysis = calibrate(session, requests(36), OPTIONS, "x")
    assert analysis.estimate is not None
    assert not analysis.reads_confidence
    assert session.bundle.path(SURVIVAL).read_text() == "{}\n"


@pytest.mark.slow
def test_cheap_drafts_are_on_and_dear_ones_off(session: Session, prices: list[float]) -> None:
    found = {}
    for price in (0.05, 5.0):
        prices[0] = price
        found[price] = calibrate(session, requests(44), OPTIONS, "x").routes[0]
    assert found[0.05].policy.verdict == "on"
    assert found[0.05].policy.num_draft_tokens >= 1
    assert found[5.0].policy.verdict == "off"
    assert found[5.0].policy.num_draft_tokens == 0


def test_too_few_are_undecided_and_say_how_many_more(session: Session, prices: list[float]) -> None:
    prices[0] = 0.05
    route = calibrate(session, requests(10), OPTIONS, "x").routes[0]
    assert route.policy.verdict == "undecided"
    assert route.missing >= 15
    assert f" {route.missing} more" in route.words


class StopError(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_stopped(
    session: Session, prices: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_TOKENS", 50)
    whole = calibrate(session, requests(12), OPTIONS, "x")
    ran: list[int] = []
    real = steps.record

    def counted(session: Session, request: Request, *rest: Any, **options: Any) -> Any:
        if len(ran) == 7:
            raise StopError
        ran.append(request.line)
        return real(session, request, *rest, **options)

    timed = timed_contexts(monkeypatch)
    monkeypatch.setattr(steps, "record", counted)
    with pytest.raises(StopError):
        calibrate(session, requests(12), OPTIONS, "x")
    assert journal_path(session, requests(12), OPTIONS).exists()
    first = list(ran)
    ran.clear()
    shown: list[tuple[int, int]] = []
    analysis = calibrate(session, requests(12), OPTIONS, "x", lambda *progress: shown.append(progress))
    assert sorted(first + ran) == list(range(1, 13))
    # Costs before each quarter, also those of the first run; at the capacity, which no request reaches, once and last.
    assert sorted(timed) == [6] * 4 + [14] * 4 + [33] * 4 + [296]
    assert timed[-1] == 296
    total = shown[-1][1]
    assert shown[-1] == (total, total)
    assert shown == sorted(shown)
    assert shown[0][0] > 0  # what the first run finished counts at once: it tells nothing about the speed
    assert len(shown) == 5 + 3 + 1 + 1  # requests, costs of the last quarter and at the capacity, the end
    for one, other in zip(analysis.routes, whole.routes, strict=True):
        assert one.candidates == other.candidates
        assert one.acceptance == other.acceptance
    assert analysis.estimate == whole.estimate is not None


def timed_contexts(monkeypatch: pytest.MonkeyPatch, most: int = 1000) -> list[int]:
    """The contexts of the bursts that are timed; after `most`, the run is stopped."""
    timed: list[int] = []
    real = CostMeter.time

    def time(meter: CostMeter, context: int, first: bool) -> Any:
        if len(timed) == most:
            raise StopError
        timed.append(context)
        return real(meter, context, first)

    monkeypatch.setattr(CostMeter, "time", time)
    return timed


def test_costs_are_kept_by_burst(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, bursts=2)
    with monkeypatch.context() as patch:
        whole = timed_contexts(patch)
        calibrate(session, requests(2), options, "x")
    with monkeypatch.context() as patch:
        first = timed_contexts(patch, 5)
        with pytest.raises(StopError):
            calibrate(session, requests(2), options, "x")
    then = timed_contexts(monkeypatch)
    calibrate(session, requests(2), options, "x")
    assert first + then == whole
    assert whole.count(296) == 2  # at the capacity, which is visited once


@pytest.mark.parametrize("other", ["settings", "host"])
def test_what_is_another_run_starts_over(
    other: str, session: Session, prices: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = steps.record

    def broken(session: Session, request: Request, *rest: Any, **options: Any) -> Any:
        if request.line > 3:
            raise StopError
        return real(session, request, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "record", broken)
        with pytest.raises(StopError):
            calibrate(session, requests(6, ["code"]), OPTIONS, "x")
    others = journal_path(session, requests(6, ["code"]), OPTIONS)
    ran: list[int] = []
    monkeypatch.setattr(
        steps, "record", lambda s, request, *rest, **o: (ran.append(request.line), real(s, request, *rest, **o))[1]
    )
    if other == "host":
        monkeypatch.setattr(module, "describe_host", lambda *_: "another host")
    calibrate(session, requests(6, ["code"]), replace(OPTIONS, temperature=float(other == "settings")), "x")
    assert ran == [1, 2, 3, 4, 5, 6]
    assert others.exists()


def test_a_bundle_that_cannot_be_written_is_told_before_the_run(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("specexport.runtime.policy.files.temporary_file", full)
    monkeypatch.setattr(steps, "record", lambda *_, **__: 1 / 0)
    with pytest.raises(OutputError):
        calibrate(session, requests(2), OPTIONS, "x")


def test_routes_take_turns(session: Session, prices: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = steps.record
    monkeypatch.setattr(
        steps, "record", lambda s, request, *rest, **o: (order.append(request.route), real(s, request, *rest, **o))[1]
    )
    given = sorted(requests(8), key=lambda request: request.route)
    calibrate(session, given, OPTIONS, "x")
    assert order == ["code", "prose"] * 4


def test_drafters_to_choose_among(session: Session, prices: list[float]) -> None:
    for drafters in ((), ("ngram", "ngram+draft"), ("all",)):
        routes = calibrate(session, requests(6), replace(OPTIONS, drafters=drafters), "x").routes
        allowed = drafters if "ngram" in drafters else possible_drafters(session)
        assert all(route.policy.drafter in allowed for route in routes)
        assert {one.drafter for one in routes[0].candidates} == set(allowed)
        assert routes[0].recorded_drafter == "draft"
    with refused(ParameterError, "--drafter", field="drafter"):
        calibrate(session, requests(2), replace(OPTIONS, drafters=("oracle",)), "x")


def test_a_bundle_that_only_looks_up(tmp_path: Path, prices: list[float]) -> None:
    class Periodic(FakeDecoder):
        def logits_after(self, context: Any) -> Logits:
            return super().logits_after([token % 5 for token in list(context)[-2:]])

    session = fake_session(tmp_path, Periodic(LONG, seed=4), None)
    session.bundle.path(SURVIVAL).write_text("[]")  # of an earlier calibration
    analysis = calibrate(session, requests(24, ["code"]), OPTIONS, "x")
    (route,) = analysis.routes
    assert analysis.estimate is None
    assert not analysis.reads_confidence
    assert session.bundle.path(SURVIVAL).read_text() == "{}\n"
    assert route.policy.drafter == "ngram"
    assert route.policy.verdict == "on"
    assert route.measured.predicted > 1
    assert Session(session.bundle, session.engine).generate([5, 6, 5, 6], max_new_tokens=24).statistics.looked_up > 0


@pytest.mark.parametrize("floor", [-1.0, 2.1, float("nan")])
def test_a_floor_out_of_range(floor: float) -> None:
    with refused(ParameterError, "--floor", field="floor"):
        CalibrateOptions(floor=floor)


def test_the_floor_is_not_for_requests_without_a_route_that_are_watched(
    session: Session, prices: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    floors: dict[str, list[float]] = {}
    real = module.analyze_route

    def noted(route: str, drafted: Any, criteria: Criteria) -> Any:
        floors.setdefault(criteria.mode, []).append(criteria.floor)
        return real(route, drafted, criteria)

    monkeypatch.setattr(module, "analyze_route", noted)
    calibrate(session, requests(4), replace(OPTIONS, floor=0.8), "x")
    calibrate(session, requests(4), replace(OPTIONS, floor=0.8, mode="fixed"), "x")
    assert floors == {"adaptive": [0.8, 0.8, 0.0], "fixed": [0.8, 0.8, 0.8]}
