"""`calibrate` with several drafts: each route gets the one that pays there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from specexport.bundle import Bundle, Contract, FileEntry
from specexport.calibration import steps
from specexport.calibration.calibrate import _header, calibrate
from specexport.calibration.measuring.prompts import Request
from specexport.calibration.options import CalibrateOptions
from specexport.engines.base import Logits
from specexport.runtime.costs.meter import CostMeter
from specexport.runtime.policy.cost_model import COSTS, Costs
from specexport.runtime.policy.files import read_by_draft, read_decision
from specexport.runtime.policy.routes import POLICY, Policy
from specexport.runtime.policy.routing import ROUTING, Routing
from specexport.runtime.session import Session
from support.calibrated import priced, requests
from support.doubles import FakeDecoder
from support.several import several_session

LONG = Contract(capacity=320, max_draft_tokens=3, prompt_chunk=16, precision="fp32")
OPTIONS = CalibrateOptions(bursts=1, drafters=("model", "b"))


class Knows(FakeDecoder):
    """A draft that is right behind prompts whose first token is odd, or even."""

    def __init__(self, odd: bool):
        super().__init__(LONG, seed=1)
        self.odd, self.wrong = odd, FakeDecoder(LONG, seed=1, noise=3.0)

    def logits_after(self, context: Any) -> Logits:
        right = bool(context[0] % 2) == self.odd
        return super().logits_after(context) if right else self.wrong.logits_after(context)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("calibration.calibrate", "runtime.costs.meter", "runtime.policy.files"):
        monkeypatch.setattr(f"specexport.{name}.describe_host", lambda *_: "a host")
    real = CostMeter.costs
    monkeypatch.setattr(CostMeter, "costs", lambda meter: priced(real(meter), 0.1))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return several_session(tmp_path, FakeDecoder(LONG, seed=1), Knows(True), {"b": Knows(False)})


def routed(count: int) -> list[Request]:
    """`odd` prompts begin with an odd token."""
    found = requests(count, ["odd", "even"])
    return [replace(one, tokens=(5 + (one.route == "even"), *one.tokens)) for one in found]


def test_each_route_gets_the_draft_that_pays_there(session: Session) -> None:
    analysis = calibrate(session, routed(44), OPTIONS, "x")
    assert {one.route: one.policy.drafter for one in analysis.routes} == {"odd": "draft", "even": "b"}
    assert all(one.policy.chances[0] > 0.8 for one in analysis.routes)  # each by its own draft
    assert {one.drafter for one in analysis.routes[0].candidates} == {"draft", "b"}
    assert isinstance(read_decision(session.bundle, Policy, POLICY), Policy)
    assert list(read_by_draft(session.bundle, Costs, COSTS)) == ["draft", "b"]
    again = Session(session.bundle, session.engine)
    for one in routed(6):
        found = again.generate(one.tokens, max_new_tokens=20, route=one.route, seed=1).statistics
        assert found.drafted > 0
        assert found.acceptance_rate == 1.0  # the other draft would be wrong
    assert list(again.drafts.opened) == ["draft", "b"]
    # And who drafts where nobody names the route is learnt.
    assert analysis.unnamed.endswith("sessions choose.")
    known = read_decision(session.bundle, Routing, ROUTING)
    assert isinstance(known, Routing)
    assert set(known.drafters) == {"draft", "b"}
    for one in routed(6):
        found = again.generate(one.tokens, max_new_tokens=40).statistics
        own = {"odd": "draft", "even": "b"}[one.route]
        assert found.rounds_by_drafter[own] > sum(found.rounds_by_drafter.values()) / 2


def test_nothing_is_learnt_for_nothing(session: Session) -> None:
    """One draft for all routes, fixed numbers, or no gain: what an earlier run left goes."""
    calibrate(session, routed(22), OPTIONS, "x")
    assert session.bundle.path(ROUTING).exists()
    calibrate(session, routed(8), replace(OPTIONS, mode="fixed"), "x")
    assert not session.bundle.path(ROUTING).exists()
    assert calibrate(session, routed(8), replace(OPTIONS, drafters=("model",)), "x").unnamed == ""


def test_only_drafts_to_choose_from_are_run(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []
    turns: list[bool] = []
    real = steps.record

    def noted(s: Session, request: Request, sampling: Any, plain_first: bool) -> Any:
        asked.append(sampling.drafter)
        turns.append(plain_first)
        return real(s, request, sampling, plain_first)

    monkeypatch.setattr(steps, "record", noted)
    calibrate(session, routed(4), replace(OPTIONS, drafters=("model",)), "x")
    assert set(asked) == {"draft"}
    assert turns[:4] == [True, False, True, False]
    calibrate(session, routed(4), replace(OPTIONS, drafters=("ngram+b",)), "x")
    assert asked.count("b") == 4
    costs = read_by_draft(session.bundle, Costs, COSTS)
    assert list(costs) == ["draft", "b"]
    for of_b, of_draft in zip(costs["b"].points, costs["draft"].points, strict=True):  # at the same level
        assert of_b.rounds[0].median == pytest.approx(of_draft.rounds[0].median)


def test_a_run_of_several_drafts_goes_on_where_it_stopped(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calibrate(session, routed(6), OPTIONS, "x")
    ran: list[tuple[int, str | None]] = []
    real = steps.record

    def counted(s: Session, request: Request, sampling: Any, plain_first: bool) -> Any:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append((request.line, sampling.drafter))
        return real(s, request, sampling, plain_first)

    monkeypatch.setattr(steps, "record", counted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(session, routed(6), OPTIONS, "x")
    monkeypatch.setattr(steps, "record", real)
    first, ran[:] = list(ran), []
    assert len(first) == 5
    again = calibrate(session, routed(6), OPTIONS, "x")
    assert [one.policy.drafter for one in again.routes] == [one.policy.drafter for one in whole.routes]


def test_a_run_is_not_resumed_with_another_draft_of_the_same_name(session: Session) -> None:
    manifest = session.bundle.manifest
    weights = manifest.draft_called("b").model.weights
    files = manifest.files | {weights: FileEntry(1, "0" * 64)}
    other = SimpleNamespace(
        bundle=Bundle(session.bundle.root, replace(manifest, files=files)),
        engine=session.engine,
        threads=session.threads,
        drafts=session.drafts,
    )
    for drafters, same in ((("model", "b"), False), (("model",), True)):
        options = replace(OPTIONS, drafters=drafters)
        headers = [_header(one, routed(2), options) for one in (session, cast("Session", other))]
        assert (headers[0] == headers[1]) == same
