"""costs.json, policy.json and survival.json: read with a bundle, refused where wrong, followed by the session."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specexport
from specexport.bundle import Bundle
from specexport.engines.base import Engine, OpenedDraft
from specexport.errors import BundleError, OutputError, ParameterError
from specexport.runtime.drafting.drafts import Drafts
from specexport.runtime.drafting.rounds import RoundPlan, SequenceState
from specexport.runtime.policy import host_identity
from specexport.runtime.policy.controller import AdaptiveSchedule
from specexport.runtime.policy.cost_model import COSTS, Costs
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.files import calibrated_threads, read_by_draft, stale, write_decision
from specexport.runtime.policy.host_identity import bundle_identity, describe_host
from specexport.runtime.policy.routes import POLICY, Policy, RoutePolicy
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.policy.survival import SURVIVAL, SURVIVAL_VERSION, Curve, Survival
from specexport.runtime.proofs.equality import check_equality
from specexport.runtime.session import Session
from support.costs import costs_at, flat_point
from support.doubles import FakeDecoder, fake_session, write_bundle
from support.refusals import refused
from support.rounds import ask, sequence, tell

ON = RoutePolicy("on", "draft", 2, "fixed", (0.7,), None)
OFF = RoutePolicy("off", "draft", 0, "fixed", (0.1,), None)
ADAPTIVE = RoutePolicy("on", "draft", 2, "adaptive", (0.9,), None)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path)


def engine(confidence: Callable[[], float] | None = None) -> Engine:
    return Engine("onnxruntime", "ort", FakeDecoder(), OpenedDraft(FakeDecoder(noise=0.4), confidence))


def write_policy(bundle: Bundle, default: RoutePolicy = ON, **routes: RoutePolicy) -> None:
    write_decision(bundle, Policy(1, bundle_identity(bundle), "onnxruntime", "now", 0.0, 0.9, default, routes), POLICY)


def costs_of(bundle: Bundle) -> Costs:
    host = describe_host(bundle.manifest, "onnxruntime")
    told = dict(bundle=bundle_identity(bundle), host=host, engine="onnxruntime", draft_prefill=0.01)
    return costs_at(flat_point(0.05, 0.05), **told)


def survival_of(bundle: Bundle) -> Survival:
    return Survival(SURVIVAL_VERSION, bundle_identity(bundle), (Curve((-1.0, 1.0), (0.25, 0.75)),))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_without_a_policy_and_costs_the_maximum_is_drafted(bundle: Bundle) -> None:
    decisions = Decisions.load(Drafts(bundle, engine()), 0)
    assert decisions.policy is None
    assert ask(decisions.uncalibrated("model", 4, seeded=False), 10, 2) == 4


@pytest.mark.parametrize(("changes", "known"), [({}, True), ({"host": "another"}, False), ({"threads": 3}, False)])
def test_costs_without_a_policy_are_taken_where_they_were_measured(
    bundle: Bundle, changes: dict[str, Any], known: bool
) -> None:
    """As for a bundle whose policy was deleted; elsewhere the session measures its own."""
    costs = replace(costs_of(bundle), **changes)
    write_decision(bundle, {"draft": costs}, COSTS)
    decisions = Decisions.load(Drafts(bundle, engine()), 0)
    assert decisions.policy is None
    decisions.measure = lambda draft: None
    assert decisions.costs_of("draft") == (costs if known else None)
    schedule = decisions.uncalibrated("draft", 4, seeded=False)
    assert isinstance(schedule, AdaptiveSchedule if known else FixedSchedule)


def test_the_route_decides_and_the_default_for_others(bundle: Bundle) -> None:
    write_policy(bundle, OFF, code=ON)
    decisions = Decisions.load(Drafts(bundle, engine()), 0)
    assert ask(decisions.schedule("code", 4)[1], 10, 2) == 2
    for route in (None, "unheard of"):
        assert ask(decisions.schedule(route, 4)[1], 10, 2) == 0


@pytest.mark.parametrize(
    ("entry", "k"),
    [(replace(ON, verdict="undecided"), 2), (replace(OFF, verdict="undecided"), 0), (replace(ON, verdict="off"), 0)],
)
def test_only_off_is_plain_whatever_the_number(bundle: Bundle, entry: RoutePolicy, k: int) -> None:
    write_policy(bundle, entry)
    assert ask(Decisions.load(Drafts(bundle, engine()), 0).schedule(None, 4)[1], 10, 2) == k


def test_adaptive_routes_keep_their_state_apart(bundle: Bundle) -> None:
    write_policy(bundle, ADAPTIVE, code=ADAPTIVE, draft=ADAPTIVE)
    write_decision(bundle, {"draft": costs_of(bundle)}, COSTS)
    decisions = Decisions.load(Drafts(bundle, engine()), 0)
    drafter, schedule = decisions.schedule("code", 4)
    assert drafter == "draft"
    assert isinstance(schedule, AdaptiveSchedule)
    ask(schedule, 10, 2)
    tell(schedule, 2, 0)
    for route in ("draft", None, "unheard of"):
        decisions.schedule(route, 4)
    decisions.uncalibrated("draft", 4, seeded=False)  # a drafter that has a route's name
    assert decisions.states["code", False].prior < 0
    assert decisions.states["draft", False].prior == 0
    assert decisions.states["draft", False] is not decisions.drafter_states["draft", False]
    assert {route for route, _ in decisions.states} == {"code", "draft", None}


def test_a_grammars_requests_are_trusted_apart_and_by_what_came_of_them(bundle: Bundle) -> None:
    write_policy(bundle, ADAPTIVE, code=ADAPTIVE)
    write_decision(bundle, {"draft": costs_of(bundle)}, COSTS)
    write_decision(bundle, {"draft": survival_of(bundle)}, SURVIVAL)
    decisions = Decisions.load(Drafts(bundle, engine(lambda: 1.0)), 0)
    free, bounded = (decisions.schedule("code", 4, constrained)[1] for constrained in (False, True))
    assert free.plan(sequence(10)).draft_stop is not None
    assert bounded.plan(sequence(10)).draft_stop is None  # what the draft says of itself was fitted to free text
    ask(bounded, 10, 2)
    tell(bounded, 2, 0)
    assert decisions.states["code", True].prior < 0 == decisions.states["code", False].prior


def test_the_drafts_own_confidence_is_read(bundle: Bundle) -> None:
    write_policy(bundle, ADAPTIVE)
    write_decision(bundle, {"draft": costs_of(bundle)}, COSTS)
    write_decision(bundle, {"draft": survival_of(bundle)}, SURVIVAL)
    given = [1.5]
    chance = Decisions.load(Drafts(bundle, engine(lambda: given[0])), 0).acceptance_predictor("draft")
    assert chance is not None
    assert chance(0, np.zeros((1, 3), np.float32)) == 0.75
    given[0] = 0.5
    assert chance(0, np.zeros((1, 3), np.float32)) == pytest.approx(0.625)
    assert Decisions.load(Drafts(bundle, engine()), 0).acceptance_predictor("draft") is None  # this engine has none


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ("on another, not on ", {"host": "another"}),
        ("with --engine tensorrt, not with --engine onnxruntime", {"engine": "tensorrt"}),
        ("with --threads 2, not with the engine's own number of threads", {"threads": 2}),
    ],
)
def test_a_policy_adapts_to_what_this_host_costs(
    bundle: Bundle, told: str, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    costs, asked = replace(costs_of(bundle), **changes), list[str]()
    assert f"costs.json was measured {told}" in str(stale(bundle.manifest, costs, "onnxruntime", 0))
    write_policy(bundle, ADAPTIVE, plain=replace(OFF, mode="adaptive"))
    write_decision(bundle, {"draft": costs}, COSTS)
    with caplog.at_level(logging.WARNING):
        decisions = Decisions.load(Drafts(bundle, engine()), 0)
    assert not caplog.text
    assert isinstance(decisions.schedule(None, 4)[1], FixedSchedule), "where nothing can be measured"
    decisions.measure = lambda draft: asked.append(draft) or costs_of(bundle)  # type: ignore[func-returns-value]
    for route in (None, "plain"):
        assert isinstance(decisions.schedule(route, 4)[1], AdaptiveSchedule)
    assert asked == ["draft"]


@pytest.mark.slow
def test_sessions_take_the_threads_that_were_calibrated(
    built: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(shutil.copytree(built, tmp_path / "tiny.bundle"))
    assert calibrated_threads(bundle, None, 0) == 0
    write_decision(bundle, {"draft": replace(costs_of(bundle), threads=1)}, COSTS)
    with specexport.load(bundle.root) as session:
        assert session.threads == 1, "also without a policy"
    write_policy(bundle, ADAPTIVE)
    with caplog.at_level(logging.WARNING), specexport.load(bundle.root) as session:
        assert session.threads == 1
        assert isinstance(session.decisions.schedule(None, 4)[1], AdaptiveSchedule)
    assert not caplog.text
    monkeypatch.setattr("specexport.runtime.session.first_costs", lambda *_: replace(costs_of(bundle), threads=2))
    with specexport.load(bundle.root, threads=2) as session:
        assert session.threads == 2
        assert not session.decisions.costs
        assert isinstance(session.decisions.schedule(None, 4)[1], AdaptiveSchedule), "by its own costs"
    with specexport.load(bundle.root, policy=False) as session:  # calibrate's own
        assert session.threads == 0
    assert calibrated_threads(bundle, "tensorrt", 0) == 0
    write_decision(bundle, {"draft": replace(costs_of(bundle), threads=1, host="another")}, COSTS)
    assert calibrated_threads(bundle, None, 0) == 0


def test_a_fixed_policy_needs_no_costs(bundle: Bundle) -> None:
    write_policy(bundle, ON, off=OFF)
    decisions = Decisions.load(Drafts(bundle, engine()), 0)
    decisions.measure = lambda draft: pytest.fail(draft)
    decisions.prepare()
    assert [ask(decisions.schedule(route, 4)[1], 10, 2) for route in (None, "off")] == [2, 0]
    assert stale(bundle.manifest, costs_of(bundle), "onnxruntime", 0) is None


def test_a_policy_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    write_policy(bundle)
    edit(bundle.path(POLICY), bundle="0" * 64)
    with refused(BundleError, "delete", code="stale"):
        Decisions.load(Drafts(bundle, engine()), 0)


@pytest.mark.parametrize(
    ("costs", "field"),
    [
        ([], None),
        ({"draft": 5}, "costs.json: draft"),
        ({"draft": {"points": 5}}, "costs.json: draft"),
        ({"draft": {"points": [1]}}, "costs.json: draft"),
    ],
    ids=str,
)
def test_damaged_costs_are_named(bundle: Bundle, costs: Any, field: str | None) -> None:
    bundle.path(COSTS).write_text(json.dumps(costs))
    with pytest.raises(BundleError, match=r"costs\.json") as caught:
        read_by_draft(bundle, Costs, COSTS)
    assert (caught.value.field or "").startswith(field or "")


def test_another_contract_is_another_bundle(bundle: Bundle) -> None:
    contract = replace(bundle.manifest.contract, capacity=64)
    assert bundle_identity(Bundle(bundle.root, replace(bundle.manifest, contract=contract))) != bundle_identity(bundle)
    assert bundle_identity(Bundle(bundle.root, replace(bundle.manifest, created="later"))) == bundle_identity(bundle)


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "maybe"},
        {"num_draft_tokens": 5},
        {"num_draft_tokens": 0},
        {"num_draft_tokens": "2"},
        {"drafter": "oracle"},
        {"drafter": "suffix"},
        {"mode": "clever"},
        {"chances": [1.5]},
        {"chances": []},
        {"extra": 1},
    ],
)
def test_an_edited_policy_is_checked(bundle: Bundle, changes: dict[str, Any]) -> None:
    write_policy(bundle)
    path = bundle.path(POLICY)
    edit(path, default=json.loads(path.read_text())["default"] | changes)
    with refused(
        BundleError,
        "correct",
        field=("policy.json.default", *(f"policy.json.default.{name}" for name in changes)),
    ):
        Decisions.load(Drafts(bundle, engine()), 0)


def test_an_edited_policy_that_is_no_json(bundle: Bundle) -> None:
    bundle.path(POLICY).write_text("{,}")
    with refused(BundleError, POLICY, "correct"):
        Decisions.load(Drafts(bundle, engine()), 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"drafter": "ngram:model"}, "policy.json.routes.code.drafter"),
        ({"unit": 0.5}, "policy.json.routes.code.unit"),
    ],
)
def test_what_earlier_versions_wrote_is_to_be_calibrated_again(
    bundle: Bundle, changes: dict[str, Any], field: str
) -> None:
    write_policy(bundle)
    edit(bundle.path(POLICY), routes={"code": json.loads(bundle.path(POLICY).read_text())["default"] | changes})
    with refused(BundleError, "specexport calibrate", field=field):
        Decisions.load(Drafts(bundle, engine()), 0)


def test_a_survival_of_an_earlier_version_is_to_be_calibrated_again(bundle: Bundle) -> None:
    write_policy(bundle)
    old = asdict(survival_of(bundle)) | {"schema_version": 2, "signal": "probability"}
    bundle.path(SURVIVAL).write_text(json.dumps({"draft": old}))
    with refused(BundleError, "specexport calibrate", field="survival.json: draft.signal"):
        Decisions.load(Drafts(bundle, engine()), 0)


def test_writing_replaces_as_a_whole(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(bundle, ON)
    before = bundle.path(POLICY).read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with refused(OutputError, "results", code="disk_full"):
            write_policy(bundle, OFF)
    assert bundle.path(POLICY).read_text() == before
    assert [path.name for path in bundle.root.iterdir() if "policy" in path.name] == [POLICY]


def session_with(tmp_path: Path, default: RoutePolicy, **routes: RoutePolicy) -> Session:
    made = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    write_policy(made.bundle, default, **routes)
    write_decision(made.bundle, {"draft": costs_of(made.bundle)}, COSTS)
    return Session(made.bundle, replace(made.engine, name="onnxruntime"))


def test_the_session_follows_its_policy(tmp_path: Path) -> None:
    session = session_with(tmp_path, OFF, code=ON, lookup=replace(ON, drafter="ngram"), quick=ADAPTIVE)
    prompt = [5, 6, 5, 6, 5]
    plain = session.generate(prompt, max_new_tokens=24)
    assert plain.statistics.drafted == 0
    code = session.generate(prompt, max_new_tokens=24, route="code")
    assert len(code.statistics.drafted_by_position) == 2
    assert session.generate(prompt, max_new_tokens=24, route="lookup").statistics.looked_up > 0
    quick = session.generate(prompt, max_new_tokens=24, route="quick")
    assert quick.statistics.drafted > 0
    assert plain.tokens == code.tokens == quick.tokens
    # What the caller says goes before the policy.
    assert len(session.generate(prompt, max_new_tokens=24, num_draft_tokens=3).statistics.drafted_by_position) == 3
    numbered = session.generate(prompt, max_new_tokens=24, route="lookup", num_draft_tokens=3).statistics
    assert set(numbered.rounds_by_drafter) == {"ngram"}  # the policy's: only the number was named
    scheduled = session.generate(prompt, max_new_tokens=24, route="lookup", schedule=FixedSchedule(3))
    assert "ngram" not in scheduled.statistics.rounds_by_drafter
    assert session.generate(prompt, max_new_tokens=24, route="code", speculate=False).statistics.drafted == 0
    with refused(ParameterError, "5", field="route"):
        session.generate(prompt, route=5)  # type: ignore[arg-type]


def test_who_names_a_drafter_drafts_as_many_as_pay(tmp_path: Path) -> None:
    """Whatever the policy says of the route, and with what the session learns."""
    session = session_with(tmp_path, ON, off=OFF)
    session.decisions.clock = lambda: math.nan
    first = session.generate([0] * 9, max_new_tokens=24, route="off", drafter="model").statistics
    assert len(first.drafted_by_position) == 3  # of 4: by the costs and the guess
    assert session.decisions.drafter_states["draft", False].prior != 0
    assert not session.decisions.states


def test_a_proof_drafts_with_the_draft_whatever_the_policy_says(tmp_path: Path) -> None:
    old = session_with(tmp_path, replace(ON, drafter="ngram"))
    drafted = [
        check_equality(Session(old.bundle, old.engine, policy=policy), [5, 6, 7], 12).drafted
        for policy in (True, False)
    ]
    assert drafted[0] == drafted[1] > 0


def test_plain_rounds_leave_the_draft_behind_and_it_catches_up(tmp_path: Path) -> None:
    """The draft of a route that is off costs nothing, not even its prefill."""

    class Late(FixedSchedule):
        def __init__(self) -> None:
            super().__init__(3)
            self.behind: list[int] = []

        def plan(self, sequence: SequenceState) -> RoundPlan:
            self.behind.append(sequence.missing_rows("draft"))
            return RoundPlan(0 if sequence.length < 30 else 3)

    session = fake_session(tmp_path, FakeDecoder(), FakeDecoder(noise=0.4))
    late = Late()
    prompt = list(range(20))
    tokens = session.generate(prompt, max_new_tokens=24, schedule=late).tokens
    draft = session.engine.draft.decoder
    assert isinstance(draft, FakeDecoder)
    assert late.behind[:11] == list(range(20, 31))
    assert all(behind <= 4 for behind in late.behind[11:])
    session.reset()
    assert tokens == session.generate(prompt, max_new_tokens=24, speculate=False).tokens


def test_costs_of_fewer_draft_tokens_are_refused(bundle: Bundle) -> None:
    write_policy(bundle, ADAPTIVE)
    costs = costs_of(bundle)
    point = costs.points[0]
    short = replace(point, rounds=point.rounds[:3], verify=point.verify[:3], host=point.host[:3])
    write_decision(bundle, {"draft": replace(costs, points=(short,))}, COSTS)
    with refused(BundleError, "rounds"):
        Decisions.load(Drafts(bundle, engine()), 0)


@pytest.mark.parametrize(
    ("limit", "told"), [(0.5, " 2 cores limited to 0.5"), (2.0, " 2 cores"), (math.inf, " 2 cores")]
)
def test_a_host_is_another_under_another_limit(
    limit: float, told: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the time of CPUs, as of a container: costs that were measured under one do not hold under the other."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(host_identity, "cpu_limit", lambda: limit)
    text = describe_host(bundle.manifest, "onnxruntime")
    assert text.partition(",")[2].startswith(told)
    assert ("limited" in text) == ("limited" in told)


def test_costs_are_of_the_operators_and_the_instruction_set_that_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A portable bundle also runs without specexport-kernels, and a processor may be held to fewer instructions."""
    runs: list[str | None] = ["avx512_vnni"]
    monkeypatch.setattr(host_identity, "instruction_set", lambda: runs[-1])
    manifest, graphs = bundle.manifest, {"kernels": "graphs/target-kernels.onnx", "ort": "graphs/target-ort.onnx"}
    plain = replace(manifest, target=replace(manifest.target, graphs={"ort": graphs["ort"]}))
    portable = replace(manifest, target=replace(manifest.target, graphs=graphs))
    assert (
        describe_host(portable, "onnxruntime") == f"{describe_host(plain, 'onnxruntime')} with kernels for avx512_vnni"
    )
    costs = replace(costs_of(bundle), host=describe_host(portable, "onnxruntime"))
    assert stale(portable, costs, "onnxruntime", 0) is None
    runs.append("avx2")
    assert stale(portable, costs, "onnxruntime", 0) is not None
    runs.append(None)
    assert stale(portable, costs, "onnxruntime", 0) is not None
    assert describe_host(portable, "onnxruntime") == describe_host(plain, "onnxruntime")
