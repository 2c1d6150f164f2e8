"""Sessions that choose who drafts: the text is the target's, caches keep their rows, each is asked where it pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specexport.engines.base import Logits
from specexport.errors import BundleError
from specexport.runtime.policy.cost_model import COSTS
from specexport.runtime.policy.files import write_decision
from specexport.runtime.policy.host_identity import bundle_identity
from specexport.runtime.policy.routed_schedule import RoutedSchedule
from specexport.runtime.policy.routes import POLICY, POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.policy.routing import ROUTING, ROUTING_VERSION, KnownDraft, KnownRoute, Routing
from specexport.runtime.session import Session
from support.costs import costs_at, flat_point
from support.doubles import CONTRACT, FakeDecoder, check_invariant, greedy_tokens
from support.refusals import refused
from support.several import several_session

MOST = CONTRACT.max_draft_tokens


class Knows(FakeDecoder):
    """A draft that is right behind prompts whose first token is odd, or even."""

    def __init__(self, odd: bool) -> None:
        super().__init__(seed=1)
        self.odd, self.wrong = odd, FakeDecoder(seed=1, scale=-1.0)

    def logits_after(self, context: Any) -> Logits:
        right = bool(context[0] % 2) == self.odd
        return super().logits_after(context) if right else self.wrong.logits_after(context)


def routing_of(identity: str, drafters: tuple[str, str]) -> Routing:
    def known(good: str) -> KnownRoute:
        found = {name: 0.9 if name == good else 0.1 for name in drafters}
        return KnownRoute({name: KnownDraft(1 + chance, (chance,) * MOST) for name, chance in found.items()}, {}, 0)

    first, second = drafters
    return Routing(ROUTING_VERSION, identity, "", 0, drafters, {"odd": known(first), "even": known(second)})


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexport.runtime.policy.files.describe_host", lambda *_: "a host")


def routed(root: Path, drafters: tuple[str, str] = ("model", "b"), **default: Any) -> Session:
    session = several_session(root, FakeDecoder(seed=1), Knows(True), {"b": Knows(False)})
    bundle = session.bundle
    identity = bundle_identity(bundle)
    entry = RoutePolicy("on", drafters[0], 2, "adaptive", (0.5,), None)
    policy = Policy(POLICY_VERSION, identity, "fake", "", 0.0, 0.9, replace(entry, **default), {"odd": entry})
    write_decision(bundle, policy, POLICY)
    names = ("draft", "b")
    same = costs_at(flat_point(0.05, 0.05, most=MOST), host="a host", engine="fake")
    costs = [replace(same, bundle=bundle_identity(bundle, name)) for name in names]
    write_decision(bundle, dict(zip(names, costs, strict=True)), COSTS)
    write_decision(bundle, routing_of(identity, drafters), ROUTING)
    found = Session(bundle, session.engine)
    found.decisions.clock = iter(range(10**9)).__next__  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("drafters", [("model", "b"), ("ngram+model", "ngram+b"), ("ngram", "b")])
def test_the_text_is_the_targets_and_caches_keep_their_rows(drafters: tuple[str, str], tmp_path: Path) -> None:
    session = routed(tmp_path, drafters)
    for number in range(12):
        prompt = [5 + number % 2, *([6, 7] * (number % 3))]
        stream = session.stream(prompt, max_new_tokens=24)
        assert isinstance(session.decisions.routed(prompt, MOST), RoutedSchedule)
        tokens: list[int] = []
        for count, chunk in enumerate(stream):
            tokens += chunk.tokens
            check_invariant(session._context)
            if count == number and number % 4 == 1:
                stream.cancel()
            elif count == number and number % 4 == 3:
                stream.close()
                break
        assert tuple(tokens) == greedy_tokens(FakeDecoder(seed=1), prompt, len(tokens))
        check_invariant(session._context)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}])
def test_each_request_is_drafted_by_the_one_that_is_right_there(options: dict[str, Any], tmp_path: Path) -> None:
    session, drafted = routed(tmp_path), []
    for first in (5, 6, 5, 6):
        row = session.generate([first, 7, 8], max_new_tokens=48, **options).statistics
        assert sum(row.rounds_by_drafter.values()) == (row.drafted_by_position or [0])[0]
        drafted.append(max(row.rounds_by_drafter, key=lambda name: row.rounds_by_drafter[name]))
        assert row.as_dict()["rounds_by_drafter"] == row.rounds_by_drafter
    assert drafted == ["draft", "b"] * 2
    assert list(session.drafts.opened) == ["draft", "b"]


def test_a_seed_repeats_itself_whoever_came_before(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"temperature": 0.9, "seed": 11, "max_new_tokens": 40}
    fresh = routed(tmp_path / "fresh").generate([6, 7, 8], **asked)
    session = routed(tmp_path / "used")
    for first in (5, 6, 6):
        session.generate([first, 7, 8], max_new_tokens=30)
    again = session.generate([6, 7, 8], **asked)
    assert again.tokens == fresh.tokens
    assert again.statistics.rounds_by_drafter == fresh.statistics.rounds_by_drafter
    assert again.statistics.drafted_by_position == fresh.statistics.drafted_by_position


def test_who_names_a_drafter_or_a_route_gets_that(tmp_path: Path) -> None:
    session = routed(tmp_path)
    for options in ({"drafter": "model"}, {"route": "odd"}):
        row = session.generate([6, 7, 8], max_new_tokens=40, **options).statistics
        assert set(row.rounds_by_drafter) <= {"draft"}
    for options in ({"drafter": "b"}, {"route": "of nobody"}):
        assert "b" in session.generate([6, 7, 8], max_new_tokens=40, **options).statistics.rounds_by_drafter
    for given in ({"prediction": [3]}, {"speculate": False}, {"num_draft_tokens": 2}):
        assert "b" not in session.generate([6, 7, 8], max_new_tokens=40, **given).statistics.rounds_by_drafter


@pytest.mark.parametrize("default", [{"mode": "fixed"}, {"verdict": "off", "num_draft_tokens": 0}])
def test_a_default_that_is_fixed_or_off_stays_so(default: dict[str, Any], tmp_path: Path) -> None:
    assert routed(tmp_path, **default).decisions.routed([5], MOST) is None


def test_nothing_is_chosen_where_nobody_knows_costs_or_routes(tmp_path: Path) -> None:
    session = routed(tmp_path)
    elsewhere = Session(session.bundle, session.engine, threads=3).decisions
    assert elsewhere.routed([5], MOST) is None
    elsewhere.measure = session.decisions.costs.get
    assert isinstance(elsewhere.routed([5], MOST), RoutedSchedule)
    session.bundle.path(ROUTING).unlink()
    assert Session(session.bundle, session.engine).decisions.routed([5], MOST) is None


@pytest.mark.parametrize("name", ["z", "ngram+z", "ngram:model"])
def test_a_file_that_names_a_drafter_which_cannot_be(tmp_path: Path, name: str) -> None:
    session = routed(tmp_path)
    write_decision(session.bundle, routing_of(bundle_identity(session.bundle), ("model", name)), ROUTING)
    with refused(BundleError, "routing.json", name, "calibrate", field="routing.json.drafters"):
        Session(session.bundle, session.engine)
